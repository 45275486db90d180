package certificates_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	api "k8s.io/kubernetes/pkg/apis/certificates"
	"k8s.io/kubernetes/pkg/features"
	testingclock "k8s.io/utils/clock/testing"

	"quorate.dev/apiserver/builtin/builtintest"
	"quorate.dev/apiserver/builtin/certificates"
	"quorate.dev/apiserver/resource"
)

// signer allows the user "signer" to sign for the signer example.com/pods.
func signer(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetUser().GetName() == "signer" && a.GetVerb() == "sign" && a.GetResource() == "signers" &&
		(a.GetName() == "example.com/pods" || a.GetName() == "example.com/*") {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

func now() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) }

func definitions() []*resource.Definition {
	return certificates.Definitions(builtintest.NewBuilder(), authorizer.AuthorizerFunc(signer),
		testingclock.NewFakePassiveClock(now()))
}

// disableGates disables the kinds that have a feature gate.
func disableGates(t *testing.T) {
	t.Helper()
	for _, gate := range []featuregate.Feature{features.ClusterTrustBundle, features.PodCertificateRequest} {
		featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, gate, false)
	}
}

func TestServed(t *testing.T) {
	builtintest.CheckServed(t, definitions(), []builtintest.Served{
		{
			Resource: "certificatesigningrequests", Kind: "CertificateSigningRequest", Versions: "v1",
			ShortNames: "csr", Stored: "certificatesigningrequests certificates.k8s.io/v1",
			Fields: "spec.signerName", Columns: "Age, SignerName, Requestor, RequestedDuration, Condition",
			Subresources: []string{"approval (no table)", "status"},
		},
		{
			Resource: "clustertrustbundles", Kind: "ClusterTrustBundle", Versions: "v1 v1beta1 v1alpha1",
			Stored: "clustertrustbundles certificates.k8s.io/v1beta1", Fields: "spec.signerName",
			Columns: "SignerName",
		},
		{
			Resource: "podcertificaterequests", Kind: "PodCertificateRequest", Versions: "v1 v1beta1",
			Namespaced: true, Stored: "podcertificaterequests certificates.k8s.io/v1beta1",
			Fields:       "spec.nodeName spec.podName spec.signerName",
			Columns:      "PodName, ServiceAccountName, NodeName, SignerName, State, UnverifiedUserAnnotations",
			Subresources: []string{"status"},
		},
	})
}

// TestGates: kinds whose feature gates are disabled are not served.
func TestGates(t *testing.T) {
	disableGates(t)
	for _, d := range definitions() {
		if served := len(d.Versions) > 0; served != (d.Plural == "certificatesigningrequests") {
			t.Errorf("%s: served %t", d.Plural, served)
		}
	}
}

func must[T any](t *testing.T) func(T, error) T { return builtintest.Must[T](t) }

func encode(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	return must[*ecdsa.PrivateKey](t)(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
}

// newCertificate returns a self-signed certificate that is valid for a duration, in PEM.
func newCertificate(t *testing.T, valid time.Duration) string {
	t.Helper()
	key := newKey(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: now(), NotAfter: now().Add(valid), IsCA: true, BasicConstraintsValid: true,
	}
	der := must[[]byte](t)(x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key))
	return encode("CERTIFICATE", der)
}

// newSigningRequest returns a CertificateSigningRequest in YAML.
func newSigningRequest(t *testing.T) string {
	t.Helper()
	request := must[[]byte](t)(x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "jane"},
	}, newKey(t)))
	return `
apiVersion: certificates.k8s.io/v1
kind: CertificateSigningRequest
metadata: {name: jane}
spec:
  signerName: kubernetes.io/kube-apiserver-client
  usages: [client auth]
  expirationSeconds: 3600
  request: ` + base64.StdEncoding.EncodeToString([]byte(encode("CERTIFICATE REQUEST", request)))
}

