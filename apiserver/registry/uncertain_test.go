package registry_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"quorate.dev/apiserver/admission"
	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/apiserver/registry"
	"quorate.dev/apiserver/registry/change"
	"quorate.dev/apiserver/resource"
)

// interrupted is a client that calls a function once, after the next transaction has taken effect. An error of the
// function replaces the response of the transaction.
type interrupted struct {
	clientv3.KV
	after atomic.Pointer[func() error]
}

// interrupt sets the function that is called after the next transaction.
func (c *interrupted) interrupt(after func() error) { c.after.Store(&after) }

// loseResponse is a function for interrupt: the response of the transaction is lost.
func loseResponse() error { return rpctypes.ErrTimeout }

func (c *interrupted) Txn(ctx context.Context) clientv3.Txn {
	if after := c.after.Swap(nil); after != nil {
		return interruptedTransaction{c.KV.Txn(ctx), *after}
	}
	return c.KV.Txn(ctx)
}

type interruptedTransaction struct {
	clientv3.Txn
	after func() error
}

func (t interruptedTransaction) If(conditions ...clientv3.Cmp) clientv3.Txn {
	return interruptedTransaction{t.Txn.If(conditions...), t.after}
}

func (t interruptedTransaction) Then(operations ...clientv3.Op) clientv3.Txn {
	return interruptedTransaction{t.Txn.Then(operations...), t.after}
}

func (t interruptedTransaction) Else(operations ...clientv3.Op) clientv3.Txn {
	return interruptedTransaction{t.Txn.Else(operations...), t.after}
}

func (t interruptedTransaction) Commit() (*clientv3.TxnResponse, error) {
	response, err := t.Txn.Commit()
	if err := errors.Join(err, t.after()); err != nil {
		return nil, err
	}
	return response, nil
}

// A write keeps what is reserved for the object if its outcome is unknown, and releases it if the write has no effect.
func TestRollbackNeedsAKnownOutcome(t *testing.T) {
	t.Parallel()
	client := etcdtest.Client(t)
	network := &interrupted{KV: client.KV}
	client.KV = network
	var calls allocations
	chain := &admission.Chain{Reservers: []admission.Reserver{&calls}}
	w := openAdmitted(t, client, configMaps(), chain)
	create := func() error {
		_, err := clientOf(w.registry).Create(t.Context(), configMap(""), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: "one", Namespace: "a"},
		}, resource.WriteOptions{})
		return err
	}
	network.interrupt(loseResponse)
	if err := create(); err == nil || calls != (allocations{reserved: 1}) {
		t.Errorf("lost response: %v, %+v, want one allocation", err, calls)
	}
	calls = allocations{}
	if err := create(); !apierrors.IsAlreadyExists(err) || calls != (allocations{reserved: 1, released: 1}) {
		t.Errorf("existing object: %v, %+v, want the allocation to be released", err, calls)
	}
}

// A write whose response is lost is not attempted again: the second attempt would start from the result of the first
// one. The first attempt starts from the cached object.
func TestUnknownOutcomesAreNotRepeated(t *testing.T) {
	t.Parallel()
	client := etcdtest.Client(t)
	network := &interrupted{KV: client.KV}
	client.KV = network
	w := openWorld(t, client, configMaps())
	for _, name := range []string{"patched", "deleted"} {
		w.put(t, name)
	}
	if _, err := w.registry.List(t.Context(), w.target, registry.ListOptions{}); err != nil { // loads the cache
		t.Fatal(err)
	}

	patched, appending := named(w.target, "patched"), change.Patch{
		Type: types.JSONPatchType, Data: []byte(`[{"op":"add","path":"/metadata/finalizers","value":["example.com/a"]}]`),
	}
	if _, err := w.registry.Patch(t.Context(), patched, appending, registry.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	appending.Data = []byte(`[{"op":"add","path":"/metadata/finalizers/-","value":"example.com/b"}]`)
	network.interrupt(loseResponse)
	result, err := w.registry.Patch(t.Context(), patched, appending, registry.WriteOptions{})
	if err == nil {
		t.Errorf("the patch whose response was lost: %v", result.Object)
	}
	object, err := clientOf(w.registry).Get(t.Context(), configMap("patched"), resource.ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := object.(*corev1.ConfigMap).Finalizers; !slices.Equal(got, []string{"example.com/a", "example.com/b"}) {
		t.Errorf("the patch was applied more than once: %v", got)
	}

	deleted := named(w.target, "deleted")
	network.interrupt(loseResponse)
	_, err = w.registry.Delete(t.Context(), deleted, &metav1.DeleteOptions{}, registry.WriteOptions{})
	if err == nil || apierrors.IsNotFound(err) {
		t.Errorf("the deletion whose response was lost: %v", err)
	}
	if _, err := w.registry.Get(t.Context(), deleted, ""); !apierrors.IsNotFound(err) {
		t.Errorf("after the deletion: %v", err)
	}
}

// A deletion of a collection whose request ends while no worker is deleting an object reports it: objects remain.
func TestDeleteCollectionOfEndedRequest(t *testing.T) {
	t.Parallel()
	client := etcdtest.Client(t)
	network := &interrupted{KV: client.KV}
	client.KV = network
	w := openWorld(t, client, configMaps())
	for i := range 5 {
		w.put(t, fmt.Sprint("x", i))
	}
	request, end := context.WithCancel(t.Context())
	network.interrupt(func() error { end(); return nil }) // after the first object has been deleted
	page, err := w.registry.DeleteCollection(request, w.target,
		registry.DeleteCollectionOptions{Delete: &metav1.DeleteOptions{}, Workers: 1})
	if err == nil {
		t.Errorf("success with %d selected objects", len(page.Entries))
	}
	list, err := w.registry.List(t.Context(), w.target, registry.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer list.Close()
	if len(list.Entries) != 4 {
		t.Errorf("%d objects remain, want 4", len(list.Entries))
	}
}
