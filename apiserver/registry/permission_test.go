package registry_test

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"quorate.dev/apiserver/admission"
	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/apiserver/registry"
	"quorate.dev/apiserver/registry/change"
	"quorate.dev/apiserver/resource"
)

// global is a strategy of objects without a namespace.
type global struct{ plain }

func (global) NamespaceScoped() bool { return false }

// definitions is a resource whose objects permit the creation of others, like CustomResourceDefinitions.
func definitions() *resource.Definition {
	d := configMaps()
	d.Plural, d.StoragePath, d.Namespaced = "definitions", "definitions", false
	endpoint := d.Versions[0].Endpoints[""]
	strategy := global{endpoint.Create.(plain)}
	endpoint.Create, endpoint.Update, endpoint.Delete = strategy, strategy, strategy
	return d
}

// permit is the permission to create widgets: the definition "widgets", whose data says in which state it is. Like the
// CustomResourceDefinition of a replica, it remembers the last revision at which it permitted the creation.
type permit struct{ known atomic.Int64 }

func (*permit) Key() resource.Key {
	return resource.Key{GroupResource: schema.GroupResource{Resource: "definitions"}, Name: "widgets"}
}

func (p *permit) Revision() int64 { return p.known.Load() }

func (p *permit) Check(object runtime.Object) (int64, error) {
	definition := object.(*corev1.ConfigMap)
	switch definition.Data["state"] {
	case "terminating":
		return 0, resource.ErrTerminating
	case "replaced":
		return 0, resource.ErrNotServed
	case "broken":
		return 0, errRefused
	}
	return strconv.ParseInt(definition.ResourceVersion, 10, 64)
}

// TestCustomResourcesNeedTheirDefinition creates widgets while the definition changes in storage, which this replica
// has not seen. No widget may be stored when the definition is being deleted or gone: no controller would delete it.
func TestCustomResourcesNeedTheirDefinition(t *testing.T) {
	t.Parallel()
	widgets := configMaps()
	permission := &permit{}
	widgets.Plural, widgets.StoragePath, widgets.Source, widgets.Permission =
		"widgets", "example.com/widgets", resource.Custom, permission
	w := openWorld(t, etcdtest.Client(t), configMaps())
	w.publisher.Publish(resource.NewCatalog(definitions(), widgets))
	definition, err := w.registry.Target(permission.Key())
	if err != nil {
		t.Fatal(err)
	}
	match := resource.Match{Definition: widgets, Version: widgets.Versions[0]}
	target := resource.Target{Match: match, Endpoint: match.Version.Endpoints[""], Namespace: "a"}
	created := 0
	create := func(dryRun bool) error {
		created++
		_, err := w.registry.Create(t.Context(), target, newConfigMap("w"+strconv.Itoa(created)),
			registry.WriteOptions{DryRun: dryRun})
		return err
	}
	become := func(state string) {
		t.Helper()
		patch := change.Patch{Type: types.MergePatchType, Data: []byte(`{"data":{"state":"` + state + `"}}`)}
		if _, err := w.registry.Patch(t.Context(), definition, patch, registry.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := create(false); !apierrors.IsNotFound(err) {
		t.Errorf("without a definition: %v", err)
	}
	stored, err := w.registry.Create(t.Context(), definition,
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "widgets"}}, registry.WriteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	permission.known.Store(stored.Revision)
	for _, step := range []struct {
		state    string
		accepted func(error) bool
	}{
		{"", func(err error) bool { return err == nil }},
		{"established", func(err error) bool { return err == nil }}, // another revision than the known one
		{"terminating", apierrors.IsForbidden},
		{"replaced", apierrors.IsNotFound},
		{"broken", func(err error) bool { return errors.Is(err, errRefused) }},
		{"established", func(err error) bool { return err == nil }},
	} {
		if step.state != "" {
			become(step.state)
		}
		for _, dryRun := range []bool{false, true} {
			if err := create(dryRun); !step.accepted(err) {
				t.Errorf("definition %q, dry run %v: got the error %v", step.state, dryRun, err)
			}
		}
	}
	if _, err := w.registry.Delete(t.Context(), definition, &metav1.DeleteOptions{}, registry.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := create(false); !apierrors.IsNotFound(err) {
		t.Errorf("after the deletion of the definition: %v", err)
	}
	widgets.Terminating = true // the replica knows
	if err := create(false); !apierrors.IsForbidden(err) {
		t.Errorf("while the definition is known to be deleted: %v", err)
	}
}

// lifecycle admits creations in namespaces at a revision, and then calls a function, as the namespace may change
// between admission and the write.
type lifecycle struct {
	revision int64
	then     func()
}

func (l *lifecycle) Admit(_ context.Context, a *admission.Attributes) error {
	if a.Definition.Plural != "namespaces" {
		a.NamespaceRevision = l.revision
		l.then()
	}
	return nil
}

// TestCreationsNeedTheirNamespace changes the namespace of an object between admission and the write. The object is
// stored only if the namespace is still active.
func TestCreationsNeedTheirNamespace(t *testing.T) {
	t.Parallel()
	plugin := &lifecycle{}
	chain := &admission.Chain{Plugins: []admission.Plugin{{
		Operations: []admission.Operation{admission.Create}, Mutator: plugin,
	}}}
	w := openAdmitted(t, etcdtest.Client(t), configMaps(), chain)
	spaces := definitions()
	spaces.Plural, spaces.StoragePath = "namespaces", "namespaces"
	w.publisher.Publish(resource.NewCatalog(spaces, configMaps()))
	key := resource.Key{GroupResource: schema.GroupResource{Resource: "namespaces"}, Name: "a"}
	namespace, err := w.registry.Target(key)
	if err != nil {
		t.Fatal(err)
	}
	patch := func(data string) func() {
		return func() {
			patch := change.Patch{Type: types.MergePatchType, Data: []byte(data)}
			if _, err := w.registry.Patch(t.Context(), namespace, patch, registry.WriteOptions{}); err != nil {
				t.Error(err)
			}
		}
	}
	remove := func() {
		_, err := w.registry.Delete(t.Context(), namespace, &metav1.DeleteOptions{}, registry.WriteOptions{})
		if err != nil {
			t.Error(err)
		}
	}
	for i, step := range []struct {
		name     string
		then     func()
		accepted func(error) bool
	}{
		{"unchanged", func() {}, func(err error) bool { return err == nil }},
		{"labeled", patch(`{"metadata":{"labels":{"a":"b"}}}`), func(err error) bool { return err == nil }},
		{"gone", remove, apierrors.IsNotFound},
		{"terminating", func() {
			patch(`{"metadata":{"finalizers":["a/b"]}}`)()
			remove()
		}, func(err error) bool {
			return apierrors.IsForbidden(err) && apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
		}},
	} {
		created, err := w.registry.Create(t.Context(), namespace,
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, registry.WriteOptions{})
		switch {
		case err == nil:
			plugin.revision = created.Revision
		case !apierrors.IsAlreadyExists(err):
			t.Fatal(err)
		}
		plugin.then = step.then
		name := "object-" + strconv.Itoa(i)
		_, err = w.registry.Create(t.Context(), w.target, newConfigMap(name), registry.WriteOptions{})
		if !step.accepted(err) {
			t.Errorf("%s: got the error %v", step.name, err)
		}
		_, err = w.registry.ReadStored(t.Context(), w.target.Named(name))
		if stored := err == nil; stored != step.accepted(nil) {
			t.Errorf("%s: stored %t: %v", step.name, stored, err)
		}
	}
}