func TestSigningRequests(t *testing.T) {
	t.Parallel()
	object := newSigningRequest(t)
	issued := base64.StdEncoding.EncodeToString([]byte(newCertificate(t, time.Hour)))
	const approved = "status: {conditions: [{type: Approved, status: 'True', reason: Trusted, " +
		"lastUpdateTime: '2026-01-02T03:04:05Z', lastTransitionTime: '2026-01-02T03:04:05Z'}]}"
	builtintest.CheckWrites(t, definitions(), map[string]builtintest.Write{
		"create sets the user and drops the status": {
			Endpoint: "certificatesigningrequests", Object: object, User: "jane",
			With: "{spec: {username: admin, groups: [system:masters]}, " +
				"status: {conditions: [{type: Approved, status: 'True'}]}}",
			Want: map[string]string{"spec.username": "jane", "spec.groups": "", "status": "{}"},
		},
		"requests are validated": {
			Endpoint: "certificatesigningrequests", Object: object,
			With: "spec: {request: eA==, signerName: everything, expirationSeconds: 60}",
			Errors: []string{
				`spec.request: Invalid value: "eA==": PEM block type must be CERTIFICATE REQUEST`,
				`spec.signerName: Invalid value: "everything": must be a fully qualified domain and path of the form ` +
					"'example.com/signer-name'",
				"spec.expirationSeconds: Invalid value: 60: may not specify a duration less than 600 seconds (10 minutes)",
			},
		},
		"an update changes only metadata": {
			Endpoint: "certificatesigningrequests", Object: object,
			Update: "{metadata: {labels: {a: b}}, spec: {signerName: example.com/other}, " +
				"status: {conditions: [{type: Approved, status: 'True'}]}}",
			Want: map[string]string{
				"metadata.labels.a": "b", "spec.signerName": "kubernetes.io/kube-apiserver-client", "status": "{}",
			},
		},
		"only approval approves": {
			Endpoint: "certificatesigningrequests/status", Object: object, Update: approved,
			Errors: []string{
				"status.conditions: Forbidden: updates may not add a condition of type \"Approved\"",
			},
		},
		"approval changes only the conditions": {
			Endpoint: "certificatesigningrequests/approval", Object: object,
			Update: "{spec: {signerName: example.com/other}, status: {certificate: " + issued +
				", conditions: [{type: Approved, status: 'True', reason: Trusted}]}}",
			Want: map[string]string{
				"spec.signerName": "kubernetes.io/kube-apiserver-client", "status.certificate": "",
				"status.conditions[0].type": "Approved", "status.conditions[0].reason": "Trusted",
			},
		},
		"an approval is final": {
			Endpoint: "certificatesigningrequests/approval", Object: object, Stored: approved,
			Update: "status: {conditions: []}",
			Errors: []string{
				"status.conditions: Forbidden: updates may not remove a condition of type \"Approved\"",
			},
		},
		"a request is approved or denied": {
			Endpoint: "certificatesigningrequests/approval", Object: object, Stored: approved,
			Update: "status: {conditions: [{type: Approved, status: 'True'}, {type: Denied, status: 'True'}]}",
			Errors: []string{
				"status.conditions: Invalid value: " +
					`"{conditions[{\"type\": \"Approved\"}], conditions[{\"type\": \"Denied\"}]}": ` +
					"must specify at most one of: `conditions[{\"type\": \"Approved\"}]`, `conditions[{\"type\": \"Denied\"}]`",
			},
		},
		"a status update issues the certificate": {
			Endpoint: "certificatesigningrequests/status", Object: object, Stored: approved,
			Update: "{spec: {signerName: example.com/other}, status: {certificate: " + issued + "}}",
			Want: map[string]string{
				"spec.signerName": "kubernetes.io/kube-apiserver-client", "status.certificate": issued,
			},
		},
		"a certificate is PEM": {
			Endpoint: "certificatesigningrequests/status", Object: object, Stored: approved,
			Update: "status: {certificate: eA==}",
			Errors: []string{
				`status.certificate: Invalid value: "<certificate data>": must contain at least one CERTIFICATE PEM block`,
			},
		},
	})
}

func TestTrustBundles(t *testing.T) {
	bundle := `
apiVersion: certificates.k8s.io/v1beta1
kind: ClusterTrustBundle
metadata: {name: "example.com:pods:main"}
spec: {signerName: example.com/pods, trustBundle: "` + strings.ReplaceAll(newCertificate(t, time.Hour), "\n", `\n`) + `"}`
	builtintest.CheckWrites(t, definitions(), map[string]builtintest.Write{
		"a bundle is valid": {
			Endpoint: "clustertrustbundles", Object: bundle, Want: map[string]string{"spec.signerName": "example.com/pods"},
		},
		"the name has the signer": {
			Endpoint: "clustertrustbundles", Object: bundle, With: "metadata: {name: other}",
			Errors: []string{
				`metadata.name: Invalid value: "other": ClusterTrustBundle for signerName example.com/pods must be named with ` +
					"prefix example.com:pods:",
			},
		},
		"a bundle has certificates": {
			Endpoint: "clustertrustbundles", Object: bundle, With: "spec: {trustBundle: x}",
			Errors: []string{
				`spec.trustBundle: Invalid value: "<value omitted>": at least one trust anchor must be provided`,
			},
		},
		"the signer is immutable": {
			Endpoint: "clustertrustbundles", Object: bundle, Update: "spec: {signerName: example.com/other}",
			Errors: []string{
				`metadata.name: Invalid value: "example.com:pods:main": ClusterTrustBundle for signerName example.com/other must be ` +
					"named with prefix example.com:other:",
				`spec.signerName: Invalid value: "example.com/other": field is immutable`,
			},
		},
	})
}

