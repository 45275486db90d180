package registry_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/scheduling"
	"k8s.io/utils/ptr"

	"quorate.dev/apiserver/admission"
	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/builtin/builtintest"
	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/apiserver/registry"
	"quorate.dev/apiserver/registry/change"
	"quorate.dev/apiserver/resource"
)

// targetOf returns the target of a built-in object.
func targetOf(t *testing.T, s *builtintest.Server, plural, subresource, namespace, name string) resource.Target {
	t.Helper()
	group := ""
	if plural == "priorityclasses" {
		group = scheduling.GroupName
	}
	match, ok := s.Catalog.Current().Lookup(group, "v1", plural)
	if !ok {
		t.Fatalf("%s are not served", plural)
	}
	return resource.Target{Match: match, Endpoint: match.Version.Endpoints[subresource], Namespace: namespace, Name: name}
}

// deletionStep is one request for the deletion of an object.
type deletionStep struct {
	name    string
	options metav1.DeleteOptions
	dryRun  bool
	outcome registry.Outcome
	refused func(error) bool
}

func (s deletionStep) run(t *testing.T, r *registry.Registry, target resource.Target) {
	t.Helper()
	result, err := r.Delete(t.Context(), target, &s.options, registry.WriteOptions{DryRun: s.dryRun})
	if s.refused != nil {
		if !s.refused(err) {
			t.Errorf("%s: got the error %v", s.name, err)
		}
		return
	}
	if err != nil || result.Outcome != s.outcome || result.DryRun != s.dryRun {
		t.Errorf("%s: got %+v, %v, want outcome %d", s.name, result, err, s.outcome)
	}
}

func precondition(uid types.UID, resourceVersion string) metav1.DeleteOptions {
	options := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{}}
	if uid != "" {
		options.Preconditions.UID = &uid
	}
	if resourceVersion != "" {
		options.Preconditions.ResourceVersion = &resourceVersion
	}
	return options
}

// TestDeletionOfAPod deletes a pod that runs on a node: the pod stays for its grace period, until the kubelet deletes
// it.
func TestDeletionOfAPod(t *testing.T) {
	t.Parallel()
	s := builtintest.NewServer(t, builtin.Options{}, nil)
	pod := builtintest.NewPod("p")
	pod.Spec.NodeName = "n"
	target := targetOf(t, s, "pods", "", "default", "p")
	if _, err := s.Registry.Create(t.Context(), target, pod, registry.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, step := range []deletionStep{
		{name: "of another pod", options: precondition("other", ""), refused: apierrors.IsConflict},
		{name: "dry run", dryRun: true, outcome: registry.Marked},
		{name: "by a user", outcome: registry.Marked},
		{name: "again", outcome: registry.Unchanged},
		{name: "dry run of the kubelet's", dryRun: true, options: *metav1.NewDeleteOptions(0), outcome: registry.Deleted},
		{name: "by the kubelet", options: *metav1.NewDeleteOptions(0), outcome: registry.Deleted},
		{name: "by the kubelet again", options: *metav1.NewDeleteOptions(0), refused: apierrors.IsNotFound},
	} {
		step.run(t, s.Registry, target)
	}
}

// TestDeletionOfANamespace deletes a namespace, whose content must be deleted before: it terminates until its finalizer
// in spec is removed.
func TestDeletionOfANamespace(t *testing.T) {
	t.Parallel()
	s := builtintest.NewServer(t, builtin.Options{}, nil)
	target := targetOf(t, s, "namespaces", "", "", "n")
	namespace := &core.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	if _, err := s.Registry.Create(t.Context(), target, namespace, registry.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, step := range []deletionStep{
		{name: "of another namespace", options: precondition("other", ""), refused: apierrors.IsConflict},
		{name: "of another version", options: precondition("", "1"), refused: apierrors.IsConflict},
		{name: "by a user", outcome: registry.Marked},
		{name: "while it terminates", outcome: registry.Unchanged},
	} {
		step.run(t, s.Registry, target)
	}
	terminating, err := s.Registry.ReadStored(t.Context(), target)
	if err != nil || terminating.(*core.Namespace).Status.Phase != core.NamespaceTerminating {
		t.Fatalf("got %+v, %v", terminating, err)
	}
	finalized := terminating.DeepCopyObject().(*core.Namespace)
	finalized.Spec.Finalizers = nil
	finalize := targetOf(t, s, "namespaces", "finalize", "", "n")
	result, err := s.Registry.Update(t.Context(), finalize, change.Replacement{Object: finalized}, registry.WriteOptions{})
	if err != nil || result.Outcome != registry.Finalized {
		t.Fatalf("the last finalizer: %+v, %v", result, err)
	}
	deletionStep{name: "afterwards", refused: apierrors.IsNotFound}.run(t, s.Registry, target)
}

// TestDeletionWithFinalizers deletes ConfigMaps that have finalizers, or get them from the propagation policy.
func TestDeletionWithFinalizers(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name       string
		finalizers []string
		steps      []deletionStep
		left       []string // finalizers afterwards
	}{
		{
			name: "a controller holds it", finalizers: []string{"example.com/hold"},
			steps: []deletionStep{{name: "first", outcome: registry.Marked}, {name: "second", outcome: registry.StillMarked}},
			left:  []string{"example.com/hold"},
		},
		{
			name: "dependents are orphaned", left: []string{metav1.FinalizerOrphanDependents},
			steps: []deletionStep{{
				name: "orphan", options: metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationOrphan)},
				outcome: registry.Marked,
			}},
		},
		{
			name: "dependents are deleted first", left: []string{metav1.FinalizerDeleteDependents},
			steps: []deletionStep{{
				name: "foreground", options: metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationForeground)},
				outcome: registry.Marked,
			}},
		},
		{
			name: "a policy removes the last finalizer", finalizers: []string{metav1.FinalizerOrphanDependents},
			steps: []deletionStep{
				{
					name: "dry run", dryRun: true, outcome: registry.DeletedEmpty,
					options: metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)},
				},
				{
					name: "background", outcome: registry.Deleted,
					options: metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)},
				},
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := openWorld(t, etcdtest.Client(t), configMaps())
			target := named(w.target, "x")
			if _, err := w.registry.Create(
				t.Context(), target, newConfigMap("x", test.finalizers...), registry.WriteOptions{},
			); err != nil {
				t.Fatal(err)
			}
			for _, step := range test.steps {
				step.run(t, w.registry, target)
			}
			stored, err := w.registry.ReadStored(t.Context(), target)
			if test.left == nil {
				if !apierrors.IsNotFound(err) {
					t.Errorf("got %v, %v afterwards", stored, err)
				}
				return
			}
			if err != nil || !slices.Equal(stored.(*corev1.ConfigMap).Finalizers, test.left) {
				t.Errorf("got %v, %v afterwards, want the finalizers %v", stored, err, test.left)
			}
		})
	}
}

