package registry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"

	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/storage"
	"quorate.dev/apiserver/watchcache"
)

// With the feature gate AllowUnsafeMalformedObjectDeletion (KEP-3926), the errors of lists name the objects that cannot
// be decrypted or decoded, and such objects can be deleted. The texts are the same as in etcd3/corrupt_obj_deleter.go.
// Apart from DeleteUnreadable, the functions of this file run only after an error, so that requests for readable
// objects cost nothing.

// corruptObject returns an error with the text of storage.NewCorruptObjError.
func corruptObject(key string, reason error) error {
	return fmt.Errorf("StorageError: corrupt object, Code: 7, Key: %s, ResourceVersion: 0, AdditionalErrorMsg: %w",
		key, reason)
}

// undecodable returns an error with the text of etcd3 for an object that has been decrypted but cannot be decoded.
func undecodable(revision int64, reason error) error {
	return fmt.Errorf("object not decodable revision=%d: %w", revision, reason)
}

// readError returns the API status of an error from reading the target's object.
func (r *Registry) readError(err error, t resource.Target) error {
	var unreadable *storage.TransformError
	if r.deletesUnreadable && errors.As(err, &unreadable) {
		return apierrors.NewInternalError(corruptObject("/"+t.Path(), unreadable))
	}
	return status(err, t)
}

// GetError returns the error for an object that could not be encoded. Reads return entries without decoding them, so
// that handlers notice a corrupt object only when they encode the response.
func (r *Registry) GetError(ctx context.Context, t resource.Target, entry *watchcache.Entry, err error) error {
	if err == nil || !r.deletesUnreadable {
		return err
	}
	if reason := failedLoad(ctx, t, stateOf(entry), err); reason != nil {
		return apierrors.NewInternalError(corruptObject("/"+entry.Path(), undecodable(entry.Revision(), reason)))
	}
	return err
}

// ListError returns the error for a page that could not be encoded. It decodes all objects of the page to name every
// corrupt one, up to maxUnreadable.
func (r *Registry) ListError(ctx context.Context, t resource.Target, page *List, err error) error {
	if err == nil || !r.deletesUnreadable {
		return err
	}
	found := r.undecodableEntries(ctx, t, page.Entries)
	switch {
	case len(found.causes) == 0:
		return err
	case page.needsCache && t.ConvertsRemotely:
		return uncacheable(found.status(t))
	}
	return found.status(t)
}

// unconvertible returns the error of a list whose selectors failed with err because a conversion webhook could not
// convert an object of the snapshot.
func (l *listing) unconvertible(ctx context.Context, snapshot *watchcache.Snapshot, err error) error {
	var conversion *resource.ConversionError
	if !l.registry.deletesUnreadable || !l.target.ConvertsRemotely || !errors.As(err, &conversion) {
		return err
	}
	var entries []*watchcache.Entry
	snapshot.Ascend(l.collection, l.from, func(e *watchcache.Entry) bool {
		entries = append(entries, e)
		return true
	})
	found := l.registry.undecodableEntries(ctx, l.target, entries)
	if len(found.causes) == 0 {
		return err
	}
	return uncacheable(found.status(l.target))
}

// uncacheable returns the error of a list that kube-apiserver serves only from an initialized watch cache. The watch
// cache of kube-apiserver has converted objects, so that an object whose conversion fails prevents the
// initialization.
func uncacheable(err error) error {
	const retryAfter = 1 // seconds
	return apierrors.NewTooManyRequests(
		"storage is (re)initializing: failed to list <unspecified>: "+err.Error(), retryAfter)
}

// undecodableEntries decodes entries one by one to find those that cannot be decoded.
func (r *Registry) undecodableEntries(
	ctx context.Context, t resource.Target, entries []*watchcache.Entry,
) (found unreadableObjects) {
	for chunk := range slices.Chunk(entries, minPageSize) {
		for _, entry := range skipDecodable(ctx, t, chunk) {
			if reason := decodingError(ctx, t, stateOf(entry)); reason != nil &&
				!found.add(r.storageOf(t.Match).Store.Key(entry.Path()), undecodable(entry.Revision(), reason)) {
				return found
			}
		}
	}
	return found
}

