// Package ownedtest simulates the hosting cluster of an ApiServerCluster for tests of single steps: objects are stored
// by a fake client, events are recorded as text, and requests can be made to fail.
package ownedtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/reconcile/owned"
)

// Now returns the time at which tests begin.
func Now() time.Time { return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC) }

// ErrUnavailable is the error of requests that FailEach makes fail.
var ErrUnavailable = errors.New("the API server is unavailable")

// Host is a simulated hosting cluster. Its Objects are the access of a step. A Host is used by one goroutine.
type Host struct {
	owned.Objects
	// API is the client of the test. Its requests are not intercepted.
	API client.WithWatch
	// Refuse returns the error with which a request of a step fails, or nil. A request is described by its verb, the kind
	// of its object and the name of the object, such as "create Secret demo-admin". A list has no name, and a patch of a
	// status has the verb "status".
	Refuse func(request string) error

	t      testing.TB
	events []string
}

// NewScheme returns a scheme with all groups that steps read or write. It has no others, because the fake client goes
// through all kinds of the scheme at each write.
func NewScheme(t testing.TB) *runtime.Scheme {
	t.Helper()
	all := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, appsv1.AddToScheme, policyv1.AddToScheme, networkingv1.AddToScheme, discoveryv1.AddToScheme,
		rbacv1.AddToScheme, storagev1.AddToScheme, v1alpha1.AddToScheme, apiregistrationv1.AddToScheme,
	} {
		if err := add(all); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// NewHost returns a hosting cluster with some objects.
func NewHost(t testing.TB, objects ...client.Object) *Host {
	t.Helper()
	h := &Host{t: t}
	h.API = fake.NewClientBuilder().WithScheme(NewScheme(t)).WithObjects(objects...).
		// the default one takes long to build, for server-side apply
		WithTypeConverters(managedfields.NewDeducedTypeConverter()).
		WithStatusSubresource(
			&v1alpha1.ApiServerCluster{}, &v1alpha1.ApiServerBackup{}, &v1alpha1.ApiServerBackupSchedule{}, &corev1.Pod{},
			&apiregistrationv1.APIService{}).Build()
	intercepted := h.intercepted()
	h.Objects = owned.Objects{Client: intercepted, Reader: intercepted, Recorder: h}
	return h
}

// NewCluster returns the ApiServerCluster demo in namespace ns, with changes.
func NewCluster(changes ...func(*v1alpha1.ApiServerCluster)) *v1alpha1.ApiServerCluster {
	cluster := &v1alpha1.ApiServerCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "demo", UID: "demo"}}
	for _, change := range changes {
		change(cluster)
	}
	return cluster
}

// Bootstrapped is a change of a cluster: its etcd has been bootstrapped.
func Bootstrapped(cluster *v1alpha1.ApiServerCluster) {
	cluster.Status.Membership = &v1alpha1.Membership{Bootstrapped: true}
}

// Context returns the context of the test.
func (h *Host) Context() context.Context { return h.t.Context() }

// Cluster returns the stored ApiServerCluster demo.
func (h *Host) Cluster() *v1alpha1.ApiServerCluster {
	h.t.Helper()
	cluster := &v1alpha1.ApiServerCluster{}
	h.Read("demo", cluster)
	return cluster
}

// Key returns the key of a cluster-scoped object.
func Key(name string) client.ObjectKey { return client.ObjectKey{Name: name} }

// Read reads the object with a name in namespace ns.
func (h *Host) Read(name string, into client.Object) {
	h.t.Helper()
	if !h.Exists(name, into) {
		h.t.Fatalf("%T %s does not exist", into, name)
	}
}

// Exists reads the object with a name in namespace ns, and reports whether it exists.
func (h *Host) Exists(name string, into client.Object) bool {
	h.t.Helper()
	err := h.API.Get(h.t.Context(), client.ObjectKey{Namespace: "ns", Name: name}, into)
	h.Must(client.IgnoreNotFound(err))
	return err == nil
}

// Secret returns the data of a Secret in namespace ns as text.
func (h *Host) Secret(name string) map[string]string {
	h.t.Helper()
	secret, text := &corev1.Secret{}, map[string]string{}
	h.Read(name, secret)
	for key, value := range secret.Data {
		text[key] = string(value)
	}
	return text
}

// Delete deletes the object with a name in namespace ns.
func (h *Host) Delete(name string, object client.Object) {
	h.t.Helper()
	h.Read(name, object)
	h.Must(h.API.Delete(h.t.Context(), object))
}

// CreateAll creates objects.
func (h *Host) CreateAll(objects ...client.Object) {
	h.t.Helper()
	for _, object := range objects {
		h.Must(h.API.Create(h.t.Context(), object))
	}
}

// Change changes the object with a name in namespace ns, and its status.
func Change[T client.Object](h *Host, name string, object T, change func(T)) {
	h.t.Helper()
	h.Read(name, object)
	before, _ := object.DeepCopyObject().(client.Object)
	change(object)
	after, _ := object.DeepCopyObject().(T)
	h.Must(h.API.Patch(h.t.Context(), object, client.MergeFrom(before)))
	after.SetResourceVersion(object.GetResourceVersion())
	h.Must(client.IgnoreNotFound(h.API.Status().Update(h.t.Context(), after)))
}

// Must ends the test if there is an error.
func (h *Host) Must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

