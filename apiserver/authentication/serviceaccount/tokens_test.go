package serviceaccount_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/util/keyutil"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	"k8s.io/kubernetes/pkg/apis/authentication"
	"k8s.io/kubernetes/pkg/apis/core"
	upstream "k8s.io/kubernetes/pkg/serviceaccount"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/authentication/serviceaccount"
	"quorate.dev/apiserver/authorization"
	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/builtin/builtintest"
	"quorate.dev/apiserver/config"
	"quorate.dev/apiserver/resource"
)

const issuer = "https://kubernetes.default.svc"

var (
	serviceAccounts = schema.GroupResource{Resource: "serviceaccounts"}
	pods            = schema.GroupResource{Resource: "pods"}
	secrets         = schema.GroupResource{Resource: "secrets"}
)

// newKey returns a signing key and its file.
func newKey(t *testing.T) (file string, key *ecdsa.PrivateKey) {
	t.Helper()
	key = must[*ecdsa.PrivateKey](t)(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	file = filepath.Join(t.TempDir(), "key.pem")
	if err := os.WriteFile(file, must[[]byte](t)(keyutil.MarshalPrivateKeyToPEM(key)), 0o600); err != nil {
		t.Fatal(err)
	}
	return file, key
}

// tokenServer is a server that issues tokens. It has the ServiceAccount default/default.
type tokenServer struct {
	*builtintest.Server
	tokens  *serviceaccount.Tokens
	key     *ecdsa.PrivateKey
	account *core.ServiceAccount
}

func newTokenServer(t *testing.T) *tokenServer {
	t.Helper()
	return newTokenServerOf(t, authorization.AlwaysAllow{})
}

func newTokenServerOf(t *testing.T, decide authorizer.UnconditionalAuthorizer) *tokenServer {
	t.Helper()
	file, key := newKey(t)
	issuing := must[*serviceaccount.Tokens](t)(serviceaccount.New(t.Context(), config.Authentication{
		ServiceAccountIssuers: []string{issuer, "https://old.example.com"}, ServiceAccountSigningKey: file,
		ServiceAccountLookup: true, ServiceAccountExtendExpiry: true,
	}, clock.RealClock{}))
	s := builtintest.NewServer(t, builtin.Options{ServiceAccountToken: issuing.Request(decide)}, nil)
	account := must[runtime.Object](t)(s.Create(t.Context(),
		resource.Key{GroupResource: serviceAccounts, Namespace: "default"},
		&core.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: "default"}}, resource.WriteOptions{}))
	return &tokenServer{s, issuing, key, account.(*core.ServiceAccount)}
}

func (s *tokenServer) issue(t *testing.T, spec authentication.TokenRequestSpec) *authentication.TokenRequest {
	t.Helper()
	if spec.ExpirationSeconds == 0 {
		spec.ExpirationSeconds = 3600
	}
	answer := must[runtime.Object](t)(s.Call(t.Context(),
		resource.Key{GroupResource: serviceAccounts, Subresource: "token", Namespace: "default", Name: "default"},
		&authentication.TokenRequest{Spec: spec}))
	return answer.(*authentication.TokenRequest)
}

// who authenticates a token.
func (s *tokenServer) who(t *testing.T, token string, audiences ...string) *authenticator.Response {
	t.Helper()
	ctx := t.Context()
	if len(audiences) > 0 {
		ctx = authenticator.WithAudiences(ctx, audiences)
	}
	for _, a := range must[[]authenticator.Token](t)(s.tokens.Authenticators(s)) {
		if response, ok, _ := a.AuthenticateToken(ctx, token); ok {
			return response
		}
	}
	return nil
}

