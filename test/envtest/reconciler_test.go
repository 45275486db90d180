package envtest

import (
	"context"
	"sync"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

const finalizer = "example.com/cleanup"

// reconciler keeps a ConfigMap for each Greeting, reports it in the status, and cleans up in a finalizer.
type reconciler struct {
	client.Client

	mutex     sync.Mutex
	farewells []string
}

func (r *reconciler) setup(manager ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(manager).For(&Greeting{}).Owns(&core.ConfigMap{}).Complete(r)
}

// Reconcile creates and updates the ConfigMap of one Greeting. Conflicts are errors like others and retried.
func (r *reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	greeting := &Greeting{}
	if err := r.Get(ctx, request.NamespacedName, greeting); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !greeting.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, r.cleanUp(ctx, greeting)
	}
	if controllerutil.AddFinalizer(greeting, finalizer) {
		if err := r.Update(ctx, greeting); err != nil {
			return ctrl.Result{}, err
		}
	}
	text := greeting.Spec.Word + ", " + greeting.Spec.Name
	words := &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Namespace: greeting.Namespace, Name: greeting.Name}}
	_, err := controllerutil.CreateOrUpdate(ctx, r, words, func() error {
		words.Data = map[string]string{"text": text}
		return controllerutil.SetControllerReference(greeting, words, r.Scheme())
	})
	if err != nil {
		return ctrl.Result{}, err
	}
	greeting.Status = GreetingStatus{Text: text, ObservedGeneration: greeting.Generation}
	return ctrl.Result{}, r.Status().Update(ctx, greeting)
}

func (r *reconciler) cleanUp(ctx context.Context, greeting *Greeting) error {
	if !controllerutil.RemoveFinalizer(greeting, finalizer) {
		return nil
	}
	r.mutex.Lock()
	r.farewells = append(r.farewells, greeting.Name)
	r.mutex.Unlock()
	return r.Update(ctx, greeting)
}

func (r *reconciler) bade(name string) bool {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	for _, n := range r.farewells {
		if n == name {
			return true
		}
	}
	return false
}
