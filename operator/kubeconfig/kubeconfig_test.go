package kubeconfig

import (
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/cert"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/pki"
)

var (
	start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	key   = client.ObjectKey{Namespace: "ns", Name: "ci"}
)

// fixture is a hosting cluster with the ApiServerKubeconfig ci for the ApiServerCluster demo.
type fixture struct {
	t          *testing.T
	client     client.Client
	clock      *clocktesting.FakeClock
	reconciler *Reconciler
	cluster    *v1alpha1.ApiServerCluster
	clients    pki.Bundle
	events     []string
}

// Eventf implements events.EventRecorder.
func (f *fixture) Eventf(_, _ runtime.Object, _, reason, _, note string, args ...any) {
	f.events = append(f.events, reason+": "+fmt.Sprintf(note, args...))
}

func newFixture(t *testing.T) *fixture {
	s := runtime.NewScheme()
	check(t, scheme.AddToScheme(s))
	check(t, v1alpha1.AddToScheme(s))
	f := &fixture{t: t, clock: clocktesting.NewFakeClock(start), client: fake.NewClientBuilder().WithScheme(s).
		WithStatusSubresource(&v1alpha1.ApiServerKubeconfig{}, &v1alpha1.ApiServerCluster{}).Build()}
	f.reconciler = &Reconciler{Client: f.client, Reader: f.client, Recorder: f, Clock: f.clock, Retries: NewRetries()}
	check(t, f.client.Create(t.Context(), &v1alpha1.ApiServerKubeconfig{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "ci", UID: "ci"},
		Spec: v1alpha1.ApiServerKubeconfigSpec{
			ClusterRef: corev1.LocalObjectReference{Name: "demo"}, User: "ci-bot", Groups: []string{"deployers", "testers"},
			Validity: &metav1.Duration{Duration: 3 * time.Hour},
		},
	}))
	return f
}

// createCluster creates demo with its certificates.
func (f *fixture) createCluster() {
	f.cluster = &v1alpha1.ApiServerCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "demo", UID: "demo"}}
	f.cluster.Status.Endpoint = "https://demo.ns.svc:6443"
	check(f.t, f.client.Create(f.t.Context(), f.cluster))
	check(f.t, f.client.Status().Update(f.t.Context(), f.cluster))
	signer, err := pki.NewAuthority("clients", pki.AuthorityLifetime, start)
	check(f.t, err)
	f.clients = pki.Bundle{Signer: signer}
	f.store(desired.AuthoritySecret(f.cluster, desired.ClientDomain, f.clients))
	f.store(desired.LeafSecret(f.cluster, desired.ServingSecret, pki.Pair{}, signer.Certificate))
}

// store creates or updates a Secret of demo.
func (f *fixture) store(secret *corev1.Secret) {
	check(f.t, controllerutil.SetControllerReference(f.cluster, secret, f.client.Scheme()))
	if err := f.client.Create(f.t.Context(), secret); err != nil {
		check(f.t, f.client.Update(f.t.Context(), secret))
	}
}

// reconcile returns the interval until the next reconciliation and the condition Ready.
func (f *fixture) reconcile() (time.Duration, metav1.Condition) {
	f.t.Helper()
	result, err := f.reconciler.Reconcile(f.t.Context(), ctrl.Request{NamespacedName: key})
	check(f.t, err)
	kubeconfig := &v1alpha1.ApiServerKubeconfig{}
	check(f.t, f.client.Get(f.t.Context(), key, kubeconfig))
	ready := meta.FindStatusCondition(kubeconfig.Status.Conditions, v1alpha1.KubeconfigReady)
	if ready == nil {
		f.t.Fatal("got no condition Ready")
	}
	return result.RequeueAfter, *ready
}

func (f *fixture) secret() *corev1.Secret {
	f.t.Helper()
	secret := &corev1.Secret{}
	check(f.t, f.client.Get(f.t.Context(), client.ObjectKey{Namespace: "ns", Name: "ci-kubeconfig"}, secret))
	return secret
}