func TestTokenIsRejectedAfterItsAccountIsDeleted(t *testing.T) {
	s := newTokenServer(t)
	token := s.issue(t, authentication.TokenRequestSpec{}).Status.Token
	response := s.who(t, token, issuer)
	if response == nil {
		t.Fatal("the token is not accepted")
	}
	if response.User.GetName() != "system:serviceaccount:default:default" ||
		response.User.GetUID() != string(s.account.UID) {
		t.Errorf("user %v", response.User)
	}
	if !slices.Contains(response.User.GetGroups(), "system:serviceaccounts:default") {
		t.Errorf("groups %v", response.User.GetGroups())
	}
	if s.who(t, token, "https://elsewhere.example.com") != nil {
		t.Error("the token is accepted for another audience")
	}
	if s.who(t, token[:len(token)-4]+"AAAA", issuer) != nil {
		t.Error("a forged token is accepted")
	}
	key := resource.Key{GroupResource: serviceAccounts, Namespace: "default", Name: "default"}
	if err := s.Delete(t.Context(), key, &metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the token of a deleted account is rejected", func() bool { return s.who(t, token, issuer) == nil })
}

func TestTokenBoundToPod(t *testing.T) {
	s := newTokenServer(t)
	created := must[runtime.Object](t)(s.Create(t.Context(),
		resource.Key{GroupResource: pods, Namespace: "default"}, builtintest.NewPod("web"),
		resource.WriteOptions{})).(*core.Pod)
	answer := s.issue(t, authentication.TokenRequestSpec{
		ExpirationSeconds: upstream.WarnOnlyBoundTokenExpirationSeconds,
		BoundObjectRef:    &authentication.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: "web", UID: created.UID},
	})
	response := s.who(t, answer.Status.Token)
	if response == nil {
		t.Fatal("the token is not accepted")
	}
	if extra := response.User.GetExtra()["authentication.kubernetes.io/pod-name"]; len(extra) != 1 || extra[0] != "web" {
		t.Errorf("pod of the token: %v", extra)
	}
	if _, err :=
		s.Call(t.Context(), resource.Key{
			GroupResource: serviceAccounts, Subresource: "token", Namespace: "default", Name: "default",
		}, &authentication.TokenRequest{Spec: authentication.TokenRequestSpec{
			ExpirationSeconds: 3600, BoundObjectRef: &authentication.BoundObjectReference{
				APIVersion: "v1", Kind: "Pod", Name: "web", UID: "another",
			},
		}}); err == nil {
		t.Error("a token is bound to a pod with another UID")
	}
	now := int64(0)
	key := resource.Key{GroupResource: pods, Namespace: "default", Name: "web"}
	if err := s.Delete(t.Context(), key, &metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the token of a deleted pod is rejected", func() bool { return s.who(t, answer.Status.Token) == nil })
}

func TestLegacyTokenNeedsItsSecret(t *testing.T) {
	s := newTokenServer(t)
	generator := must[upstream.TokenGenerator](t)(upstream.JWTTokenGenerator(upstream.LegacyIssuer, s.key))
	public, private := upstream.LegacyClaims(
		v1.ServiceAccount{ObjectMeta: s.account.ObjectMeta}, v1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "token"}})
	token := must[string](t)(generator.GenerateToken(t.Context(), public, private))
	if s.who(t, token) != nil {
		t.Error("a token without its Secret is accepted")
	}
	must[runtime.Object](t)(s.Create(t.Context(), resource.Key{GroupResource: secrets, Namespace: "default"}, &core.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "token", Namespace: "default"}, Type: core.SecretTypeOpaque,
		Data: map[string][]byte{"token": []byte(token)},
	}, resource.WriteOptions{}))
	if s.who(t, token) == nil {
		t.Error("the token is not accepted")
	}
	secret := must[runtime.Object](t)(s.Get(t.Context(),
		resource.Key{GroupResource: secrets, Namespace: "default", Name: "token"},
		resource.ReadOptions{})).(*core.Secret)
	if secret.Labels[upstream.LastUsedLabelKey] == "" {
		t.Error("the Secret has no last-used label")
	}
}

func TestTokenMetadata(t *testing.T) {
	s := newTokenServer(t)
	metadata := must[serviceaccount.Metadata](t)(s.tokens.Metadata("10.0.0.1:6443"))
	var configuration struct {
		Issuer string `json:"issuer"`
		Keys   string `json:"jwks_uri"`
	}
	body, _ := metadata.Configuration()
	if err := json.Unmarshal(body, &configuration); err != nil {
		t.Fatal(err)
	}
	if configuration.Issuer != issuer || configuration.Keys != "https://10.0.0.1:6443/openid/v1/jwks" {
		t.Errorf("configuration %+v", configuration)
	}
	if keys, _ := metadata.Keys(); !bytes.Contains(keys, []byte(`"kty":"EC"`)) || bytes.Contains(keys, []byte(`"d":`)) {
		t.Errorf("keys %s", keys)
	}
}

