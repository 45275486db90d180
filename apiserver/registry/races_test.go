package registry_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/apiserver/registry"
	"quorate.dev/apiserver/registry/change"
	"quorate.dev/apiserver/resource"
)

// rival is a concurrent client of the same etcd that always wins: just before a transaction deletes a key, it runs
// the next of its actions on the key.
type rival struct {
	clientv3.KV
	actions []func(ctx context.Context, kv clientv3.KV, key string) error
}

func (r *rival) Txn(ctx context.Context) clientv3.Txn {
	return &rivalTxn{Txn: r.KV.Txn(ctx), rival: r, ctx: ctx}
}

type rivalTxn struct {
	clientv3.Txn
	rival *rival
	ctx   context.Context
	keys  []string
}

func (t *rivalTxn) If(conditions ...clientv3.Cmp) clientv3.Txn {
	t.Txn = t.Txn.If(conditions...)
	return t
}

func (t *rivalTxn) Then(operations ...clientv3.Op) clientv3.Txn {
	for _, operation := range operations {
		if operation.IsDelete() {
			t.keys = append(t.keys, string(operation.KeyBytes()))
		}
	}
	t.Txn = t.Txn.Then(operations...)
	return t
}

func (t *rivalTxn) Else(operations ...clientv3.Op) clientv3.Txn {
	t.Txn = t.Txn.Else(operations...)
	return t
}

func (t *rivalTxn) Commit() (*clientv3.TxnResponse, error) {
	for _, key := range t.keys {
		if len(t.rival.actions) == 0 {
			break
		}
		action := t.rival.actions[0]
		t.rival.actions = t.rival.actions[1:]
		if err := action(t.ctx, t.rival.KV, key); err != nil {
			return nil, err
		}
	}
	return t.Txn.Commit()
}

// touch rewrites the key with the same value.
func touch(ctx context.Context, kv clientv3.KV, key string) error {
	response, err := kv.Get(ctx, key)
	if err != nil {
		return err
	}
	_, err = kv.Put(ctx, key, string(response.Kvs[0].Value))
	return err
}

func remove(ctx context.Context, kv clientv3.KV, key string) error {
	_, err := kv.Delete(ctx, key)
	return err
}

// graceful is a strategy of objects with a grace period: they are marked before they are removed.
type graceful struct{ plain }

func (graceful) CheckGracefulDelete(context.Context, runtime.Object, *metav1.DeleteOptions) bool {
	return true
}

// againstRival returns a registry whose deletions race with a rival. gracefully selects a strategy with a grace
// period.
func againstRival(t *testing.T, gracefully bool) (*registry.Registry, resource.Target, *rival) {
	t.Helper()
	definition := configMaps()
	if gracefully {
		endpoint := definition.Versions[0].Endpoints[""]
		endpoint.Delete = graceful{endpoint.Update.(plain)}
	}
	client := etcdtest.Client(t)
	rival := &rival{KV: client.KV}
	client.KV = rival
	r, target, _ := openOn(t, client, definition)
	return r, target, rival
}

// A deletion that has marked the object succeeds even if a concurrent request removes it first.
func TestDeletionFinishedByConcurrentRequest(t *testing.T) {
	r, target, rival := againstRival(t, true)
	for name, actions := range map[string][]func(context.Context, clientv3.KV, string) error{
		"gone":                   {remove},
		"changed":                {touch},
		"changed, then gone":     {touch, remove},
		"changed twice and gone": {touch, touch, remove},
	} {
		// The attempt must start from this object, not from a cached one of an earlier case.
		if _, err := r.Get(t.Context(), named(target, "counter"), create(t, r)); err != nil {
			t.Fatal(err)
		}
		rival.actions = actions
		if err := clientOf(r).Delete(t.Context(), configMap("counter"), metav1.NewDeleteOptions(0)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := clientOf(r).Get(t.Context(), configMap("counter"), resource.ReadOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("%s: got %v afterwards", name, err)
		}
	}
}

// A deletion without a grace period fails with NotFound if a concurrent request removes the object first.
func TestDeletionLostToConcurrentRequest(t *testing.T) {
	r, _, rival := againstRival(t, false)
	create(t, r)
	rival.actions = append(rival.actions, remove)
	if err := clientOf(r).Delete(t.Context(), configMap("counter"), &metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("got %v", err)
	}
}

// Two concurrent requests may both remove the last finalizer.
func TestLastFinalizerRemovedConcurrently(t *testing.T) {
	r, _, rival := againstRival(t, false)
	held := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "held", Namespace: "a", Finalizers: []string{"example.com/hold"}},
	}
	if _, err := clientOf(r).Create(t.Context(), configMap(""), held, resource.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := clientOf(r).Delete(t.Context(), configMap("held"), &metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	rival.actions = append(rival.actions, remove)
	released, err := clientOf(r).Update(t.Context(), configMap("held"), func(object runtime.Object) error {
		object.(*corev1.ConfigMap).Finalizers = nil
		return nil
	}, resource.WriteOptions{})
	if err != nil || len(released.(*corev1.ConfigMap).Finalizers) > 0 {
		t.Errorf("got %v, %v", released, err)
	}
}

// creatable is a strategy that allows create on update.
type creatable struct{ plain }

func (creatable) AllowCreateOnUpdate(context.Context) bool { return true }

// Of many concurrent updates of a missing object, one creates it and the others update it.
func TestConcurrentUpdatesThatCreate(t *testing.T) {
	const clients = 10
	definition := configMaps()
	endpoint := definition.Versions[0].Endpoints[""]
	endpoint.Update = creatable{endpoint.Update.(plain)}
	r, target, _ := openOn(t, etcdtest.Client(t), definition)
	for round := range 5 {
		target.Name = fmt.Sprintf("x%d", round)
		created := make(chan bool, clients)
		written := outcomes(clients, func() error {
			object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: target.Name, Namespace: "a"}}
			result, err := r.Update(t.Context(), target, change.Replacement{Object: object}, registry.WriteOptions{})
			if err == nil {
				created <- result.Outcome == registry.Created
			}
			return err
		})
		if written.ok != clients {
			t.Fatalf("%d of %d succeeded: %v", written.ok, clients, written.errs)
		}
		var creations int
		for range clients {
			if <-created {
				creations++
			}
		}
		if creations != 1 {
			t.Errorf("%d were created", creations)
		}
	}
}

