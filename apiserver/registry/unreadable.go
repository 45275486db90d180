package registry

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
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
	if reason := decodingError(ctx, t, stateOf(entry)); reason != nil {
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
	found := unreadableObjects{}
	for _, entry := range page.Entries {
		if reason := decodingError(ctx, t, stateOf(entry)); reason != nil &&
			!found.add(r.storageOf(t.Match).Store.Key(entry.Path()), undecodable(entry.Revision(), reason)) {
			break
		}
	}
	if len(found.causes) == 0 {
		return err
	}
	return found.status(t)
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
	if reason := decodingError(ctx, t, current); reason != nil {
		return apierrors.NewInternalError(corruptObject("/"+t.Path(), undecodable(current.revision, reason)))
	}
	return err
}

// decodingError returns nil for an object that can be decoded, or could be if its conversion webhook worked.
func decodingError(ctx context.Context, t resource.Target, current state) error {
	_, err := t.Version.Codec.Load(ctx, current.data)
	var conversion *resource.ConversionError
	if errors.As(err, &conversion) || ctx.Err() != nil {
		return nil
	}
	if reason := errors.Unwrap(err); reason != nil { // without the kind, as in kube-apiserver's text
		return reason
	}
	return err
}

// maxUnreadable bounds the objects that an error names, as in corruptObjErrAggregatorFactory.
const maxUnreadable = 100

// unreadableObjects collects the causes of the error for a list.
type unreadableObjects struct{ causes []metav1.StatusCause }

// add adds an object. It returns false, and adds a cause that says so, if the error already names maxUnreadable
// objects.
func (u *unreadableObjects) add(key string, reason error) bool {
	if len(u.causes) == maxUnreadable {
		u.causes = append(u.causes, metav1.StatusCause{
			Type: metav1.CauseTypeTooMany, Message: "too many errors, the list is truncated",
		})
		return false
	}
	u.causes = append(u.causes, metav1.StatusCause{
		Type: metav1.CauseTypeUnexpectedServerResponse, Field: key, Message: corruptObject(key, reason).Error(),
	})
	return true
}

// status returns the API status of a list with corrupt objects (aggregatedStorageError.NewAPIStatusError).
func (u *unreadableObjects) status(t resource.Target) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Reason: metav1.StatusReasonStoreReadError,
		Details: &metav1.StatusDetails{Group: t.Group, Kind: t.Plural, Name: "list", Causes: u.causes},
		Message: fmt.Sprintf("failed to read one or more %s from the storage", t.GroupResource()),
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
// finalizers. by decides whether the user may do so. It refuses to delete an object that can be read; while etcd does
// not respond, it cannot know and returns the error. It mirrors corruptObjectDeleter.Delete.
func (r *Registry) DeleteUnreadable(ctx context.Context, t resource.Target, by authorizer.Authorizer) error {
	if err := authorizeUnsafeDelete(ctx, t, by); err != nil {
		return err
	}
	current, err := r.storedState(ctx, t)
	if err == nil && current.found {
		err = decodingError(ctx, t, current)
	}
	if err == nil {
		return apierrors.NewInvalid(schema.GroupKind{Group: t.Group, Kind: t.Plural}, t.Name, field.ErrorList{field.Invalid(
			field.NewPath("ignoreStoreReadErrorWithClusterBreakingPotential"), true,
			"is exclusively used to delete corrupt object(s), try again by removing this option")})
	}
	if errors.Is(err, storage.ErrUnavailable) || ctx.Err() != nil {
		return status(err, t)
	}
	if err := r.storageOf(t.Match).Store.DeleteUnreadable(ctx, t.Path()); !errors.Is(err, storage.ErrNotFound) {
		return status(err, t)
	}
	return nil
}

// authorizeUnsafeDelete checks the permission that unsafe deletions need in addition to the permission to delete.
func authorizeUnsafeDelete(ctx context.Context, t resource.Target, by authorizer.Authorizer) error {
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
