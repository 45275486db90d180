package registry

import (
	"errors"
	"net/http"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"quorate.dev/apiserver/storage"
)

// leases keep nodes and leaders alive. They are small, and few are ever created.
var leases = schema.GroupResource{Group: coordinationv1.GroupName, Resource: "leases"}

// littleGrowth is by how many bytes a lease, or an object that is being deleted, may grow at a time whatever the quota
// says: several times what a lease takes, and what the conditions of a deletion add.
const littleGrowth = 4 << 10

// admitSize asks the soft quota whether an object may be stored in place of old, nil for a new one; sizes are in bytes.
// What frees space or keeps the cluster alive is always admitted: leases and objects that are being deleted, as long as
// they grow little, and the server's own writes. Clients choose how large leases are: without the limit a client that
// may do nothing but create leases could fill the database.
func (r *Registry) admitSize(t Target, old runtime.Object, before, after int, options WriteOptions) error {
	if options.Internal || options.DryRun {
		return nil
	}
	if after-before <= littleGrowth && (t.GroupResource() == leases || beingDeleted(old)) {
		return nil
	}
	return r.quota.Admit(before, after)
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

// etcdRefuses is the message when etcd has reached its own quota. It begins with etcd's words, which
// kube-apiserver's clients see too.
const etcdRefuses = "etcdserver: mvcc: database space exceeded: only deletions succeed until the etcd database has " +
	"room; delete objects, then defragment it with 'quorate etcd defrag', or raise its quota"

// noSpace is the answer to a write that storage has no space for. Clients do not repeat it by themselves.
func noSpace(err error, t Target) error {
	message := etcdRefuses
	var full *storage.FullError
	if errors.As(err, &full) {
		message = full.Error()
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusInsufficientStorage, Reason: reasonNoSpace, Message: message,
		Details: &metav1.StatusDetails{Group: t.Group, Kind: t.Plural, Name: t.Name},
	}}
}
