package kubeconfig

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
)

// kubeconfig returns the ApiServerKubeconfig as it is stored.
func (f *fixture) kubeconfig() *v1alpha1.ApiServerKubeconfig {
	f.t.Helper()
	stored := &v1alpha1.ApiServerKubeconfig{}
	check(f.t, f.client.Get(f.t.Context(), key, stored))
	return stored
}

// intercept replaces the client and the reader of the reconciler by the client with interceptors.
func (f *fixture) intercept(funcs interceptor.Funcs) {
	f.t.Helper()
	raw, ok := f.client.(client.WithWatch)
	if !ok {
		f.t.Fatal("the fake client cannot watch")
	}
	intercepted := interceptor.NewClient(raw, funcs)
	f.reconciler.Client, f.reconciler.Reader = intercepted, intercepted
}

// delete deletes an object that has a finalizer, so that it only gets a deletion timestamp.
func (f *fixture) delete(object client.Object) {
	f.t.Helper()
	object.SetFinalizers([]string{"example.com/keep"})
	check(f.t, f.client.Update(f.t.Context(), object))
	check(f.t, f.client.Delete(f.t.Context(), object))
}

// TestWaitsForTheCluster checks the condition while a cluster cannot issue certificates. A kubeconfig that was issued
// before stays usable, and the next certificate is issued without an action of the user.
func TestWaitsForTheCluster(t *testing.T) {
	orphan := func(f *fixture, suffix string) {
		secret := &corev1.Secret{}
		check(f.t, f.client.Get(f.t.Context(), client.ObjectKey{Namespace: "ns", Name: "demo-" + suffix}, secret))
		secret.OwnerReferences[0].UID = "former" // a cluster of the same name was deleted
		check(f.t, f.client.Update(f.t.Context(), secret))
	}
	for name, c := range map[string]struct {
		change          func(*fixture)
		reason, message string
	}{
		"no endpoint": {func(f *fixture) {
			f.cluster.Status.Endpoint = ""
			check(f.t, f.client.Status().Update(f.t.Context(), f.cluster))
		}, "ClusterNotReady", "ApiServerCluster demo has no endpoint yet"},
		"authority of a former cluster": {func(f *fixture) { orphan(f, desired.ClientDomain) },
			"ClusterNotReady", "ApiServerCluster demo has no certificates yet"},
		"certificate of a former cluster": {func(f *fixture) { orphan(f, desired.ServingSecret) },
			"ClusterNotReady", "ApiServerCluster demo has no certificates yet"},
		"no certificates": {func(f *fixture) {
			check(f.t, f.client.DeleteAllOf(f.t.Context(), &corev1.Secret{}, client.InNamespace("ns"),
				client.MatchingLabels{desired.NameLabel: "quorate", "app.kubernetes.io/instance": "demo"}))
		}, "ClusterNotReady", "ApiServerCluster demo has no certificates yet"},
		"cluster is deleted": {func(f *fixture) { f.delete(f.cluster) },
			"ClusterNotFound", "ApiServerCluster demo is being deleted"},
		"deletion of the cluster is refused": {func(f *fixture) {
			meta.SetStatusCondition(&f.cluster.Status.Conditions, metav1.Condition{
				Type: v1alpha1.Deleting, Status: metav1.ConditionFalse, Reason: "Protected",
			})
			check(f.t, f.client.Status().Update(f.t.Context(), f.cluster))
			f.delete(f.cluster)
		}, "Issued", "The Secret has a valid kubeconfig"},
		"no endpoint, but a server in the spec": {func(f *fixture) {
			stored := f.kubeconfig()
			stored.Spec.Server = "https://vpn.example.org"
			check(f.t, f.client.Update(f.t.Context(), stored))
			f.cluster.Status.Endpoint = ""
			check(f.t, f.client.Status().Update(f.t.Context(), f.cluster))
		}, "Issued", "The Secret has a valid kubeconfig"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.createCluster()
			f.reconcile()
			issued := f.secret().Data[corev1.TLSCertKey]
			c.change(f)
			wait, ready := f.reconcile()
			if ready.Reason != c.reason || ready.Message != c.message {
				t.Errorf("got %s: %s, want %s: %s", ready.Reason, ready.Message, c.reason, c.message)
			}
			if isIssued := c.reason == "Issued"; isIssued != (ready.Status == metav1.ConditionTrue) ||
				isIssued != (wait == resyncInterval) || !isIssued && wait != retryInterval {
				t.Errorf("got status %s, requeue after %s", ready.Status, wait)
			}
			if string(f.secret().Data[corev1.TLSCertKey]) != string(issued) {
				t.Error("the certificate that was issued before is missing")
			}
		})
	}
}