// deleteError returns the error for a deletion that failed with err: the error that names the object if it is corrupt,
// else err.
func (r *Registry) deleteError(ctx context.Context, t resource.Target, err error) error {
	current, readErr := r.storedState(ctx, t)
	switch {
	case readErr != nil:
		return r.readError(readErr, t)
	case !current.found:
		return err
	}
	if reason := failedLoad(ctx, t, current, err); reason != nil {
		return apierrors.NewInternalError(corruptObject("/"+t.Path(), undecodable(current.revision, reason)))
	}
	return err
}

// updateError returns the error for an update of an object that could not be decoded.
func (r *Registry) updateError(ctx context.Context, t resource.Target, current state, err error) error {
	if !r.deletesUnreadable {
		return err
	}
	if reason := failedLoad(ctx, t, current, err); reason != nil {
		return undecodable(current.revision, reason)
	}
	return err
}

// skipDecodable returns the entries without those at the beginning that a conversion webhook can convert together. It
// saves calls of the webhook; entries that no webhook converts are returned unchanged.
func skipDecodable(ctx context.Context, t resource.Target, entries []*watchcache.Entry) []*watchcache.Entry {
	if !t.ConvertsRemotely {
		return entries
	}
	stored := make([][]byte, 0, len(entries))
	for _, entry := range entries {
		stored = append(stored, entry.Stored())
	}
	objects, _ := t.Version.Codec.LoadAll(ctx, stored) // the error of each object is found when it is decoded alone
	return entries[len(objects):]
}

// failedLoad returns decodingError for an object whose request failed with failure. It calls no conversion webhook: if
// that failed, failure has its error.
func failedLoad(ctx context.Context, t resource.Target, current state, failure error) error {
	var conversion *resource.ConversionError
	switch {
	case errors.As(failure, &conversion):
		return conversion.Err
	case t.Version.Codec.Remote(current.data):
		return nil
	}
	return decodingError(ctx, t, current)
}

// decodingError returns nil for an object that can be decoded. As in kube-apiserver, an object that its conversion
// webhook cannot convert counts as corrupt.
func decodingError(ctx context.Context, t resource.Target, current state) error {
	_, err := t.Version.Codec.Load(ctx, current.data)
	if ctx.Err() != nil {
		return nil
	}
	if reason := errors.Unwrap(err); reason != nil { // without the kind, as in kube-apiserver's text
		return reason
	}
	return err
}

// maxUnreadable bounds the objects that an error names, like maxCorruptObjErrsToAggregate of kube-apiserver.
const maxUnreadable = 100

// unreadableObjects collects the causes of the error for a list.
type unreadableObjects struct{ causes []metav1.StatusCause }

// add adds an object. It returns false, and adds a cause that says so, when the error names maxUnreadable objects.
func (u *unreadableObjects) add(key string, reason error) bool {
	u.causes = append(u.causes, metav1.StatusCause{
		Type: metav1.CauseTypeUnexpectedServerResponse, Field: key, Message: corruptObject(key, reason).Error(),
	})
	if len(u.causes) < maxUnreadable {
		return true
	}
	u.causes = append(u.causes, metav1.StatusCause{
		Type: metav1.CauseTypeTooMany, Message: "too many errors, the list is truncated",
	})
	return false
}

// status returns the API status of a list with corrupt objects (aggregatedStorageError.NewAPIStatusError). Its message
// has the first object.
func (u *unreadableObjects) status(t resource.Target) error {
	message := fmt.Sprintf("failed to read one or more %s from the storage: %s", t.GroupResource(), u.causes[0].Message)
	if more := min(len(u.causes), maxUnreadable) - 1; more > 0 {
		message += fmt.Sprintf(" (and %d more)", more)
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Reason: metav1.StatusReasonStoreReadError,
		Details: &metav1.StatusDetails{Group: t.Group, Kind: t.Plural, Name: "list", Causes: u.causes},
		Message: message,
	}}
}

