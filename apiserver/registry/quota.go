package registry

import (
	"errors"
	"net/http"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/storage"
)

// leases keep nodes and leaders alive. They are small and few.
var leases = schema.GroupResource{Group: coordinationv1.GroupName, Resource: "leases"}

// smallGrowth is the number of bytes by which one write may enlarge a lease, or an object that is being deleted, in
// spite of the quota. It is several times the size of a lease, and more than the conditions of a deletion add.
const smallGrowth = 4 << 10

// checkQuota applies the soft quota to an object that replaces old, nil for a new object; before and after are the
// sizes of the stored object in bytes. Exempt are writes that free space or keep the cluster alive: leases and objects
// that are being deleted as long as they grow by at most smallGrowth, and the server's own writes. Clients choose the
// size of leases; without the limit, a client that may only create leases could fill the database.
func (r *Registry) checkQuota(t resource.Target, old runtime.Object, before, after int, options WriteOptions) error {
	if options.Internal || options.DryRun {
		return nil
	}
	if after-before <= smallGrowth && (t.GroupResource() == leases || beingDeleted(old)) {
		return nil
	}
	return r.storageOf(t.Match).Quota.Admit(before, after)
}

// beingDeleted reports whether the deletion of an object, which may be nil, has begun.
func beingDeleted(object runtime.Object) bool {
	if object == nil {
		return false
	}
	accessor, err := meta.Accessor(object)
	return err == nil && accessor.GetDeletionTimestamp() != nil
}

// reasonNoSpace is the reason of a Status with code 507. Kubernetes has none: kube-apiserver answers 500.
const reasonNoSpace metav1.StatusReason = "InsufficientStorage"

// noSpaceMessage is the message when etcd has reached its own quota. It begins with etcd's error text, which
// kube-apiserver returns.
const noSpaceMessage = "etcdserver: mvcc: database space exceeded: only deletions succeed until the etcd database " +
	"has room; delete objects, then defragment it with 'quorate etcd defrag', or raise its quota"

// noSpace is the error for a write that storage has no space for. client-go does not retry it.
func noSpace(err error, t resource.Target) error {
	message := noSpaceMessage
	var full *storage.FullError
	var disk *storage.DiskFullError
	switch {
	case errors.As(err, &full):
		message = full.Error()
	case errors.As(err, &disk):
		message = disk.Error()
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusInsufficientStorage, Reason: reasonNoSpace, Message: message,
		Details: &metav1.StatusDetails{Group: t.Group, Kind: t.Plural, Name: t.Name},
	}}
}