// TestServerOfTheSpec checks that a kubeconfig connects to the URL in its spec, and follows changes without another
// certificate.
func TestServerOfTheSpec(t *testing.T) {
	f := newFixture(t)
	f.createCluster()
	f.reconcile()
	before := f.secret()
	stored := f.kubeconfig()
	stored.Spec.Server, stored.Spec.TLSServerName = "https://vpn.example.org", "demo.ns.svc"
	check(t, f.client.Update(t.Context(), stored))
	f.reconcile()
	after := f.secret()
	config, err := clientcmd.RESTConfigFromKubeConfig(after.Data[desired.KubeconfigKey])
	check(t, err)
	if config.Host != "https://vpn.example.org" || config.ServerName != "demo.ns.svc" {
		t.Errorf("got URL %s, verified for %s", config.Host, config.ServerName)
	}
	if string(after.Data[corev1.TLSCertKey]) != string(before.Data[corev1.TLSCertKey]) || len(f.events) != 1 {
		t.Errorf("another certificate was issued: %q", f.events)
	}
}

// TestErrorsAreReportedAndRetried checks that errors are in the condition and lead to another attempt.
func TestErrorsAreReportedAndRetried(t *testing.T) {
	damaged := func(f *fixture) {
		secret := desired.AuthoritySecret(f.cluster, desired.ClientDomain, f.clients)
		secret.Data[corev1.TLSCertKey] = []byte("PEM")
		f.store(secret)
	}
	unreadable := func(name string) func(*fixture) {
		return func(f *fixture) {
			f.intercept(interceptor.Funcs{Get: func(
				ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption,
			) error {
				if key.Name == name {
					return errors.New("timed out")
				}
				return c.Get(ctx, key, o, options...)
			}})
		}
	}
	for name, c := range map[string]struct {
		change func(*fixture)
		want   string // prefix
	}{
		"damaged authority":      {damaged, "authority client-ca: "},
		"unreadable cluster":     {unreadable("demo"), "read ApiServerCluster demo: timed out"},
		"unreadable authority":   {unreadable("demo-client-ca"), "read Secret demo-client-ca: timed out"},
		"unreadable certificate": {unreadable("demo-serving"), "read Secret demo-serving: timed out"},
		"unreadable kubeconfig":  {unreadable("ci-kubeconfig"), "read Secret ci-kubeconfig: timed out"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.createCluster()
			f.reconcile()
			c.change(f)
			_, err := f.reconciler.Reconcile(t.Context(), ctrl.Request{NamespacedName: key})
			if err == nil || !strings.HasPrefix(err.Error(), c.want) {
				t.Fatalf("got %v, want %s", err, c.want)
			}
			ready := meta.FindStatusCondition(f.kubeconfig().Status.Conditions, v1alpha1.KubeconfigReady)
			if ready.Status != metav1.ConditionFalse || ready.Reason != "ReconcileFailed" || ready.Message != err.Error() {
				t.Errorf("got %+v", ready)
			}
			if len(f.secret().Data[corev1.TLSCertKey]) == 0 {
				t.Error("the certificate that was issued before is missing")
			}
		})
	}
}

// TestConcurrentChange checks that a change of the Secret between a read and a write is not overwritten, and that the
// next attempt succeeds.
func TestConcurrentChange(t *testing.T) {
	f := newFixture(t)
	f.createCluster()
	f.reconcile()
	secret := f.secret()
	secret.Data[desired.KubeconfigKey] = []byte("edited")
	check(t, f.client.Update(t.Context(), secret))
	conflicts := 1
	f.intercept(interceptor.Funcs{Update: func(
		ctx context.Context, c client.WithWatch, o client.Object, options ...client.UpdateOption,
	) error {
		if conflicts > 0 {
			conflicts--
			return apierrors.NewConflict(schema.GroupResource{Resource: "secrets"}, o.GetName(), errors.New("modified"))
		}
		return c.Update(ctx, o, options...)
	}})
	if wait, ready := f.reconcile(); wait <= 0 || wait > retryInterval || ready.Reason != "Issued" {
		t.Errorf("after a conflict: got %+v, requeue after %s", ready, wait)
	}
	if wait, _ := f.reconcile(); wait != resyncInterval || string(f.secret().Data[desired.KubeconfigKey]) == "edited" {
		t.Errorf("the Secret was not written again; requeue after %s", wait)
	}
}

