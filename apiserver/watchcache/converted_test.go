package watchcache

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"quorate.dev/apiserver/encoding"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/storage"
)

// remoteCodec is a conversion webhook that answers when release is closed: it converts a stored name to an object.
type remoteCodec struct {
	resource.Codec
	release chan struct{}
	calls   []string
}

var errBad = errors.New("bad is bad")

func (c *remoteCodec) Remote([]byte) bool { return true }

func (c *remoteCodec) LoadAll(_ context.Context, stored [][]byte) (objects []runtime.Object, err error) {
	<-c.release
	var names []string
	for _, name := range stored {
		names = append(names, string(name))
	}
	c.calls = append(c.calls, strings.Join(names, " "))
	for _, name := range names {
		if name == "bad" {
			return objects, errBad
		}
		objects = append(objects, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "example.com/v1", "kind": "Widget",
			"metadata": map[string]any{"name": name, "labels": map[string]any{"converted": name}},
		}})
	}
	return objects, nil
}

// remoteCache returns a cache without a store, and its resource, whose objects a webhook converts.
func remoteCache(codec *remoteCodec) (*Cache, resource.Match) {
	caches := New(&storage.Store{}, Options{})
	m := resource.Match{
		Definition: &resource.Definition{Source: resource.Custom, ConvertsRemotely: true},
		Version:    &resource.Version{Codec: codec},
	}
	return newCache(caches, "widgets", Extract{
		Remote: true,
		Converted: func(_ resource.Match, object runtime.Object) (labels.Set, fields.Set, error) {
			accessor := object.(*unstructured.Unstructured)
			return accessor.GetLabels(), fields.Set{"metadata.name": accessor.GetName()}, nil
		},
	}), m
}

func (c *Cache) remoteEntries(names ...string) []*Entry {
	var entries []*Entry
	for i, name := range names {
		entries = append(entries, c.newEntry("widgets/a/"+name, []byte(name), int64(i+1), 1))
	}
	return entries
}

// TestConvertSkipsNoOthers lets a reader wait for an object in a call that fails because of another object.
func TestConvertSkipsNoOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		codec := &remoteCodec{release: make(chan struct{})}
		cache, m := remoteCache(codec)
		entries := cache.remoteEntries("bad", "good")
		all, one := make(chan error, 1), make(chan error, 1)
		go func() {
			_, err := Convert(t.Context(), m, entries)
			all <- err
		}()
		synctest.Wait()
		go func() {
			items, err := Convert(t.Context(), m, entries[1:])
			if err == nil && len(items[0]) == 0 {
				err = errors.New("no item")
			}
			one <- err
		}()
		synctest.Wait()
		close(codec.release)
		if err := <-all; !errors.Is(err, errBad) {
			t.Errorf("the call with the bad object: %v", err)
		}
		if err := <-one; err != nil {
			t.Errorf("the good object: %v", err)
		}
		if got := fmt.Sprintf("%q", codec.calls); got != `["bad good" "good"]` {
			t.Errorf("calls %s", got)
		}
	})
}

// TestConvertEndsWithTheContext ends the wait of one reader. Another reader gets the result of the call.
func TestConvertEndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		codec := &remoteCodec{release: make(chan struct{})}
		cache, m := remoteCache(codec)
		entries := cache.remoteEntries("a")
		ctx, cancel := context.WithCancel(t.Context())
		impatient, patient := make(chan error, 1), make(chan error, 1)
		go func() { _, err := Convert(ctx, m, entries); impatient <- err }()
		synctest.Wait()
		go func() { _, err := Convert(t.Context(), m, entries); patient <- err }()
		synctest.Wait()
		cancel()
		if err := <-impatient; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		close(codec.release)
		if err := <-patient; err != nil || len(codec.calls) != 1 {
			t.Errorf("%v after %d calls", err, len(codec.calls))
		}
	})
}

// TestConvertInBatches checks the maximum number of objects of a call.
func TestConvertInBatches(t *testing.T) {
	codec := &remoteCodec{release: make(chan struct{})}
	close(codec.release)
	cache, m := remoteCache(codec)
	var names []string
	for i := range 2*maxConverted + 1 {
		names = append(names, fmt.Sprint("w", i))
	}
	items, err := EncodedAll(t.Context(), encoding.Converted(m), cache.remoteEntries(names...))
	if err != nil || len(items) != len(names) || len(codec.calls) != 3 {
		t.Fatalf("%d items in %d calls, %v", len(items), len(codec.calls), err)
	}
	for i, item := range items {
		want := fmt.Sprintf(`"name":"w%d","resourceVersion":"%d"`, i, i+1)
		if !strings.Contains(string(item.Bytes()), want) {
			t.Fatalf("item %d: %s", i, item.Bytes())
		}
	}
}

// TestConvertedStates checks that converted items are used again for the deletion of the object, and kept for entries
// outside the cache.
func TestConvertedStates(t *testing.T) {
	codec := &remoteCodec{release: make(chan struct{})}
	close(codec.release)
	cache, m := remoteCache(codec)
	entry := cache.remoteEntries("a")[0]
	private := cache.Detached(storage.Value{Path: "widgets/a/b", Data: []byte("b"), Revision: 7})
	for range 2 {
		for _, e := range []*Entry{entry, entry.deleted(9), private} {
			set, _, err := e.Attributes(t.Context(), m)
			if err != nil || set["converted"] != e.Name() {
				t.Errorf("%s: %v, %v", e.Name(), set, err)
			}
			for _, shape := range []encoding.Shape{encoding.Whole, encoding.Metadata} {
				format := encoding.Format{Resource: m, Shape: shape}
				item, err := e.Encoded(t.Context(), format)
				if want := fmt.Sprintf(`"resourceVersion":"%d"`, e.revision); err != nil ||
					!strings.Contains(string(item.Bytes()), want) {
					t.Errorf("%s: %s, %v", e.Name(), item.Bytes(), err)
				}
			}
		}
	}
	if got := fmt.Sprintf("%q", codec.calls); got != `["a" "b"]` {
		t.Errorf("calls %s", got)
	}
}
