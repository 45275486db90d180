package controllers_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	testingclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"quorate.dev/apiserver/controllers"
	"quorate.dev/test/upstream"
)

// flaky fails discovery requests while fails is set.
type flaky struct {
	http.RoundTripper
	fails *atomic.Bool
}

func (f flaky) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.HasPrefix(r.URL.Path, "/api") && strings.Count(r.URL.Path, "/") == 1 && f.fails.Load() {
		return nil, errors.New("discovery fails")
	}
	return f.RoundTripper.RoundTrip(r)
}

func TestCheck(t *testing.T) {
	for _, names := range [][]string{nil, {controllers.All}, controllers.Names()} {
		if err := controllers.Check(names); err != nil {
			t.Errorf("%v: %v", names, err)
		}
	}
	if err := controllers.Check([]string{controllers.Namespace, "deployment"}); err == nil ||
		!strings.Contains(err.Error(), `"deployment"`) {
		t.Errorf("an unknown controller: %v", err)
	}
}

// startServer starts a server that runs no controllers.
func startServer(t *testing.T) (*upstream.APIServer, *kubernetes.Clientset) {
	t.Helper()
	if testing.Short() {
		t.Skip("runs the server")
	}
	directory := t.TempDir()
	pki, err := upstream.NewPKI(directory)
	if err != nil {
		t.Fatal(err)
	}
	server, err := upstream.StartQuorate(t.Context(), upstream.Options{PKI: pki, Directory: directory})
	if err != nil {
		t.Fatal(err)
	}
	server.StopAfter(t)
	client, err := kubernetes.NewForConfig(server.Admin)
	if err != nil {
		t.Fatal(err)
	}
	return server, client
}

// run runs controllers until the test ends or the returned function is called.
func run(
	t *testing.T, config *rest.Config, client kubernetes.Interface, identity string, enabled ...string,
) (stop func()) {
	t.Helper()
	return runWith(t, controllers.Options{
		Enabled: enabled, Client: config, Identity: identity, Clock: clock.RealClock{}, Logger: logr.Discard(),
		Informers:        func() informers.SharedInformerFactory { return informers.NewSharedInformerFactory(client, 0) },
		AwaitDefinitions: func(context.Context) error { return nil },
	})
}