// TestKeysAreReloaded replaces the signing key while tokens of the former one stay valid, and then drops that one.
func TestKeysAreReloaded(t *testing.T) {
	oldFile, _ := newKey(t)
	newFile, _ := newKey(t)
	files := t.TempDir()
	public, private := filepath.Join(files, "public"), filepath.Join(files, "private")
	write := func(signing string, verifying ...string) {
		if err := os.WriteFile(private, must[[]byte](t)(os.ReadFile(signing)), 0o600); err != nil {
			t.Fatal(err)
		}
		var all []byte
		for _, file := range verifying { // the public part of a private key verifies
			all = append(all, must[[]byte](t)(os.ReadFile(file))...)
		}
		if err := os.WriteFile(public, all, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(oldFile, oldFile)
	s := newTokenServer(t)
	tokens := must[*serviceaccount.Tokens](t)(serviceaccount.New(t.Context(), config.Authentication{
		ServiceAccountIssuers: []string{issuer}, ServiceAccountKeyFiles: []string{public}, ServiceAccountSigningKey: private,
	}, clock.RealClock{}))
	options := builtin.Options{ServiceAccountToken: tokens.Request(authorization.AlwaysAllow{})}
	s.Server = builtintest.NewServer(t, options, nil)
	s.tokens = tokens
	must[runtime.Object](t)(s.Create(t.Context(), resource.Key{GroupResource: serviceAccounts, Namespace: "default"},
		&core.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: "default"}}, resource.WriteOptions{}))
	metadata := must[serviceaccount.Metadata](t)(tokens.Metadata("10.0.0.1:6443"))
	first := s.issue(t, authentication.TokenRequestSpec{}).Status.Token
	authenticators := must[[]authenticator.Token](t)(tokens.Authenticators(s))
	accepted := func(token string) bool {
		return slices.ContainsFunc(authenticators, func(a authenticator.Token) bool {
			_, ok, _ := a.AuthenticateToken(t.Context(), token)
			return ok
		})
	}

	write(newFile, newFile, oldFile)
	if err := tokens.Reload(); err != nil {
		t.Fatal(err)
	}
	second := s.issue(t, authentication.TokenRequestSpec{}).Status.Token
	if !accepted(first) || !accepted(second) {
		t.Error("got a rejected token while both keys are in the file")
	}
	if keys, _ := metadata.Keys(); bytes.Count(keys, []byte(`"kid"`)) != 2 {
		t.Errorf("got %s, want two published keys", keys)
	}
	write(newFile, newFile)
	if err := tokens.Reload(); err != nil {
		t.Fatal(err)
	}
	if accepted(first) || !accepted(second) {
		t.Errorf("got old token accepted %t, new one %t, want false and true", accepted(first), accepted(second))
	}
	if err := os.WriteFile(private, []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := tokens.Reload(); err == nil || !accepted(second) {
		t.Errorf("got error %v and token accepted %t after an unreadable key, want an error and true", err, accepted(second))
	}
}

func TestWithoutKeysNoTokensAreIssued(t *testing.T) {
	none := must[*serviceaccount.Tokens](t)(serviceaccount.New(t.Context(), config.Authentication{}, clock.RealClock{}))
	if none.Request(nil)(nil) != nil {
		t.Error("tokens are issued without a key")
	}
	if _, err := serviceaccount.New(
		t.Context(),
		config.Authentication{ServiceAccountSigningKey: "/does/not/exist", ServiceAccountIssuers: []string{issuer}},
		clock.RealClock{},
	); err == nil {
		t.Error("no error for a missing key file")
	}
}

// The UID in a request's metadata is checked unless the gate is off.
func TestUIDOfTokenRequest(t *testing.T) {
	s := newTokenServer(t)
	for _, checked := range []bool{true, false} {
		featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate,
			features.TokenRequestServiceAccountUIDValidation, checked)
		_, err := s.Call(t.Context(),
			resource.Key{GroupResource: serviceAccounts, Subresource: "token", Namespace: "default", Name: "default"},
			&authentication.TokenRequest{
				ObjectMeta: metav1.ObjectMeta{UID: "another"}, Spec: authentication.TokenRequestSpec{ExpirationSeconds: 3600},
			})
		if apierrors.IsConflict(err) != checked || !checked && err != nil {
			t.Errorf("checked: %t, got %v", checked, err)
		}
	}
}