// TestNoGarbageCollectorNoFinalizers deletes an object in a cluster where no controller would remove the finalizer.
func TestNoGarbageCollectorNoFinalizers(t *testing.T) {
	t.Parallel()
	w := openConfigured(t, etcdtest.Client(t), configMaps(), func(o *registry.Options) { o.NoGarbageCollector = true })
	w.put(t, "x")
	deletionStep{
		name: "foreground", options: metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationForeground)},
		outcome: registry.Deleted,
	}.run(t, w.registry, named(w.target, "x"))
}

// TestLastFinalizerIsRemoved removes the last finalizer of a deleted object with a dry run, which leaves the object,
// and then with an update.
func TestLastFinalizerIsRemoved(t *testing.T) {
	t.Parallel()
	w := openWorld(t, etcdtest.Client(t), configMaps())
	target := named(w.target, "x")
	if _, err := w.registry.Create(
		t.Context(), target, newConfigMap("x", "example.com/hold"), registry.WriteOptions{},
	); err != nil {
		t.Fatal(err)
	}
	deletionStep{name: "deletion", outcome: registry.Marked}.run(t, w.registry, target)
	release := change.Patch{Type: types.MergePatchType, Data: []byte(`{"metadata":{"finalizers":null}}`)}
	for _, dryRun := range []bool{true, true, false} {
		result, err := w.registry.Patch(t.Context(), target, release, registry.WriteOptions{DryRun: dryRun})
		if err != nil || result.Outcome != registry.Finalized || result.DryRun != dryRun {
			t.Fatalf("dry run %v: got %+v, %v", dryRun, result, err)
		}
	}
	if _, err := w.registry.ReadStored(t.Context(), target); !apierrors.IsNotFound(err) {
		t.Errorf("afterwards: %v", err)
	}
}

// TestProtectedObjectsAreNotDeleted deletes a priority class of the system.
func TestProtectedObjectsAreNotDeleted(t *testing.T) {
	t.Parallel()
	s := builtintest.NewServer(t, builtin.Options{}, nil)
	deletionStep{name: "system class", refused: apierrors.IsForbidden}.run(
		t, s.Registry, targetOf(t, s, "priorityclasses", "", "", scheduling.SystemNodeCritical))
}

// refusing refuses the deletion of objects with one name.
type refusing string

var errRefused = errors.New("refused")

func (r refusing) Validate(_ context.Context, a *admission.Attributes) error {
	if a.Old.(*corev1.ConfigMap).Name == string(r) {
		return errRefused
	}
	return nil
}

// TestDeleteCollection deletes the selected objects with several workers. If another client deletes a selected object
// first, the request succeeds; if admission rejects a deletion, the request fails.
func TestDeleteCollection(t *testing.T) {
	t.Parallel()
	chain := &admission.Chain{Plugins: []admission.Plugin{{
		Operations: []admission.Operation{admission.Delete}, Validator: refusing("kept"),
	}}}
	client := etcdtest.Client(t)
	rival := &rival{KV: client.KV}
	client.KV = rival
	w := openAdmitted(t, client, configMaps(), chain)
	for i := range 20 {
		w.put(t, fmt.Sprintf("x%02d", i))
	}
	w.put(t, "kept")
	all := registry.DeleteCollectionOptions{Delete: &metav1.DeleteOptions{}, Workers: 4}

	one := all
	one.List.Field = fields.OneTermEqualSelector("metadata.name", "x00")
	rival.actions = append(rival.actions, remove)
	page, err := w.registry.DeleteCollection(t.Context(), w.target, one)
	if err != nil || len(page.Entries) != 1 {
		t.Fatalf("one object, which another client deletes: %v, %v", page, err)
	}
	page.Close()

	if _, err := w.registry.DeleteCollection(t.Context(), w.target, all); !errors.Is(err, errRefused) {
		t.Errorf("with an object that is kept: %v", err)
	}
	others := all
	others.List.Field = fields.OneTermNotEqualSelector("metadata.name", "kept")
	if page, err = w.registry.DeleteCollection(t.Context(), w.target, others); err != nil {
		t.Fatal(err)
	}
	page.Close()
	if left := w.list(t, registry.ListOptions{}); len(left.Entries) != 1 || left.Entries[0].Name() != "kept" {
		t.Errorf("%d objects are left", len(left.Entries))
	}
}