// TestSelectableFields: signers select the requests for them, and kubelets the requests of their node.
func TestSelectableFields(t *testing.T) {
	metadata := func(name string) string { return `"metadata": {"name": "` + name + `", "namespace": "team"}` }
	for _, test := range []struct {
		plural, kind, object string
		want                 map[string]string
	}{
		{
			"podcertificaterequests", "PodCertificateRequest",
			metadata("web-1") + `, "spec": {"signerName": "example.com/pods", "podName": "web", "nodeName": "one"}`,
			map[string]string{
				"metadata.name": "web-1", "metadata.namespace": "team", "spec.signerName": "example.com/pods",
				"spec.podName": "web", "spec.nodeName": "one",
			},
		},
		{
			"clustertrustbundles", "ClusterTrustBundle",
			`"metadata": {"name": "a"}, "spec": {"signerName": "example.com/pods", "trustBundle": ""}`,
			map[string]string{"metadata.name": "a", "spec.signerName": "example.com/pods"},
		},
	} {
		target := builtintest.FindTarget(t, definitions(), test.plural, "")
		object := builtintest.Decode(t, target,
			`{"apiVersion": "certificates.k8s.io/v1beta1", "kind": "`+test.kind+`", `+test.object+"}")
		set, err := target.Fields(object)
		if err != nil || len(set) != len(test.want) {
			t.Errorf("%s: got %v, %v", test.plural, set, err)
		}
		for field, value := range test.want {
			if set[field] != value {
				t.Errorf("%s: got %s=%q, want %q", test.plural, field, set[field], value)
			}
		}
		if _, err := target.Fields(&runtime.Unknown{}); err == nil {
			t.Errorf("%s: an object of another kind has fields", test.plural)
		}
	}
}

// TestPodCertificateRequestsAreSigned: only a client that may sign for the signer of a request updates its status.
func TestPodCertificateRequestsAreSigned(t *testing.T) {
	target := builtintest.FindTarget(t, definitions(), "podcertificaterequests", "")
	strategy := target.Version.Endpoints["status"].Update
	before := builtintest.Decode(t, target, `
apiVersion: certificates.k8s.io/v1beta1
kind: PodCertificateRequest
metadata: {name: web-1, namespace: team, resourceVersion: "1"}
spec: {signerName: example.com/pods}
`).(*api.PodCertificateRequest)
	after := before.DeepCopy()
	after.Spec.SignerName = "example.com/other"
	after.Status.Conditions = []metav1.Condition{{
		Type: api.PodCertificateRequestConditionTypeDenied, Status: metav1.ConditionTrue, Reason: "Unknown",
		LastTransitionTime: metav1.NewTime(now()),
	}}
	for user, want := range map[string]int{"signer": 0, "alice": 1} {
		changed := after.DeepCopy()
		strategy.PrepareForUpdate(t.Context(), changed, before)
		if changed.Spec.SignerName != "example.com/pods" {
			t.Errorf("the status update changes the spec: %+v", changed.Spec)
		}
		errs := strategy.ValidateUpdate(builtintest.WithUser(t.Context(), user), changed, before)
		if len(errs) != want {
			t.Errorf("%s: got the errors %v, want %d", user, errs, want)
		}
	}
}

// TestIssuedCertificatesAreCounted counts certificates that are as long valid as requested, and others.
func TestIssuedCertificatesAreCounted(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	metrics := certificates.NewMetrics(registry)
	target := builtintest.FindTarget(t, definitions(), "certificatesigningrequests", "")
	before := builtintest.Decode(t, target, newSigningRequest(t)).(*api.CertificateSigningRequest)
	for _, valid := range []time.Duration{time.Hour, 24 * time.Hour, time.Hour + time.Minute} {
		after := before.DeepCopy()
		after.Status.Certificate = []byte(newCertificate(t, valid))
		metrics.StatusUpdated(before, after)
		metrics.StatusUpdated(after, after) // it is issued only once
	}
	const want = `
# HELP apiserver_certificates_registry_csr_honored_duration_total [ALPHA] Total number of issued CSRs with a requested duration that was honored, sliced by signer (only kubernetes.io signer names are specifically identified)
# TYPE apiserver_certificates_registry_csr_honored_duration_total counter
apiserver_certificates_registry_csr_honored_duration_total{signerName="kubernetes.io/kube-apiserver-client"} 2
# HELP apiserver_certificates_registry_csr_requested_duration_total [ALPHA] Total number of issued CSRs with a requested duration, sliced by signer (only kubernetes.io signer names are specifically identified)
# TYPE apiserver_certificates_registry_csr_requested_duration_total counter
apiserver_certificates_registry_csr_requested_duration_total{signerName="kubernetes.io/kube-apiserver-client"} 3
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}
