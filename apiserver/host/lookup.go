package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"sync/atomic"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"quorate.dev/apiserver/authentication"
)

// These are the ConfigMap in which an API server publishes how extension servers authenticate its users, and the Role
// that may read the ConfigMap.
const (
	configMapName = "extension-apiserver-authentication"
	readerRole    = "extension-apiserver-authentication-reader"
)

// Lookup keeps the authorities and the configuration of the front proxy that the host publishes. A value that is
// missing or invalid leaves the previous value in use, as in upstream's extension servers.
type Lookup struct {
	// A nil authority is not looked up.
	clients, proxies *authentication.Authority
	proxy            atomic.Pointer[authentication.FrontProxy]
	client           kubernetes.Interface
	logger           logr.Logger
}

// Lookup returns a lookup that sets clients and proxies, the authorities of client certificates and of front proxies.
// It does not set an authority that is nil.
func (c *Cluster) Lookup(clients, proxies *authentication.Authority, logger logr.Logger) *Lookup {
	return &Lookup{clients: clients, proxies: proxies, client: c.authentication, logger: logger}
}

// FrontProxy returns the current front proxy, or nil if the host has published none.
func (l *Lookup) FrontProxy() *authentication.FrontProxy { return l.proxy.Load() }

// Once reads the ConfigMap. As in upstream's extension servers, a missing ConfigMap and invalid content are not errors,
// because Run observes when they change.
func (l *Lookup) Once(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	found, err := l.client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, configMapName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		l.logger.Info("The host has not published its authentication configuration yet", "configMap", configMapName)
		return nil
	case apierrors.IsForbidden(err):
		return fmt.Errorf("read ConfigMap %s of the host: %w; a RoleBinding in %s to the Role %s grants it",
			configMapName, err, metav1.NamespaceSystem, readerRole)
	case err != nil:
		return fmt.Errorf("read ConfigMap %s of the host: %w", configMapName, err)
	}
	l.update(found)
	return nil
}

// Run watches the ConfigMap until ctx ends.
func (l *Lookup) Run(ctx context.Context) error {
	informer := coreinformers.NewFilteredConfigMapInformer(l.client, metav1.NamespaceSystem, 0, cache.Indexers{},
		func(options *metav1.ListOptions) {
			options.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, configMapName).String()
		})
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: l.update, UpdateFunc: func(_, object any) { l.update(object) },
	})
	if err != nil {
		return fmt.Errorf("follow ConfigMap %s of the host: %w", configMapName, err)
	}
	informer.RunWithContext(ctx)
	return nil
}

// update uses the valid values in a ConfigMap.
func (l *Lookup) update(object any) {
	found, ok := object.(*corev1.ConfigMap)
	if !ok {
		return
	}
	err := errors.Join(
		set(l.clients, found, "client-ca-file"),
		set(l.proxies, found, "requestheader-client-ca-file"),
		l.setFrontProxy(found.Data),
	)
	if err != nil {
		l.logger.Error(err, "Failed to use part of the host's authentication configuration; its previous values stay in use")
	}
}

// set replaces the content of an authority, unless the authority is nil.
func set(authority *authentication.Authority, from *corev1.ConfigMap, key string) error {
	content := from.Data[key]
	switch {
	case authority == nil:
		return nil
	case content == "":
		return fmt.Errorf("ConfigMap %s of the host has no %s", configMapName, key)
	}
	if err := authority.Set([]byte(content)); err != nil {
		return fmt.Errorf("%s in ConfigMap %s of the host: %w", key, configMapName, err)
	}
	return nil
}

// setFrontProxy replaces the front proxy's configuration as a whole. It does nothing if the configuration is the same,
// because a change makes all connections verify their certificates again.
func (l *Lookup) setFrontProxy(data map[string]string) error {
	if l.proxies == nil {
		return nil
	}
	next := &authentication.FrontProxy{Authority: l.proxies}
	for key, names := range map[string]*[]string{
		"requestheader-username-headers":     &next.UsernameHeaders,
		"requestheader-uid-headers":          &next.UIDHeaders,
		"requestheader-group-headers":        &next.GroupHeaders,
		"requestheader-extra-headers-prefix": &next.ExtraHeaderPrefixes,
		"requestheader-allowed-names":        &next.AllowedNames,
	} {
		if data[key] == "" {
			continue
		}
		if err := json.Unmarshal([]byte(data[key]), names); err != nil {
			return fmt.Errorf("%s in ConfigMap %s of the host: %w", key, configMapName, err)
		}
	}
	if current := l.proxy.Load(); current == nil || !reflect.DeepEqual(*current, *next) {
		l.proxy.Store(next)
	}
	return nil
}
