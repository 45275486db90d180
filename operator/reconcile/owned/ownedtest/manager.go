package ownedtest

import (
	"context"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"quorate.dev/operator/api/v1alpha1"
)

// Manager is a controller manager without an API server, for tests of the watches of one controller. The test reports
// the events of watched objects through Events. It runs the manager in a bubble of testing/synctest, so that
// synctest.Wait returns once the controller has handled an event.
type Manager struct {
	manager.Manager // nil; a controller calls only the methods below
	// Events is the cache of the manager.
	Events *Events

	scheme     *runtime.Scheme
	mapper     meta.RESTMapper
	controller manager.Runnable
}

// NewManager returns a manager without a controller.
func NewManager(t testing.TB) *Manager {
	t.Helper()
	types := NewScheme(t)
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{v1alpha1.GroupVersion})
	for kind := range types.KnownTypes(v1alpha1.GroupVersion) {
		mapper.Add(v1alpha1.GroupVersion.WithKind(kind), meta.RESTScopeNamespace)
	}
	return &Manager{Events: NewEvents(t), scheme: types, mapper: mapper}
}

// Add implements manager.Manager.
func (m *Manager) Add(controller manager.Runnable) error {
	m.controller = controller
	return nil
}

// Start runs the controller until ctx is done.
func (m *Manager) Start(ctx context.Context) error { return m.controller.Start(ctx) }

// GetCache implements manager.Manager.
func (m *Manager) GetCache() cache.Cache { return m.Events }

// GetScheme implements manager.Manager.
func (m *Manager) GetScheme() *runtime.Scheme { return m.scheme }

// GetRESTMapper implements manager.Manager.
func (m *Manager) GetRESTMapper() meta.RESTMapper { return m.mapper }

// GetLogger implements manager.Manager.
func (*Manager) GetLogger() logr.Logger { return logr.Discard() }

// GetControllerOptions implements manager.Manager. Tests add a controller with the same name more than once.
func (*Manager) GetControllerOptions() config.Controller {
	return config.Controller{SkipNameValidation: ptr.To(true)}
}

// Events is a cache without objects. Its methods Create, Update and Delete report events to the watches of a kind.
type Events struct {
	cache.Cache // nil; watches call only the methods below

	scheme   *runtime.Scheme
	mutex    sync.Mutex
	handlers map[schema.GroupVersionKind][]toolscache.ResourceEventHandler
}

// NewEvents returns a cache without watches.
func NewEvents(t testing.TB) *Events {
	t.Helper()
	return &Events{
		scheme: NewScheme(t), handlers: map[schema.GroupVersionKind][]toolscache.ResourceEventHandler{},
	}
}

// GetInformer implements cache.Cache.
func (e *Events) GetInformer(
	_ context.Context, object client.Object, _ ...cache.InformerGetOption,
) (cache.Informer, error) {
	kind, err := apiutil.GVKForObject(object, e.scheme)
	return &informer{events: e, kind: kind}, err
}

// WaitForCacheSync implements cache.Cache.
func (*Events) WaitForCacheSync(context.Context) bool { return true }

// Create reports a new object.
func (e *Events) Create(object client.Object) {
	for _, handler := range e.of(object) {
		handler.OnAdd(object, false)
	}
}

// Update reports a change of an object.
func (e *Events) Update(before, after client.Object) {
	for _, handler := range e.of(after) {
		handler.OnUpdate(before, after)
	}
}

// Delete reports the deletion of an object.
func (e *Events) Delete(object client.Object) {
	for _, handler := range e.of(object) {
		handler.OnDelete(object)
	}
}

// of returns the handlers of an object's kind.
func (e *Events) of(object client.Object) []toolscache.ResourceEventHandler {
	kind, err := apiutil.GVKForObject(object, e.scheme)
	if err != nil {
		panic(err) // the test has an object that is not in the scheme
	}
	e.mutex.Lock()
	defer e.mutex.Unlock()
	return e.handlers[kind]
}

// informer is the informer of one kind.
type informer struct {
	cache.Informer // nil; watches call only the methods below

	events *Events
	kind   schema.GroupVersionKind
}

// AddEventHandlerWithOptions implements cache.Informer.
func (i *informer) AddEventHandlerWithOptions(
	handler toolscache.ResourceEventHandler, _ toolscache.HandlerOptions,
) (toolscache.ResourceEventHandlerRegistration, error) {
	i.events.mutex.Lock()
	defer i.events.mutex.Unlock()
	i.events.handlers[i.kind] = append(i.events.handlers[i.kind], handler)
	return synced{}, nil
}

// synced is the registration of a handler that has received all objects, because there are none.
type synced struct {
	toolscache.ResourceEventHandlerRegistration // nil; watches call only HasSynced
}

// HasSynced implements toolscache.ResourceEventHandlerRegistration.
func (synced) HasSynced() bool { return true }
