package registry_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage/value"

	"quorate.dev/apiserver/encryption"
	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/apiserver/registry"
	"quorate.dev/apiserver/storage"
)

// sealed is a transformer without the key of values that begin with "sealed".
type sealed struct{}

func (sealed) TransformToStorage(_ context.Context, data []byte, _ value.Context) ([]byte, error) {
	return data, nil
}

func (sealed) TransformFromStorage(_ context.Context, data []byte, _ value.Context) ([]byte, bool, error) {
	if bytes.HasPrefix(data, []byte("sealed")) {
		return nil, false, errors.New("no matching key")
	}
	return data, false, nil
}

// openUnreadable returns a world that may delete unreadable objects, with values that were stored without it: a
// readable ConfigMap "good", and "garbage" and "sealed", which cannot be decoded and decrypted.
func openUnreadable(t *testing.T, unreadable ...string) *world {
	t.Helper()
	client := etcdtest.Client(t)
	storeGood(t, client)
	for _, name := range unreadable {
		if _, err := client.Put(t.Context(), "/registry/configmaps/a/"+name, name); err != nil {
			t.Fatal(err)
		}
	}
	return openConfigured(t, client, configMaps(), func(o *registry.Options) {
		o.DeleteUnreadable = true
		o.Store.Encrypt(encryption.Malformed(&storage.Encryption{For: func(string) value.Transformer { return sealed{} }}))
	})
}

