package informers

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

// dynamicFactory adds resources of any kind to a factory.
type dynamicFactory struct {
	informers.SharedInformerFactory
	options Options
	typed   map[schema.GroupVersionResource]bool
}

// Dynamic returns a factory with the informers of New, whose ForResource also has those of all other resources that are
// served, or will be: built-in kinds as typed objects, custom ones as unstructured objects. They are for readers without
// event handlers: policies read their parameters from them. They have no goroutines, so that upstream, which stops them
// together when a policy no longer has parameters, has nothing to stop.
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

// Start implements informers.SharedInformerFactory. The server starts the typed informers.
func (f *dynamicFactory) Start(<-chan struct{}) {}

// StartWithContext implements informers.SharedInformerFactory.
func (f *dynamicFactory) StartWithContext(context.Context) {}

// view implements informers.GenericInformer.
type view struct{ informer *informer }

// Informer implements informers.GenericInformer.
func (v view) Informer() cache.SharedIndexInformer { return v.informer }

// Lister implements informers.GenericInformer.
func (v view) Lister() cache.GenericLister {
	return cache.NewGenericLister(v.informer.GetIndexer(), v.informer.resource.GroupResource())
}