// TestRemovalKeepsTheSecretOfAnotherOwner checks that the deletion of an ApiServerKubeconfig deletes only its own
// Secret, and that it stays until the Secret is deleted.
func TestRemovalKeepsTheSecretOfAnotherOwner(t *testing.T) {
	remove := func(f *fixture) error {
		check(f.t, f.client.Delete(f.t.Context(), f.kubeconfig()))
		_, err := f.reconciler.Reconcile(f.t.Context(), ctrl.Request{NamespacedName: key})
		return err
	}
	t.Run("another owner", func(t *testing.T) {
		f := newFixture(t)
		f.createCluster()
		check(t, f.client.Create(t.Context(), &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "ci-kubeconfig"},
		}))
		f.reconcile()
		check(t, remove(f))
		f.secret()
		if err := f.client.Get(t.Context(), key, &v1alpha1.ApiServerKubeconfig{}); !apierrors.IsNotFound(err) {
			t.Errorf("got %v, want NotFound", err)
		}
	})
	t.Run("the Secret cannot be deleted", func(t *testing.T) {
		f := newFixture(t)
		f.createCluster()
		f.reconcile()
		f.intercept(interceptor.Funcs{Delete: func(
			context.Context, client.WithWatch, client.Object, ...client.DeleteOption,
		) error {
			return errors.New("timed out")
		}})
		if err := remove(f); err == nil || err.Error() != "delete Secret ci-kubeconfig: timed out" {
			t.Errorf("got %v", err)
		}
		if stored := f.kubeconfig(); !slices.Contains(stored.Finalizers, finalizer) {
			t.Errorf("got finalizers %q", stored.Finalizers)
		}
	})
	t.Run("the finalizer of another controller", func(t *testing.T) {
		f := newFixture(t)
		stored := f.kubeconfig()
		f.delete(stored)
		_, err := f.reconciler.Reconcile(t.Context(), ctrl.Request{NamespacedName: key})
		check(t, err)
		if got := f.kubeconfig().Finalizers; !slices.Equal(got, []string{"example.com/keep"}) {
			t.Errorf("got finalizers %q", got)
		}
	})
}

// TestSecretsReconcileKubeconfigs checks which kubeconfigs are reconciled when a Secret of a cluster changes. Without a
// request, a kubeconfig would trust an authority that was replaced until the next resync.
func TestSecretsReconcileKubeconfigs(t *testing.T) {
	f := newFixture(t)
	for _, other := range []struct{ namespace, name, cluster string }{
		{"ns", "another", "demo"}, {"ns", "of-another-cluster", "demo-2"}, {"elsewhere", "ci", "demo"},
	} {
		check(t, f.client.Create(t.Context(), &v1alpha1.ApiServerKubeconfig{
			ObjectMeta: metav1.ObjectMeta{Namespace: other.namespace, Name: other.name},
			Spec: v1alpha1.ApiServerKubeconfigSpec{
				ClusterRef: corev1.LocalObjectReference{Name: other.cluster}, User: "x",
			},
		}))
	}
	for _, test := range []struct{ namespace, name, cluster, want string }{
		{"ns", "demo-client-ca", "demo", "ns/another ns/ci"}, {"ns", "demo-serving", "demo", "ns/another ns/ci"},
		{"ns", "demo-2-serving", "demo-2", "ns/of-another-cluster"}, {"elsewhere", "demo-serving", "demo", "elsewhere/ci"},
		{"ns", "demo-admin", "demo", ""}, {"ns", "demo-serving", "", ""}, {"ns", "-serving", "", ""},
		{"ns", "demo-2-serving", "demo", ""}, // a copied label
	} {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
			Namespace: test.namespace, Name: test.name, Labels: map[string]string{desired.ClusterLabel: test.cluster},
		}}
		var got []string
		for _, request := range f.reconciler.kubeconfigsOfSecret(t.Context(), secret) {
			got = append(got, request.String())
		}
		slices.Sort(got)
		if text := strings.Join(got, " "); text != test.want {
			t.Errorf("%+v: got %q", test, text)
		}
	}
}