func runWith(t *testing.T, options controllers.Options) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- controllers.Run(ctx, options) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// TestNamespacesAwaitDefinitions deletes a namespace while this replica does not know all custom resources. The
// namespace stays until it does.
func TestNamespacesAwaitDefinitions(t *testing.T) {
	upstream.NeedsTime(t)
	t.Parallel()
	server, client := startServer(t)
	awaited, known := make(chan struct{}), make(chan struct{})
	runWith(t, controllers.Options{
		Enabled: []string{controllers.Namespace}, Client: server.Admin, Identity: "a", Clock: clock.RealClock{},
		Logger:    logr.Discard(),
		Informers: func() informers.SharedInformerFactory { return informers.NewSharedInformerFactory(client, 0) },
		AwaitDefinitions: func(ctx context.Context) error {
			select {
			case awaited <- struct{}{}:
			case <-known:
				return nil
			case <-ctx.Done():
			}
			return errors.New("the definitions are unknown")
		},
	})
	newNamespace(t, client, "waits")
	must(t, client.CoreV1().Namespaces().Delete(t.Context(), "waits", metav1.DeleteOptions{}))
	for range 3 { // the start of the controller, and two attempts to delete the namespace: the first has failed
		<-awaited
		if _, err := client.CoreV1().Namespaces().Get(t.Context(), "waits", metav1.GetOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	close(known)
	eventually(t, "the namespace is deleted", func() bool {
		_, err := client.CoreV1().Namespaces().Get(t.Context(), "waits", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

// holds returns a condition: that a replica, or no replica (""), holds the lease.
func holds(t *testing.T, client kubernetes.Interface, identity string) func() bool {
	return func() bool {
		lease, err := client.CoordinationV1().Leases(metav1.NamespaceSystem).Get(t.Context(),
			"quorate-controllers", metav1.GetOptions{})
		return err == nil && ptr.Deref(lease.Spec.HolderIdentity, "unset") == identity
	}
}

// TestLeaseIsReleasedWhenControllersFailToStart: another replica can acquire it, and this one retries later.
func TestLeaseIsReleasedWhenControllersFailToStart(t *testing.T) {
	t.Parallel()
	server, client := startServer(t)
	var fails atomic.Bool
	fails.Store(true)
	config := rest.CopyConfig(server.Admin)
	config.Wrap(func(inner http.RoundTripper) http.RoundTripper { return flaky{inner, &fails} })
	fake := testingclock.NewFakeClock(time.Now())
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		ended <- controllers.Run(ctx, controllers.Options{
			Enabled: []string{controllers.ResourceQuota}, Client: config, Identity: "first", Clock: fake, Logger: logr.Discard(),
			Informers: func() informers.SharedInformerFactory { return informers.NewSharedInformerFactory(client, 0) },
		})
	}()
	eventually(t, "the lease is released", holds(t, client, ""))
	fails.Store(false)
	eventually(t, "the replica pauses", fake.HasWaiters)
	fake.Step(time.Minute)
	eventually(t, "the lease is held again", holds(t, client, "first"))
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if !holds(t, client, "")() {
		t.Error("a stopped replica holds the lease")
	}
}

// TestControllers runs all controllers with a client of the server. Each has an effect on objects that no other
// controller has.
func TestControllers(t *testing.T) {
	upstream.NeedsTime(t)
	t.Parallel()
	server, client := startServer(t)
	run(t, server.Admin, client, "first", controllers.All)
	for name, check := range map[string]func(t *testing.T, client *kubernetes.Clientset){
		controllers.ServiceAccount: defaultServiceAccount, controllers.Namespace: namespaceDeletion,
		controllers.GarbageCollector: garbageCollection, controllers.ResourceQuota: quotaUsage,
		controllers.ClusterRoleAggregation: roleAggregation, controllers.PolicyStatus: policyTypeChecking,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			check(t, client)
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newNamespace(t *testing.T, client *kubernetes.Clientset, name string) {
	t.Helper()
	_, err := client.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	must(t, err)
}

func newConfigMap(
	t *testing.T, client *kubernetes.Clientset, namespace, name string, owners ...metav1.OwnerReference,
) *corev1.ConfigMap {
	t.Helper()
	created, err := client.CoreV1().ConfigMaps(namespace).Create(t.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: owners}}, metav1.CreateOptions{})
	must(t, err)
	return created
}

func defaultServiceAccount(t *testing.T, client *kubernetes.Clientset) {
	newNamespace(t, client, "accounts")
	eventually(t, "the namespace has a default service account", func() bool {
		_, err := client.CoreV1().ServiceAccounts("accounts").Get(t.Context(), "default", metav1.GetOptions{})
		return err == nil
	})
}

func namespaceDeletion(t *testing.T, client *kubernetes.Clientset) {
	newNamespace(t, client, "deleted")
	newConfigMap(t, client, "deleted", "content")
	must(t, client.CoreV1().Namespaces().Delete(t.Context(), "deleted", metav1.DeleteOptions{}))
	eventually(t, "the namespace is deleted", func() bool {
		_, err := client.CoreV1().Namespaces().Get(t.Context(), "deleted", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	_, err := client.CoreV1().ConfigMaps("deleted").Get(t.Context(), "content", metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("the content outlives the namespace: %v", err)
	}
}

func garbageCollection(t *testing.T, client *kubernetes.Clientset) {
	owner := newConfigMap(t, client, "default", "owner")
	newConfigMap(t, client, "default", "dependent", metav1.OwnerReference{
		APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID,
	})
	must(t, client.CoreV1().ConfigMaps("default").Delete(t.Context(), owner.Name, metav1.DeleteOptions{}))
	eventually(t, "the dependent is deleted", func() bool {
		_, err := client.CoreV1().ConfigMaps("default").Get(t.Context(), "dependent", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

func quotaUsage(t *testing.T, client *kubernetes.Clientset) {
	newNamespace(t, client, "limited")
	newConfigMap(t, client, "limited", "one")
	hard := corev1.ResourceList{corev1.ResourceConfigMaps: resource.MustParse("5")}
	_, err := client.CoreV1().ResourceQuotas("limited").Create(t.Context(), &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "quota"}, Spec: corev1.ResourceQuotaSpec{Hard: hard},
	}, metav1.CreateOptions{})
	must(t, err)
	eventually(t, "the usage is counted", func() bool {
		quota, err := client.CoreV1().ResourceQuotas("limited").Get(t.Context(), "quota", metav1.GetOptions{})
		return err == nil && quota.Status.Used.Name(corev1.ResourceConfigMaps, resource.DecimalSI).Value() == 1
	})
}

func roleAggregation(t *testing.T, client *kubernetes.Clientset) {
	selected := map[string]string{"aggregate": "yes"}
	_, err := client.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{
		ObjectMeta:      metav1.ObjectMeta{Name: "whole"},
		AggregationRule: &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: selected}}},
	}, metav1.CreateOptions{})
	must(t, err)
	rule := rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods"}}
	_, err = client.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "part", Labels: selected}, Rules: []rbacv1.PolicyRule{rule},
	}, metav1.CreateOptions{})
	must(t, err)
	eventually(t, "the role has the rules of the selected role", func() bool {
		role, err := client.RbacV1().ClusterRoles().Get(t.Context(), "whole", metav1.GetOptions{})
		return err == nil && equality.Semantic.DeepEqual(role.Rules, []rbacv1.PolicyRule{rule})
	})
}

func policyTypeChecking(t *testing.T, client *kubernetes.Clientset) {
	policies := client.AdmissionregistrationV1().ValidatingAdmissionPolicies()
	_, err := policies.Create(t.Context(), &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "misspelled"},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionregistrationv1.MatchResources{
				ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
					RuleWithOperations: admissionregistrationv1.RuleWithOperations{
						Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
						Rule: admissionregistrationv1.Rule{
							APIGroups: []string{"apps"}, APIVersions: []string{"v1"}, Resources: []string{"deployments"},
						},
					},
				}},
			},
			Validations: []admissionregistrationv1.Validation{{Expression: "object.spec.replicass < 5"}},
		},
	}, metav1.CreateOptions{})
	must(t, err)
	eventually(t, "the status names the field that does not exist", func() bool {
		policy, err := policies.Get(t.Context(), "misspelled", metav1.GetOptions{})
		return err == nil && policy.Status.TypeChecking != nil && len(policy.Status.TypeChecking.ExpressionWarnings) == 1 &&
			strings.Contains(policy.Status.TypeChecking.ExpressionWarnings[0].Warning, "undefined field 'replicass'")
	})
}