// unreadable returns the error that names the unreadable objects of a page, from a path on. err is the error of reading
// the page; it is returned if it has another cause. unreadable reads the rest of the page, without limit the rest of
// the collection, in chunks that are not kept.
func (l *listing) unreadable(ctx context.Context, page *List, from string, err error) error {
	var first *storage.TransformError
	if !l.registry.deletesUnreadable || !errors.As(err, &first) {
		return err
	}
	found, readable := unreadableObjects{}, int64(len(page.Entries))
	for more := true; more; {
		chunk, err := l.storage().Store.List(ctx, l.collection, storage.ListOptions{
			Revision: page.Revision, From: from, Limit: maxPageSize, Unreadable: true,
		})
		if err != nil {
			return err
		}
		for _, value := range chunk.Values {
			reason := value.Err
			if reason == nil {
				if reason = decodingError(ctx, l.target, state{data: value.Data}); reason != nil {
					reason = undecodable(value.Revision, reason)
				}
			}
			if reason == nil {
				readable++
			} else if !found.add(l.storage().Store.Key(value.Path), reason) {
				return found.status(l.target)
			}
			if l.options.Limit > 0 && readable == l.options.Limit {
				return found.status(l.target)
			}
			from = value.Path + firstKeyAfter
		}
		more = chunk.More && len(chunk.Values) > 0
	}
	if len(found.causes) == 0 { // a KMS plugin works again
		return err
	}
	return found.status(l.target)
}

// DeletesUnreadable reports whether DeleteUnreadable is available.
func (r *Registry) DeletesUnreadable() bool { return r.deletesUnreadable }

// DeleteUnreadable deletes an object that cannot be decrypted or decoded, without admission and regardless of its
// finalizers. by decides whether the user may do so. An object that can be read is not deleted. If the object changes
// between the examination and the deletion, DeleteUnreadable examines the new object. If etcd does not respond,
// DeleteUnreadable returns the error of etcd, because the object may be readable. A dry run only examines the object.
// DeleteUnreadable mirrors corruptObjectDeleter.Delete.
func (r *Registry) DeleteUnreadable(
	ctx context.Context, t resource.Target, by authorizer.UnconditionalAuthorizer, dryRun bool,
) error {
	if err := authorizeUnsafeDelete(ctx, t, by); err != nil {
		return err
	}
	store := r.storageOf(t.Match).Store
	for {
		revision, err := r.unreadableRevision(ctx, t)
		if err != nil || dryRun {
			return err
		}
		if deleted, err := store.DeleteUnreadable(ctx, t.Path(), revision); err != nil || deleted {
			return status(err, t)
		}
	}
}

// unreadableRevision returns the revision of the target's object, which cannot be decrypted or decoded, or the error
// for the client if the object is missing or can be read.
func (r *Registry) unreadableRevision(ctx context.Context, t resource.Target) (int64, error) {
	current, err := r.storedState(ctx, t)
	var unreadable *storage.TransformError
	switch {
	case errors.As(err, &unreadable):
		return current.revision, nil
	case err != nil:
		return 0, status(err, t)
	case !current.found:
		return 0, apierrors.NewNotFound(t.GroupResource(), t.Name)
	case decodingError(ctx, t, current) != nil:
		return current.revision, nil
	case ctx.Err() != nil:
		return 0, status(ctx.Err(), t)
	}
	return 0, apierrors.NewConflict(t.GroupResource(), t.Name, fmt.Errorf("StorageError: invalid object, Code: 4, "+
		"Key: %s, ResourceVersion: 0, AdditionalErrorMsg: unsafe deletion is not allowed because the object is decodable "+
		"from storage", r.storageOf(t.Match).Store.Key(t.Path())))
}

// authorizeUnsafeDelete checks the permission that unsafe deletions need in addition to the permission to delete.
func authorizeUnsafeDelete(ctx context.Context, t resource.Target, by authorizer.UnconditionalAuthorizer) error {
	const verb = "unsafe-delete-ignore-read-errors"
	user, ok := request.UserFrom(ctx)
	if !ok || t.Endpoint.Subresource != "" {
		return apierrors.NewForbidden(t.GroupResource(), t.Name, errors.New(
			"ignoreStoreReadErrorWithClusterBreakingPotential delete option is not allowed on a subresource or non-resource "+
				"request"))
	}
	decision, reason, err := by.Authorize(ctx, authorizer.AttributesRecord{
		User: user, Verb: verb, ResourceRequest: true, APIGroup: t.Group, APIVersion: t.Version.Name, Resource: t.Plural,
		Namespace: t.Namespace, Name: t.Name,
	})
	switch {
	case err != nil:
		err = fmt.Errorf("error while checking permission for %q, %w", verb, err)
	case decision != authorizer.DecisionAllow:
		err = fmt.Errorf("not permitted to do %q, reason: %s", verb, reason)
	default:
		return nil
	}
	return apierrors.NewForbidden(t.GroupResource(), t.Name, err)
}