func storeGood(t *testing.T, client *clientv3.Client) {
	t.Helper()
	data, err := configMaps().Versions[0].Codec.Store(t.Context(), newConfigMap("good"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Put(t.Context(), "/registry/configmaps/a/good", string(data)); err != nil {
		t.Fatal(err)
	}
}

// causes returns the fields of the causes of a status error.
func causes(err error) (found []string) {
	var status apierrors.APIStatus
	if errors.As(err, &status) && status.Status().Details != nil {
		for _, cause := range status.Status().Details.Causes {
			found = append(found, cause.Field)
		}
	}
	return found
}

// TestUndecodableObjectsAreNamed reads a collection with an object that cannot be decoded: the errors name it.
func TestUndecodableObjectsAreNamed(t *testing.T) {
	t.Parallel()
	w := openUnreadable(t, "garbage")
	failure := errors.New("encode")
	entry, err := w.registry.Get(t.Context(), named(w.target, "garbage"), "")
	if err != nil {
		t.Fatal(err)
	}
	const text = "corrupt object, Code: 7, Key: /configmaps/a/garbage"
	if err := w.registry.GetError(
		t.Context(), named(w.target, "garbage"), entry, failure,
	); !strings.Contains(err.Error(), text) {
		t.Errorf("get: %v", err)
	}
	page := w.list(t, registry.ListOptions{})
	err = w.registry.ListError(t.Context(), w.target, page, failure)
	if got := causes(err); len(got) != 1 || got[0] != "/registry/configmaps/a/garbage" {
		t.Errorf("list: %v names %v", err, got)
	}
	_, err = w.registry.Delete(t.Context(), named(w.target, "garbage"), &metav1.DeleteOptions{}, registry.WriteOptions{})
	if err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("delete: %v", err)
	}
	// Errors with another reason stay.
	if entry, err = w.registry.Get(t.Context(), named(w.target, "good"), ""); err != nil {
		t.Fatal(err)
	}
	if err := w.registry.GetError(t.Context(), named(w.target, "good"), entry, failure); !errors.Is(err, failure) {
		t.Errorf("get of a readable object: %v", err)
	}
	page.Entries = page.Entries[1:]
	if err := w.registry.ListError(t.Context(), w.target, page, failure); !errors.Is(err, failure) {
		t.Errorf("list of readable objects: %v", err)
	}
	if err := w.registry.ListError(t.Context(), w.target, page, nil); err != nil {
		t.Errorf("list without an error: %v", err)
	}
	_, err = w.registry.Delete(t.Context(), named(w.target, "missing"), &metav1.DeleteOptions{}, registry.WriteOptions{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("deletion of a missing object: %v", err)
	}
}

// TestUndecryptableObjectsAreNamed reads a collection with values for which the server has no key. No cache can be
// initialized, and a list from storage names all of them.
func TestUndecryptableObjectsAreNamed(t *testing.T) {
	t.Parallel()
	w := openUnreadable(t, "garbage", "sealed", "sealed2")
	_, err := w.registry.List(t.Context(), w.target, registry.ListOptions{})
	if got, want := fmt.Sprint(causes(err)),
		"[/registry/configmaps/a/garbage /registry/configmaps/a/sealed /registry/configmaps/a/sealed2]"; got != want {
		t.Errorf("list: %v names %s, want %s", err, got, want)
	}
	page := w.list(t, registry.ListOptions{Limit: 2}) // ends before the first value that cannot be decrypted
	page.Close()
	rest := registry.ListOptions{Limit: 2, Continue: page.Continue}
	if _, err = w.registry.List(t.Context(), w.target, rest); len(causes(err)) != 2 {
		t.Errorf("second page: %v names %v", err, causes(err))
	}
	_, err = w.registry.Delete(t.Context(), named(w.target, "sealed"), &metav1.DeleteOptions{}, registry.WriteOptions{})
	if err == nil || !strings.Contains(err.Error(), "is not transformable") {
		t.Errorf("deletion: %v", err)
	}
	if _, err := w.registry.Get(t.Context(), named(w.target, "sealed"), ""); err == nil ||
		!strings.Contains(err.Error(), "corrupt object") {
		t.Errorf("get: %v", err)
	}
}

// TestTooManyUnreadableObjects has so many unreadable values that the error does not name all of them.
func TestTooManyUnreadableObjects(t *testing.T) {
	t.Parallel()
	var names []string
	for i := range 150 {
		names = append(names, fmt.Sprintf("sealed%03d", i))
	}
	w := openUnreadable(t, names...)
	_, err := w.registry.List(t.Context(), w.target, registry.ListOptions{})
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		t.Fatal(err)
	}
	all := status.Status().Details.Causes
	if len(all) != 101 || all[100].Type != metav1.CauseTypeTooMany {
		t.Errorf("%d objects are named", len(all))
	}
	const first = "failed to read one or more configmaps from the storage: StorageError: corrupt object, Code: 7, " +
		"Key: /registry/configmaps/a/sealed000, "
	if text := err.Error(); !strings.HasPrefix(text, first) || !strings.HasSuffix(text, " (and 99 more)") {
		t.Errorf("got %s", text)
	}
}

// TestDeleteUnreadable deletes unreadable objects with the option ignoreStoreReadErrorWithClusterBreakingPotential. The
// option requires a separate permission, and a readable object is not deleted with it.
func TestDeleteUnreadable(t *testing.T) {
	t.Parallel()
	w := openUnreadable(t, "garbage", "sealed")
	alice := genericrequest.WithUser(t.Context(), &user.DefaultInfo{Name: "alice"})
	permitted := &deciding{decision: authorizer.DecisionAllow}
	for _, step := range []struct {
		name, object string
		ctx          context.Context
		by           *deciding
		accepted     func(error) bool
	}{
		{"without a user", "sealed", t.Context(), permitted, apierrors.IsForbidden},
		{"without the permission", "sealed", alice, &deciding{}, apierrors.IsForbidden},
		{"the authorizer fails", "sealed", alice, &deciding{err: errRefused}, apierrors.IsForbidden},
		{"readable", "good", alice, permitted, apierrors.IsConflict},
		{"missing", "missing", alice, permitted, apierrors.IsNotFound},
		{"not decryptable", "sealed", alice, permitted, func(err error) bool { return err == nil }},
		{"not decodable", "garbage", alice, permitted, func(err error) bool { return err == nil }},
	} {
		for _, dryRun := range []bool{true, false} {
			err := w.registry.DeleteUnreadable(step.ctx, named(w.target, step.object), step.by, dryRun)
			if !step.accepted(err) {
				t.Errorf("%s, dry run %v: got the error %v", step.name, dryRun, err)
			}
		}
	}
	if got := permitted.asked[len(permitted.asked)-1]; got != "alice unsafe-delete-ignore-read-errors a/garbage" {
		t.Errorf("the authorizer was called for %q", got)
	}
	page := w.list(t, registry.ListOptions{})
	if len(page.Entries) != 1 || page.Entries[0].Name() != "good" {
		t.Errorf("%d objects are left", len(page.Entries))
	}
}

// TestUnreadableWithoutTheFeature reads and deletes with the errors that kube-apiserver has without the feature gate.
func TestUnreadableWithoutTheFeature(t *testing.T) {
	t.Parallel()
	client := etcdtest.Client(t)
	if _, err := client.Put(t.Context(), "/registry/configmaps/a/garbage", "garbage"); err != nil {
		t.Fatal(err)
	}
	w := openWorld(t, client, configMaps())
	failure := errors.New("encode")
	entry, err := w.registry.Get(t.Context(), named(w.target, "garbage"), "")
	if err != nil {
		t.Fatal(err)
	}
	if err := w.registry.GetError(t.Context(), w.target, entry, failure); !errors.Is(err, failure) {
		t.Errorf("get: %v", err)
	}
	if err := w.registry.ListError(
		t.Context(), w.target, w.list(t, registry.ListOptions{}), failure,
	); !errors.Is(err, failure) {
		t.Errorf("list: %v", err)
	}
	_, err = w.registry.Delete(t.Context(), named(w.target, "garbage"), &metav1.DeleteOptions{}, registry.WriteOptions{})
	if err == nil || strings.Contains(err.Error(), "corrupt") || w.registry.DeletesUnreadable() {
		t.Errorf("delete: %v", err)
	}
	object := corev1.ConfigMap{}
	if err := object.Unmarshal([]byte("garbage")); err == nil {
		t.Error("garbage can be decoded")
	}
}

// TestDeleteUnreadableAfterAChange replaces an unreadable object by a readable one after the deletion has read it: the
// deletion examines the new object and refuses to delete it.
func TestDeleteUnreadableAfterAChange(t *testing.T) {
	t.Parallel()
	client := etcdtest.Client(t)
	const key = "/registry/configmaps/a/good"
	if _, err := client.Put(t.Context(), key, "garbage"); err != nil {
		t.Fatal(err)
	}
	kv := client.KV
	client.KV = &beforeTxn{KV: kv, run: func() { storeGood(t, &clientv3.Client{KV: kv}) }}
	w := openConfigured(t, client, configMaps(), func(o *registry.Options) { o.DeleteUnreadable = true })
	alice := genericrequest.WithUser(t.Context(), &user.DefaultInfo{Name: "alice"})
	allowed := &deciding{decision: authorizer.DecisionAllow}
	err := w.registry.DeleteUnreadable(alice, named(w.target, "good"), allowed, false)
	if !apierrors.IsConflict(err) || !strings.Contains(err.Error(), "Key: "+key+", ResourceVersion: 0, "+
		"AdditionalErrorMsg: unsafe deletion is not allowed because the object is decodable from storage") {
		t.Errorf("got %v, want a conflict", err)
	}
}

// beforeTxn calls run before the first transaction.
type beforeTxn struct {
	clientv3.KV
	once sync.Once
	run  func()
}

func (b *beforeTxn) Txn(ctx context.Context) clientv3.Txn {
	b.once.Do(b.run)
	return b.KV.Txn(ctx)
}
