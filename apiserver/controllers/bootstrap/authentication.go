package bootstrap

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/util/cert"
	"k8s.io/kubernetes/pkg/apis/core"

	"quorate.dev/apiserver/resource"
)

// AuthenticationConfigMap describes to extension API servers how this server authenticates the requests it proxies.
const AuthenticationConfigMap = "extension-apiserver-authentication"

// uidHeadersKey is the key of the UID headers. It is omitted if no UID headers are configured or the feature gate
// RemoteRequestHeaderUID is disabled.
const uidHeadersKey = "requestheader-uid-headers"

const (
	authenticationEvery = time.Minute
	expirySlack         = 5 * time.Minute // for clock skew
)

// ConfigMaps is the resource of ConfigMaps.
var ConfigMaps = schema.GroupResource{Resource: "configmaps"}

// Authentication is the authentication configuration of a replica.
type Authentication struct {
	// ClientCA and RequestHeaderCA return the current CA bundle in PEM; nil for none.
	ClientCA, RequestHeaderCA func() []byte

	UsernameHeaders, UIDHeaders, GroupHeaders, ExtraHeaderPrefixes, AllowedNames []string
}

// AuthenticationLoop publishes the configuration of this replica, merged with the published configurations of other
// replicas. The caller must send changed when a CA bundle or the ConfigMap changes.
func (b *Bootstrap) AuthenticationLoop(own Authentication, changed Signal) Loop {
	pass := func(ctx context.Context) error { return b.publishAuthentication(ctx, own) }
	return Loop{Name: AuthenticationConfigMap, Pass: pass, Every: authenticationEvery, Changed: changed}
}

func (b *Bootstrap) publishAuthentication(ctx context.Context, own Authentication) error {
	merge := func(object runtime.Object) (err error) {
		configMap := object.(*core.ConfigMap)
		configMap.Data, err = mergeAuthentication(configMap.Data, own, b.clock.Now())
		return err
	}
	key := resource.Key{GroupResource: ConfigMaps, Namespace: metav1.NamespaceSystem, Name: AuthenticationConfigMap}
	current, err := b.objects.Get(ctx, key, resource.ReadOptions{Cached: true})
	if apierrors.IsNotFound(err) {
		made := &core.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: AuthenticationConfigMap},
		}
		if err := merge(made); err != nil || len(made.Data) == 0 {
			return err
		}
		if _, err = b.objects.Create(ctx,
			resource.Key{GroupResource: ConfigMaps, Namespace: metav1.NamespaceSystem},
			made, resource.WriteOptions{}); !apierrors.IsAlreadyExists(err) {
			return err
		}
	} else if err != nil {
		return err
	} else if wanted := current.DeepCopyObject().(*core.ConfigMap); merge(wanted) == nil && maps.Equal(wanted.Data,
		current.(*core.ConfigMap).Data) {
		return nil
	}
	_, err = b.objects.Update(ctx, key, merge, resource.WriteOptions{})
	if apierrors.IsInvalid(err) && strings.Contains(err.Error(), "Too long") {
		// Every replica adds its own values again.
		if err := b.objects.Delete(ctx, key, &metav1.DeleteOptions{}); err != nil {
			return err
		}
	}
	return err
}

// mergeAuthentication merges the configuration of a replica into the published one. It drops expired certificates and
// unknown keys.
func mergeAuthentication(published map[string]string, own Authentication, now time.Time) (map[string]string, error) {
	data := map[string]string{}
	clientCA, err := mergeAuthorities(published["client-ca-file"], own.ClientCA, now)
	if err != nil {
		return nil, fmt.Errorf("client-ca-file: %w", err)
	}
	if clientCA != "" {
		data["client-ca-file"] = clientCA
	}
	proxyCA, err := mergeAuthorities(published["requestheader-client-ca-file"], own.RequestHeaderCA, now)
	if err != nil {
		return nil, fmt.Errorf("requestheader-client-ca-file: %w", err)
	}
	if proxyCA == "" {
		return data, nil
	}
	data["requestheader-client-ca-file"] = proxyCA
	for key, names := range map[string][]string{
		"requestheader-username-headers":     own.UsernameHeaders,
		uidHeadersKey:                        own.UIDHeaders,
		"requestheader-group-headers":        own.GroupHeaders,
		"requestheader-extra-headers-prefix": own.ExtraHeaderPrefixes,
		"requestheader-allowed-names":        own.AllowedNames,
	} {
		merged, err := mergeNames(published[key], names)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		if key != uidHeadersKey ||
			(merged != "[]" && utilfeature.DefaultFeatureGate.Enabled(features.RemoteRequestHeaderUID)) {
			data[key] = merged
		}
	}
	return data, nil
}

// mergeNames appends names to a JSON list without duplicates.
func mergeNames(published string, own []string) (string, error) {
	names := []string{}
	if published != "" {
		if err := json.Unmarshal([]byte(published), &names); err != nil {
			return "", err
		}
	}
	merged := []string{}
	for _, name := range slices.Concat(names, own) {
		if !slices.Contains(merged, name) {
			merged = append(merged, name)
		}
	}
	text, err := json.Marshal(merged)
	return string(text), err
}

// mergeAuthorities appends certificates to a bundle without duplicates and drops expired ones.
func mergeAuthorities(published string, own func() []byte, now time.Time) (string, error) {
	bundles := [][]byte{[]byte(published)}
	if own != nil {
		bundles = append(bundles, own())
	}
	var merged []*x509.Certificate
	for _, bundle := range bundles {
		if len(bundle) == 0 {
			continue
		}
		certificates, err := cert.ParseCertsPEM(bundle)
		if err != nil {
			return "", err
		}
		for _, certificate := range certificates {
			same := func(other *x509.Certificate) bool { return bytes.Equal(other.Raw, certificate.Raw) }
			if certificate.NotAfter.After(now.Add(-expirySlack)) && !slices.ContainsFunc(merged, same) {
				merged = append(merged, certificate)
			}
		}
	}
	var text []byte
	for _, certificate := range merged {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: cert.CertificateBlockType, Bytes: certificate.Raw})...)
	}
	return string(text), nil
}
