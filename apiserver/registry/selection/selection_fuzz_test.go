package selection

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	upstream "k8s.io/apiserver/pkg/storage"
	clientscheme "k8s.io/client-go/kubernetes/scheme"

	"quorate.dev/apiserver/codec"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/storage"
	"quorate.dev/apiserver/watchcache"
)

// FuzzSelection compares selection by stored bytes with upstream's predicate on the object. Neither Filter.Only
// nor the scope of a watch may exclude a selected object.
func FuzzSelection(f *testing.F) {
	for _, seed := range []struct{ label, field, set, name, namespace string }{
		{"", "", "", "a", "b"},
		{"app=x", "metadata.name=a", "app=x", "a", "b"},
		{"app!=x,tier in (a,b),!gone", "metadata.namespace!=b", "app=y;tier=b", "a", "c"},
		{"app notin (x,y),tier", "metadata.name=a,metadata.namespace=b", "tier=", "a", "b"},
		{"n>1,n<5", "metadata.name=", "n=3", "", ""},
		{"a/b=c", `metadata.name=a\,b`, "a/b=c", "a,b", ""},
		{"a==b", "metadata.name!=a,metadata.name=a", "a=b", "a", "b"},
	} {
		f.Add(seed.label, seed.field, seed.set, seed.name, seed.namespace)
	}
	kind := corev1.SchemeGroupVersion.WithKind("ConfigMap")
	scheme := codec.NewScheme(clientscheme.Scheme, clientscheme.Codecs, kind, kind.GroupVersion(), kind.GroupVersion())
	attributes := func(object runtime.Object) (labels.Set, fields.Set, error) {
		o := object.(*corev1.ConfigMap)
		return o.Labels, fields.Set{"metadata.name": o.Name, "metadata.namespace": o.Namespace}, nil
	}
	definition := &resource.Definition{
		Namespaced: true, StoragePath: "configmaps", Versions: []*resource.Version{{Kind: kind, Codec: scheme}},
		Fields: func(internal runtime.Object) (fields.Set, error) {
			_, set, err := attributes(internal)
			return set, err
		},
	}
	match := resource.Match{Definition: definition, Version: definition.Versions[0]}
	ctx := f.Context() // the fuzz target must not use f
	extract := watchcache.Extract{Labels: codec.Labels, Fields: func(stored []byte) (fields.Set, error) {
		internal, err := scheme.Load(ctx, stored)
		if err != nil {
			return nil, err
		}
		return definition.Fields(internal)
	}}
	cache := watchcache.New(nil, watchcache.Options{}).For("configmaps", func() (watchcache.Extract, bool) {
		return extract, true
	})
	f.Fuzz(func(t *testing.T, label, field, set, name, namespace string) {
		byLabel, err := labels.Parse(label)
		if err != nil {
			t.Skip()
		}
		byField, err := fields.ParseSelector(field)
		if err != nil || strings.Contains(name+namespace, "/") {
			t.Skip()
		}
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: parseSet(set)}}
		stored, err := scheme.Store(t.Context(), object)
		if err != nil {
			t.Skip()
		}
		read, err := scheme.Load(t.Context(), stored) // bytes that are no UTF-8 do not come back
		if err != nil {
			t.Skip()
		}
		path := "configmaps/" + namespace + "/" + name
		entry := cache.Detached(storage.Value{Path: path, Data: stored, Revision: 1})
		filter := Filter{Selection: Selection{Label: byLabel, Field: byField}, Target: resource.Target{Match: match}}
		got, err := filter.Selects(t.Context(), entry)
		if err != nil {
			t.Fatal(err)
		}
		want, err := (&upstream.SelectionPredicate{Label: byLabel, Field: byField, GetAttrs: attributes}).Matches(read)
		if err != nil || got != want {
			t.Fatalf("selected: %v, by upstream: %v, %v", got, want, err)
		}
		if !want {
			return
		}
		for _, t2 := range []resource.Target{{Match: match}, {Match: match, Namespace: namespace}} {
			filter.Target = t2
			if only, ok := filter.Only(); ok && only != path {
				t.Errorf("in namespace %q only %s can be selected, not %s", t2.Namespace, only, path)
			}
			s := filter.Scope()
			if (s.Namespace != "" && s.Namespace != entry.Namespace()) || (s.Name != "" && s.Name != entry.Name()) {
				t.Errorf("in namespace %q watchers have the scope %+v, outside of which is %s", t2.Namespace, s, path)
			}
		}
	})
}

// parseSet parses labels from "key=value;key=value".
func parseSet(text string) map[string]string {
	set := map[string]string{}
	for pair := range strings.SplitSeq(text, ";") {
		if key, value, ok := strings.Cut(pair, "="); ok {
			set[key] = value
		}
	}
	return set
}