// Eventf implements events.EventRecorder.
func (h *Host) Eventf(_, _ runtime.Object, kind, reason, _, note string, args ...any) {
	h.events = append(h.events, fmt.Sprintf("%s %s: %s", kind, reason, fmt.Sprintf(note, args...)))
}

// Events returns the events since the last call, such as "Normal SuccessfulCreate: Created Pod demo-0".
func (h *Host) Events() []string {
	recorded := h.events
	h.events = nil
	return recorded
}

// Names returns the kinds and names of all objects except the ApiServerCluster, sorted.
func (h *Host) Names() (names []string) {
	h.t.Helper()
	for _, kind := range []string{
		"v1 Pod", "v1 Secret", "v1 Service", "v1 Namespace", "v1 ConfigMap", "v1 PersistentVolumeClaim", "apps/v1 Deployment",
		"policy/v1 PodDisruptionBudget", "networking.k8s.io/v1 NetworkPolicy", "discovery.k8s.io/v1 EndpointSlice",
		"rbac.authorization.k8s.io/v1 ClusterRole", "rbac.authorization.k8s.io/v1 ClusterRoleBinding",
		"rbac.authorization.k8s.io/v1 Role", "rbac.authorization.k8s.io/v1 RoleBinding",
		"apiregistration.k8s.io/v1 APIService", "v1 ServiceAccount", v1alpha1.GroupVersion.String() + " ApiServerBackup",
	} {
		list := &metav1.PartialObjectMetadataList{}
		version, name, _ := strings.Cut(kind, " ")
		list.APIVersion, list.Kind = version, name+"List"
		h.Must(h.API.List(h.t.Context(), list))
		for i := range list.Items {
			names = append(names, name+" "+list.Items[i].Name)
		}
	}
	slices.Sort(names)
	return names
}

// intercepted returns the client of a step, whose requests Refuse may let fail.
func (h *Host) intercepted() client.WithWatch {
	return interceptor.NewClient(h.API, interceptor.Funcs{
		Get: func(
			ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption,
		) error {
			return requestUnlessRefused(h.refused("get", object, key.Name), func() error {
				return c.Get(ctx, key, object, options...)
			})
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			return requestUnlessRefused(h.refused("list", list, ""), func() error { return c.List(ctx, list, options...) })
		},
		Create: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.CreateOption) error {
			if creation := object.GetCreationTimestamp(); creation.IsZero() {
				object.SetCreationTimestamp(metav1.NewTime(Now()))
			}
			return requestUnlessRefused(h.refused("create", object, object.GetName()), func() error {
				return c.Create(ctx, object, options...)
			})
		},
		Update: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.UpdateOption) error {
			return requestUnlessRefused(h.refused("update", object, object.GetName()), func() error {
				return c.Update(ctx, object, options...)
			})
		},
		Patch: func(
			ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption,
		) error {
			return requestUnlessRefused(h.refused("patch", object, object.GetName()), func() error {
				return c.Patch(ctx, object, patch, options...)
			})
		},
		Delete: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.DeleteOption) error {
			return requestUnlessRefused(h.refused("delete", object, object.GetName()), func() error {
				return c.Delete(ctx, object, options...)
			})
		},
		SubResourcePatch: func(
			ctx context.Context, c client.Client, name string, object client.Object, patch client.Patch,
			options ...client.SubResourcePatchOption,
		) error {
			return requestUnlessRefused(h.refused("status", object, object.GetName()), func() error {
				return c.SubResource(name).Patch(ctx, object, patch, options...)
			})
		},
	})
}

// requestUnlessRefused returns an error with which a request is refused, or sends the request and returns its error.
func requestUnlessRefused(refused error, request func() error) error {
	if refused != nil {
		return refused
	}
	return request()
}

// refused returns the error with which a request fails, or nil.
func (h *Host) refused(verb string, object runtime.Object, name string) error {
	if h.Refuse == nil {
		return nil
	}
	kind, err := apiutil.GVKForObject(object, h.API.Scheme())
	h.Must(err)
	return h.Refuse(strings.TrimSpace(verb + " " + kind.Kind + " " + name))
}

// FailEach executes a step on hosts that start returns, once for each request of the step, and lets another request
// fail each time. The step has to return the error of the request. Executed again without a failure, it has to leave
// the same objects as if no request had failed.
func FailEach(t *testing.T, start func(*testing.T) *Host, step func(*Host) error) {
	t.Helper()
	var requests []string
	reference := start(t)
	reference.Refuse = func(request string) error {
		requests = append(requests, request)
		return nil
	}
	reference.Must(step(reference))
	want := reference.Names()
	for failing, request := range requests {
		h, number := start(t), 0
		h.Refuse = func(string) error {
			if number++; number == failing+1 {
				return ErrUnavailable
			}
			return nil
		}
		if err := step(h); !errors.Is(err, ErrUnavailable) {
			t.Errorf("the error of request %d, %s, is not returned: %v", failing, request, err)
		}
		h.Refuse = nil
		if err := step(h); err != nil {
			t.Errorf("repeated after request %d, %s, has failed: %v", failing, request, err)
		}
		if got := h.Names(); !slices.Equal(got, want) {
			t.Errorf("request %d, %s, has failed: left %v, want %v", failing, request, got, want)
		}
	}
}
