package registry_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/apiserver/registry"
)

// moved returns a ConfigMap as another cluster has it.
func moved(uid types.UID, value string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Name: "x", Namespace: "a", UID: uid, Generation: 7, CreationTimestamp: metav1.Unix(1_700_000_000, 0),
			Finalizers: []string{"example.com/hold"},
		},
		Data: map[string]string{"k": value},
	}
}

// openTransferred returns a world whose ConfigMaps are being moved.
func openTransferred(t *testing.T) *world {
	t.Helper()
	definition := configMaps()
	definition.Transferring = true
	w := openWorld(t, etcdtest.Client(t), definition)
	w.target.Name = "x"
	return w
}

// TestImport imports an object several times, as a move does that is interrupted and continued.
func TestImport(t *testing.T) {
	t.Parallel()
	w := openTransferred(t)
	var revision int64
	for _, step := range []struct {
		name    string
		object  *corev1.ConfigMap
		outcome registry.Outcome
		writes  bool // a new revision
		refused func(error) bool
	}{
		{name: "without UID", object: moved("", "1"), refused: apierrors.IsInvalid},
		{name: "without creation timestamp", refused: apierrors.IsInvalid,
			object: &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "x", Namespace: "a", UID: "u"}}},
		{name: "first copy", object: moved("u", "1"), outcome: registry.Created, writes: true},
		{name: "the same again", object: moved("u", "1"), outcome: registry.Updated},
		{name: "changed since", object: moved("u", "2"), outcome: registry.Updated, writes: true},
		{name: "another object of the same name", object: moved("v", "2"), refused: apierrors.IsConflict},
	} {
		result, err := w.registry.Import(t.Context(), w.target, step.object)
		if step.refused != nil {
			if !step.refused(err) {
				t.Errorf("%s: got the error %v", step.name, err)
			}
			continue
		}
		if err != nil || result.Outcome != step.outcome || (result.Revision > revision) != step.writes {
			t.Fatalf("%s: got %+v, %v after revision %d", step.name, result, err, revision)
		}
		revision = result.Revision
	}
	stored, err := w.registry.ReadStored(t.Context(), w.target)
	if err != nil {
		t.Fatal(err)
	}
	if got := stored.(*corev1.ConfigMap); got.UID != "u" || got.Generation != 7 || got.Data["k"] != "2" ||
		!got.CreationTimestamp.Equal(ptr.To(metav1.Unix(1_700_000_000, 0))) {
		t.Errorf("the import changed the object: %+v", got)
	}
}

// TestExpunge deletes an imported object although it has a finalizer, if it still is the object that the move has seen.
func TestExpunge(t *testing.T) {
	t.Parallel()
	w := openTransferred(t)
	imported, err := w.registry.Import(t.Context(), w.target, moved("u", "1"))
	if err != nil {
		t.Fatal(err)
	}
	uid := func(uid types.UID) *types.UID { return &uid }
	for _, step := range []struct {
		name          string
		preconditions *metav1.Preconditions
		accepted      func(error) bool
	}{
		{"without preconditions", nil, apierrors.IsBadRequest},
		{"another UID", &metav1.Preconditions{UID: uid("v")}, apierrors.IsConflict},
		{"another revision", &metav1.Preconditions{UID: uid("u"), ResourceVersion: ptr.To("1")}, apierrors.IsConflict},
		{"the object", &metav1.Preconditions{UID: uid("u"), ResourceVersion: ptr.To(
			imported.Object.(*corev1.ConfigMap).ResourceVersion)}, func(err error) bool { return err == nil }},
		{"the object again", &metav1.Preconditions{UID: uid("u")}, apierrors.IsNotFound},
	} {
		if err := w.registry.Expunge(t.Context(), w.target, step.preconditions); !step.accepted(err) {
			t.Errorf("%s: got the error %v", step.name, err)
		}
	}
}

// TestTransferIsNeeded imports and expunges while no move is under way: clients must not choose the UIDs of objects,
// nor ignore finalizers.
func TestTransferIsNeeded(t *testing.T) {
	t.Parallel()
	w := openWorld(t, etcdtest.Client(t), configMaps())
	target := named(w.target, "x")
	if _, err := w.registry.Import(t.Context(), target, moved("u", "1")); !apierrors.IsForbidden(err) {
		t.Errorf("import: %v", err)
	}
	uid := types.UID("u")
	if err := w.registry.Expunge(t.Context(), target, &metav1.Preconditions{UID: &uid}); !apierrors.IsForbidden(err) {
		t.Errorf("expunge: %v", err)
	}
}