// observed reports requests for the lease.
type observed struct {
	http.RoundTripper
	requests *atomic.Int64
}

func (o observed) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := o.RoundTripper.RoundTrip(r)
	if strings.HasSuffix(r.URL.Path, "/quorate-controllers") {
		o.requests.Add(1)
	}
	return response, err
}

// TestOneReplicaLeads: a replica that is not the leader leaves the lease alone when it stops, and acquires it when the
// leader stops.
func TestOneReplicaLeads(t *testing.T) {
	t.Parallel()
	server, client := startServer(t)
	stopFirst := run(t, server.Admin, client, "first", controllers.ServiceAccount)
	eventually(t, "the first replica leads", holds(t, client, "first"))
	var requests atomic.Int64
	config := rest.CopyConfig(server.Admin)
	config.Wrap(func(inner http.RoundTripper) http.RoundTripper { return observed{inner, &requests} })
	stopSecond := run(t, config, client, "second", controllers.ServiceAccount)
	eventually(t, "the second replica has seen the lease", func() bool { return requests.Load() > 0 })
	stopSecond()
	if !holds(t, client, "first")() {
		t.Error("the first replica has lost the lease when the second one stopped")
	}
	run(t, server.Admin, client, "third", controllers.ServiceAccount)
	stopFirst()
	eventually(t, "the third replica leads", holds(t, client, "third"))
}

// TestClientErrors: a client that cannot be created is an error of the process, because retries would not help.
func TestClientErrors(t *testing.T) {
	err := controllers.Run(t.Context(), controllers.Options{Client: &rest.Config{Host: "https://[::1"}})
	if err == nil || !strings.Contains(err.Error(), "create the client of the controllers") {
		t.Errorf("got %v", err)
	}
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, time.Minute, true,
		func(context.Context) (bool, error) { return holds(), nil })
	if err != nil {
		t.Fatalf("timed out waiting: %s", what)
	}
}