// An update that creates an object discards the system fields that the client has copied from a deleted object.
func TestUpdateThatCreatesWipesSystemFields(t *testing.T) {
	t.Parallel()
	definition := configMaps()
	endpoint := definition.Versions[0].Endpoints[""]
	endpoint.Update = creatable{endpoint.Update.(plain)}
	r, target, _ := openOn(t, etcdtest.Client(t), definition)
	target.Name = "x"
	deleted := metav1.Unix(1, 0)
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Name: "x", Namespace: "a", Finalizers: []string{"example.com/x"}, SelfLink: "/x", CreationTimestamp: deleted,
		DeletionTimestamp: &deleted, DeletionGracePeriodSeconds: ptr.To[int64](30),
	}}
	result, err := r.Update(t.Context(), target, change.Replacement{Object: object}, registry.WriteOptions{})
	if err != nil || result.Outcome != registry.Created {
		t.Fatalf("got %+v, %v", result, err)
	}
	created := result.Object.(*corev1.ConfigMap)
	if created.DeletionTimestamp != nil || created.DeletionGracePeriodSeconds != nil || created.SelfLink != "" {
		t.Errorf("got the metadata %+v", created.ObjectMeta)
	}
	if created.UID == "" || !created.CreationTimestamp.After(deleted.Time) {
		t.Errorf("got the UID %q and the creation timestamp %v", created.UID, created.CreationTimestamp)
	}
}

// remainingItemCount is right for a page of several chunks, at a revision that only storage has.
func TestRemainingOfALargePage(t *testing.T) {
	const stored, limit = 10_030, 10_010
	client := etcdtest.Client(t)
	definition := configMaps()
	data, err := definition.Versions[0].Codec.Store(t.Context(), &corev1.ConfigMap{})
	if err != nil {
		t.Fatal(err)
	}
	revision := putMany(t, client, definition, stored, string(data))
	putMany(t, client, definition, 1, string(data))
	r, target, _ := openOn(t, client, definition)
	page, err := r.List(t.Context(), target, registry.ListOptions{
		ResourceVersion: strconv.FormatInt(revision, 10), Match: metav1.ResourceVersionMatchExact, Limit: limit,
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(page.Entries) != limit || page.Continue == "" || ptr.Deref(page.Remaining, -1) != stored-limit {
		t.Errorf("%d entries, %v remain", len(page.Entries), ptr.Deref(page.Remaining, -1))
	}
}

// putMany writes objects directly to etcd and returns the revision of the last one.
func putMany(
	t *testing.T, client *clientv3.Client, definition *resource.Definition, count int, data string,
) (revision int64) {
	t.Helper()
	const largest = 100 // operations per transaction
	for begin := 0; begin < count; begin += largest {
		var puts []clientv3.Op
		for i := begin; i < min(begin+largest, count); i++ {
			puts = append(puts, clientv3.OpPut(fmt.Sprintf("/registry/%s/a/%06d", definition.StoragePath, i), data))
		}
		response, err := client.Txn(t.Context()).Then(puts...).Commit()
		if err != nil {
			t.Fatal(err)
		}
		revision = response.Header.Revision
	}
	return revision
}