// accepted reports whether servers that trust the given authorities accept the published certificate.
func (f *fixture) accepted(trusted []byte) bool {
	f.t.Helper()
	chain, err := cert.ParseCertsPEM(f.secret().Data[corev1.TLSCertKey])
	check(f.t, err)
	options := x509.VerifyOptions{
		Roots: x509.NewCertPool(), Intermediates: x509.NewCertPool(), CurrentTime: f.clock.Now(),
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	options.Roots.AppendCertsFromPEM(trusted)
	for _, intermediate := range chain[1:] {
		options.Intermediates.AddCert(intermediate)
	}
	_, err = chain[0].Verify(options)
	return err == nil
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestIssueRenewAndRemove(t *testing.T) {
	f := newFixture(t)
	if wait, ready := f.reconcile(); ready.Reason != "ClusterNotFound" || wait != retryInterval {
		t.Errorf("without a cluster: got %+v after %s", ready, wait)
	}
	f.createCluster()
	wait, ready := f.reconcile()
	if ready.Status != metav1.ConditionTrue || wait != resyncInterval {
		t.Errorf("got %+v, requeue after %s, want True and %s", ready, wait, resyncInterval)
	}
	first := f.secret()
	config, err := clientcmd.RESTConfigFromKubeConfig(first.Data[desired.KubeconfigKey])
	check(t, err)
	if config.Host != "https://demo.ns.svc:6443" || string(config.CAData) != string(f.clients.Signer.Certificate) {
		t.Errorf("got kubeconfig %+v", config)
	}
	chain, err := cert.ParseCertsPEM(config.CertData)
	check(t, err)
	if subject := chain[0].Subject; subject.CommonName != "ci-bot" ||
		!slices.Equal(slices.Sorted(slices.Values(subject.Organization)), []string{"deployers", "testers"}) ||
		!chain[0].NotAfter.Equal(start.Add(3*time.Hour)) {
		t.Errorf("got subject %s until %s", subject, chain[0].NotAfter)
	}
	if f.reconcile(); f.secret().ResourceVersion != first.ResourceVersion || len(f.events) != 1 {
		t.Errorf("a second reconciliation wrote the Secret, or reported: %v", f.events)
	}
	f.clock.Step(2 * time.Hour)
	if f.reconcile(); string(f.secret().Data[corev1.TLSCertKey]) == string(first.Data[corev1.TLSCertKey]) {
		t.Error("not renewed with a third of the lifetime remaining")
	}
	check(t, f.client.Delete(t.Context(), &v1alpha1.ApiServerKubeconfig{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "ci"},
	}))
	_, err = f.reconciler.Reconcile(t.Context(), ctrl.Request{NamespacedName: key})
	check(t, err)
	if err := f.client.Get(t.Context(), client.ObjectKeyFromObject(first), &corev1.Secret{}); !apierrors.IsNotFound(err) {
		t.Errorf("got %v for the Secret of a deleted kubeconfig, want NotFound", err)
	}
}

// TestFollowsARotation checks that in each stage the certificate is accepted by servers of that stage and of the one
// before.
func TestFollowsARotation(t *testing.T) {
	f := newFixture(t)
	f.createCluster()
	f.reconcile()
	before := f.clients
	next, err := pki.NewAuthority("clients@2", pki.AuthorityLifetime, start)
	check(t, err)
	both, err := before.Add(next, start)
	check(t, err)
	for i, stage := range []pki.Bundle{both, both.Promote(), both.Promote().Drop()} {
		f.store(desired.AuthoritySecret(f.cluster, desired.ClientDomain, stage))
		f.store(desired.LeafSecret(f.cluster, desired.ServingSecret, pki.Pair{}, stage.Trusted()))
		if current := desired.KubeconfigCurrent(f.secret(), stage.Trusted(), stage); current {
			t.Errorf("stage %d: the kubeconfig of the stage before counts as current", i)
		}
		f.reconcile()
		if !f.accepted(stage.Trusted()) || !f.accepted(before.Trusted()) {
			t.Errorf("stage %d: the certificate is rejected", i)
		}
		if !desired.KubeconfigCurrent(f.secret(), stage.Trusted(), stage) {
			t.Errorf("stage %d: the kubeconfig does not count as current", i)
		}
		before = stage
	}
	if f.accepted(f.clients.Trusted()) {
		t.Error("the certificate still comes with the cross-signed one after the old authority was dropped")
	}
	if got := strings.Join(f.events, "; "); strings.Count(got, "CertificateIssued") != 2 {
		t.Errorf("got events %s, want two certificates", got)
	}
}

func TestSecretOfAnotherOwnerIsKept(t *testing.T) {
	f := newFixture(t)
	f.createCluster()
	check(t, f.client.Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "ci-kubeconfig"},
	}))
	if _, ready := f.reconcile(); ready.Reason != "SecretConflict" || len(f.secret().Data) != 0 {
		t.Errorf("got %+v and data %v, want a conflict", ready, f.secret().Data)
	}
}
