package informers

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

// dynamicFactory adds informers for resources of any kind to a factory.
type dynamicFactory struct {
	informers.SharedInformerFactory
	options Options
	typed   map[schema.GroupVersionResource]bool
}

// Dynamic returns a factory with the informers of New, whose ForResource also returns informers for all other resources
// that are or will be served: with typed objects for built-in kinds, and unstructured objects for custom resources.
// These informers do not support event handlers: policies read their parameters from them. They have no goroutines, so
// that there is nothing to stop when upstream stops all informers of a policy that no longer has parameters.
func Dynamic(factory informers.SharedInformerFactory, options Options) informers.SharedInformerFactory {
	f := &dynamicFactory{SharedInformerFactory: factory, options: options, typed: map[schema.GroupVersionResource]bool{}}
	for _, kind := range kinds() {
		f.typed[kind.resource] = true
	}
	return f
}

// ForResource implements informers.SharedInformerFactory.
func (f *dynamicFactory) ForResource(name schema.GroupVersionResource) (informers.GenericInformer, error) {
	if f.typed[name] {
		return f.SharedInformerFactory.ForResource(name)
	}
	made := newInformer(name, f.options)
	made.dynamic = true
	return view{made}, nil
}

// Start implements informers.SharedInformerFactory. It does nothing, because the server starts the typed informers.
func (f *dynamicFactory) Start(<-chan struct{}) {}

// StartWithContext implements informers.SharedInformerFactory.
func (f *dynamicFactory) StartWithContext(context.Context) {}

// view is an informer and its lister. It implements informers.GenericInformer.
type view struct{ informer *informer }

// Informer implements informers.GenericInformer.
func (v view) Informer() cache.SharedIndexInformer { return v.informer }

// Lister implements informers.GenericInformer.
func (v view) Lister() cache.GenericLister {
	return cache.NewGenericLister(v.informer.GetIndexer(), v.informer.resource.GroupResource())
}
