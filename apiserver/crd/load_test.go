package crd_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"

	"quorate.dev/apiserver/crd"
	"quorate.dev/apiserver/registry/follow"
	"quorate.dev/apiserver/resource"
)

// TestDefinitionChangesUnderLoad changes a definition while clients create, list and watch its objects. No object is
// lost, and watches go on.
func TestDefinitionChangesUnderLoad(t *testing.T) {
	s := startServer(t)
	s.create(t, sample(t))
	s.establish(t)
	load := &load{server: s, created: sets.New[string](), seen: sets.New[string]()}
	ctx, stop := context.WithCancel(t.Context())
	var watching, clients sync.WaitGroup
	defer watching.Wait()
	defer stop()
	watching.Go(func() { load.watch(ctx, t) })
	done := make(chan struct{})
	for i := range 3 {
		clients.Go(func() { load.write(t, done, i) })
		clients.Go(func() { load.list(t, done) })
	}
	for i := range 12 {
		load.change(t, i)
	}
	close(done)
	clients.Wait()
	if err := s.controller.Await(t.Context()); err != nil {
		t.Fatal(err)
	}
	objects, err := s.List(t.Context(), resource.Key{GroupResource: widgets, Namespace: "default"}, resource.ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if listed := namesOf(t, objects); !listed.Equal(load.created) || listed.Len() == 0 {
		t.Errorf("%d objects, created %d", listed.Len(), load.created.Len())
	}
	eventually(t, "the watch has seen all objects", func() bool {
		load.lock.Lock()
		defer load.lock.Unlock()
		return load.seen.Equal(load.created)
	})
}

// load is clients of one custom resource.
type load struct {
	*server
	lock          sync.Mutex
	created, seen sets.Set[string]
}

// change makes one of several changes of the definition, and waits until it is published.
func (l *load) change(t *testing.T, i int) {
	t.Helper()
	_, err := l.Update(t.Context(), resource.Key{
		GroupResource: crd.Resource, Name: "widgets.example.com",
	}, func(object runtime.Object) error {
		spec := &object.(*apiextensions.CustomResourceDefinition).Spec
		switch i % 4 {
		case 0:
			if spec.Versions[0].Schema != nil {
				spec.Versions[0].Schema.OpenAPIV3Schema.Description = fmt.Sprintf("change %d", i)
			} else {
				spec.Validation.OpenAPIV3Schema.Description = fmt.Sprintf("change %d", i)
			}
		case 1:
			spec.Names.ShortNames = []string{fmt.Sprintf("w%d", i)}
		case 2:
			spec.Versions[1].Served = !spec.Versions[1].Served
		case 3:
			for j := range spec.Versions[:2] {
				spec.Versions[j].Storage = !spec.Versions[j].Storage
			}
		}
		return nil
	}, resource.WriteOptions{})
	if err != nil {
		t.Error(err)
	}
	if err := l.controller.Await(t.Context()); err != nil {
		t.Error(err)
	}
}

// write creates objects and updates each once.
func (l *load) write(t *testing.T, done <-chan struct{}, client int) {
	for i := 0; ; i++ {
		select {
		case <-done:
			return
		default:
		}
		object := newWidget(fmt.Sprintf("widget-%d-%d", client, i))
		match, ok := l.publisher.Current().Find(widgets)
		if !ok {
			t.Error("the resource is not served")
			return
		}
		object.SetAPIVersion(match.Version.Kind.GroupVersion().String())
		_, err := l.Create(t.Context(), resource.Key{GroupResource: widgets, Namespace: "default"},
			object, resource.WriteOptions{})
		if apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) {
			continue // the preferred version has changed since
		}
		if err != nil {
			t.Error(err)
			return
		}
		l.lock.Lock()
		l.created.Insert(object.GetName())
		l.lock.Unlock()
	}
}

// list reads all objects, as current ones and from the cache.
func (l *load) list(t *testing.T, done <-chan struct{}) {
	for cached := false; ; cached = !cached {
		select {
		case <-done:
			return
		case <-time.After(time.Millisecond):
		}
		key := resource.Key{GroupResource: widgets, Namespace: "default"}
		if _, err := l.List(t.Context(), key, resource.ReadOptions{Cached: cached}); err != nil {
			t.Error(err)
		}
	}
}

// watch follows the objects until ctx ends.
func (l *load) watch(ctx context.Context, t *testing.T) {
	err := l.Follow(ctx, resource.Key{GroupResource: widgets}, follow.Options{Objects: func(
		_ string, object runtime.Object,
	) {
		accessor, err := meta.Accessor(object)
		if err != nil {
			return
		}
		l.lock.Lock()
		defer l.lock.Unlock()
		l.seen.Insert(accessor.GetName())
	}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the watch ended: %v", err)
	}
}

func namesOf(t *testing.T, objects []runtime.Object) sets.Set[string] {
	t.Helper()
	all := sets.New[string]()
	for _, object := range objects {
		accessor, err := meta.Accessor(object)
		if err != nil {
			t.Fatal(err)
		}
		all.Insert(accessor.GetName())
	}
	return all
}
