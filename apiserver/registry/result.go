package registry

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"quorate.dev/apiserver/encoding"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/watchcache"
)

// Outcome is the effect of a write on storage. In a dry run it is the effect that the write would have had.
type Outcome int

const (
	// Unchanged: storage already holds the object, or its deletion is pending. Nothing was written.
	Unchanged Outcome = iota
	// Created: the object was created, or an action ran.
	Created
	// Updated: the object was replaced.
	Updated
	// Marked: the object was stored with a deletion timestamp. It stays until its finalizers are removed or its grace
	// period ends.
	Marked
	// StillMarked is Marked for an object that was stored in that form before. Nothing was written.
	StillMarked
	// Deleted: the object was removed.
	Deleted
	// Finalized: a marked object was removed, by this request or by a concurrent one. The client sees its last state.
	Finalized
	// DeletedEmpty is the dry run of a deletion that removes the last finalizer. Like kube-apiserver's, it returns an
	// object without content.
	DeletedEmpty
)

// Deleted reports whether the object is gone from storage.
func (o Outcome) Deleted() bool { return o == Deleted || o == Finalized || o == DeletedEmpty }

// Undecorated reports whether the client sees the object as stored, without Definition.Decorate.
func (o Outcome) Undecorated() bool { return o == Marked || o == StillMarked || o == Finalized }

// wroteNothing reports whether the outcome is only true if the attempt started from the current state, because no
// transaction has compared the revision. retry then verifies a state from the watch cache.
func (o Outcome) wroteNothing() bool { return o == Unchanged || o == StillMarked }

// Result is the result of a write.
type Result struct {
	Outcome Outcome
	// Object is the internal version object that was written, or the response of an action. The caller owns it.
	Object runtime.Object
	// Stored is the content of storage after the write, or the last content of a deleted object; nil after an action, and
	// for a Finalized object that a webhook would have to convert: Object is the response then. Other responses are
	// encoded from it, so that a write and a later read return the same bytes.
	Stored   []byte
	Revision int64
	// DryRun is set if nothing was written because the client asked for a dry run.
	DryRun bool
}

// WriteOptions are common to all writes.
type WriteOptions struct {
	DryRun bool
	// Manager is the field manager recorded in managedFields.
	Manager string
	// Options are the client's options, for admission; nil for the server's own writes.
	Options runtime.Object
	// Internal marks the server's own writes; only admission plugins with Internal set see them. They need no
	// authorization.
	Internal bool
	// Authorizer decides whether the user of an update or a patch may create the object, unless Internal is set. It is an
	// argument because authorization reads through the registry.
	Authorizer authorizer.UnconditionalAuthorizer
	// Collection is set while an object is deleted as part of its collection.
	Collection bool

	// applied is set for server-side apply: the next apply needs the managed fields of this one, so that they are not
	// dropped to fit a size limit.
	applied bool
}

// Decode decodes an entry as clients of the target's version see it. The caller owns the object. Decode waits for a
// conversion webhook if the entry is stored in another version and has not been converted before.
func (r *Registry) Decode(ctx context.Context, t resource.Target, entry *watchcache.Entry) (runtime.Object, error) {
	return visibleState(ctx, t, stateOf(entry), false)
}

// DecodeResult decodes the stored bytes of a result as clients see them. The caller owns the object.
func (r *Registry) DecodeResult(ctx context.Context, t resource.Target, result *Result) (runtime.Object, error) {
	return visibleState(ctx, t, state{data: result.Stored, revision: result.Revision}, result.Outcome.Undecorated())
}

// Offer gives the encoding made for the response of a write to the watch cache, for readers of the same format. item
// must not be changed afterwards. Offer ignores results that are not in storage: dry runs, and deletions.
func (r *Registry) Offer(t resource.Target, result *Result, format encoding.Format, item []byte) {
	if result.DryRun || result.Outcome.Deleted() {
		return
	}
	accessor, err := meta.Accessor(result.Object)
	if err != nil {
		return
	}
	r.Cache(t.Match).Offer(t.Named(accessor.GetName()).Path(), result.Revision, format, item)
}

// dryRunResult is the result of a dry-run create. A resourceVersion that the client sent is kept, like in
// kube-apiserver.
func dryRunResult(ctx context.Context, t resource.Target, object runtime.Object) (*Result, error) {
	data, err := t.Version.Codec.Store(ctx, object)
	if err != nil {
		return nil, internalError(err)
	}
	return &Result{Outcome: Created, Object: object, Stored: data, DryRun: true}, nil
}
