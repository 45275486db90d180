package operator

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/desired"
	"quorate.dev/operator/pki"
	"quorate.dev/operator/servingcert"
)

// checkMetrics reads the metrics with different credentials.
func (e *environment) checkMetrics(address string) {
	e.t.Helper()
	scraper := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "scraper"}}
	unauthorized := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "unauthorized"}}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "scraper"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "quorate-metrics-reader"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "default", Name: "scraper"}},
	}
	for _, object := range []client.Object{scraper, unauthorized, binding} {
		if err := e.client.Create(e.t.Context(), object); err != nil {
			e.t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		token string
		want  int
	}{
		"no token":            {"", http.StatusUnauthorized},
		"unknown token":       {"nonsense", http.StatusInternalServerError}, // the status that controller-runtime returns
		"without permissions": {e.token(unauthorized), http.StatusForbidden},
		"scraper":             {e.token(scraper), http.StatusOK},
	} {
		response, body := e.scrape(address, c.token)
		if response.StatusCode != c.want {
			e.t.Errorf("%s: %s, %d bytes", name, response.Status, len(body))
		}
		for _, metric := range []string{"controller_runtime_reconcile_total{", "rest_client_requests_total{"} {
			if bytes.Contains(body, []byte(metric)) != (c.want == http.StatusOK) {
				e.t.Errorf("%s: %s: %d bytes, and %s...", name, response.Status, len(body), metric)
			}
		}
	}
	response, err := http.Get("http://" + address + "/metrics")
	if err != nil {
		return
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusBadRequest {
		e.t.Errorf("without TLS: %s", response.Status)
	}
}

func (e *environment) token(account *corev1.ServiceAccount) string {
	e.t.Helper()
	request := &authenticationv1.TokenRequest{}
	if err := e.client.SubResource("token").Create(e.t.Context(), account, request); err != nil {
		e.t.Fatal(err)
	}
	return request.Status.Token
}

// scrape verifies the certificate with the authority in the Secret, for the names of the Service.
func (e *environment) scrape(address, token string) (*http.Response, []byte) {
	e.t.Helper()
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(e.metricsSecret().Data["ca.crt"]) {
		e.t.Fatal("the Secret has no ca.crt")
	}
	request, err := http.NewRequestWithContext(e.t.Context(), http.MethodGet, "https://"+address+"/metrics", nil)
	if err != nil {
		e.t.Fatal(err)
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{
		RootCAs: roots, ServerName: metricsName, MinVersion: tls.VersionTLS12,
	}}
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		e.t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	if err := response.TLS.PeerCertificates[0].VerifyHostname(metricsName + ".quorate-system.svc"); err != nil {
		e.t.Error(err)
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		e.t.Fatal(err)
	}
	return response, body
}

func (e *environment) metricsSecret() *corev1.Secret {
	e.t.Helper()
	secret := &corev1.Secret{}
	if err := e.client.Get(
		e.t.Context(), client.ObjectKey{Namespace: "quorate-system", Name: metricsName}, secret,
	); err != nil {
		e.t.Fatal(err)
	}
	return secret
}

// checkCertificate creates, renews and replaces one certificate that two replicas share, with the operator's
// permissions.
func (e *environment) checkCertificate() {
	e.t.Helper()
	now := clocktesting.NewFakeClock(time.Now())
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Namespace: "quorate-system", Name: metricsName, Labels: map[string]string{desired.ManagedByLabel: desired.ManagedBy},
	}}
	operator := e.operatorClient()
	stored := &corev1.Secret{}
	var keepers []*servingcert.Keeper
	for range 2 {
		keeper := &servingcert.Keeper{
			Client: operator, Secret: secret, Clock: now, Logger: logr.Discard(),
			Leaf: pki.Leaf{CommonName: "x", Addresses: []net.IP{net.IPv4(127, 0, 0, 1)}, Server: true},
		}
		keepers = append(keepers, keeper)
		go func() { _ = keeper.Start(e.t.Context()) }()
	}
	// served waits until both replicas serve the certificate in the Secret, and it differs from the previous one.
	served := func(what string, before []byte) []byte {
		e.t.Helper()
		var certificate []byte
		e.until(what+": both replicas serve the same new certificate", func() bool {
			now.Step(time.Minute)
			first, err := keepers[0].GetCertificate(nil)
			second, other := keepers[1].GetCertificate(nil)
			if err != nil || other != nil || !bytes.Equal(first.Certificate[0], second.Certificate[0]) ||
				bytes.Equal(first.Certificate[0], before) {
				return false
			}
			if err := e.client.Get(e.t.Context(), client.ObjectKeyFromObject(secret), stored); err != nil {
				e.t.Fatal(err)
			}
			certificate = first.Certificate[0]
			pair, err := tls.X509KeyPair(stored.Data[corev1.TLSCertKey], stored.Data[corev1.TLSPrivateKeyKey])
			return err == nil && bytes.Equal(pair.Certificate[0], certificate)
		})
		return certificate
	}
	first := served("created", nil)
	authority := stored.Data[servingcert.AuthorityKey]
	now.Step(pki.LeafLifetime * 7 / 10)
	second := served("renewed", first)
	if !bytes.Equal(authority, stored.Data[servingcert.AuthorityKey]) {
		e.t.Error("a certificate was renewed, and its authority with it")
	}
	provided, err := pki.NewAuthority("provided", pki.AuthorityLifetime, now.Now())
	if err != nil {
		e.t.Fatal(err)
	}
	replaced := stored.DeepCopy()
	replaced.Labels, replaced.Data = nil, map[string][]byte{
		corev1.TLSCertKey: provided.Certificate, corev1.TLSPrivateKeyKey: provided.Key,
	}
	if err := e.client.Update(e.t.Context(), replaced); err != nil {
		e.t.Fatal(err)
	}
	served("provided", second)
	if stored.ResourceVersion != replaced.ResourceVersion {
		e.t.Error("a Secret of others was written")
	}
}
