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

// With the feature gate AllowUnsafeMalformedObjectDeletion (KEP-3926), objects that cannot be decrypted or decoded are
// named by lists and can be deleted. The texts are those of kube-apiserver's corruptObjectDeleter.

// corruptObject is the text of storage.NewCorruptObjError.
func corruptObject(key string, reason error) error {
	return fmt.Errorf("StorageError: corrupt object, Code: 7, Key: %s, ResourceVersion: 0, AdditionalErrorMsg: %w", key, reason)
}

func undecodable(revision int64, reason error) error {
	return fmt.Errorf("object not decodable revision=%d: %w", revision, reason)
}

// readError is the API status of an error from reading the target's object.
func (r *Registry) readError(err error, t Target) error {
	var unreadable *storage.TransformError
	if r.deletesUnreadable && errors.As(err, &unreadable) {
		return apierrors.NewInternalError(corruptObject("/"+t.path(), unreadable))
	}
	return status(err, t)
}

// GetError returns the error for an object that could not be encoded.
func (r *Registry) GetError(ctx context.Context, t Target, entry *watchcache.Entry, err error) error {
	if err == nil || !r.deletesUnreadable {
		return err
	}
	if reason := decodingError(ctx, t, stateOf(entry)); reason != nil {
		return apierrors.NewInternalError(corruptObject("/"+entry.Path(), undecodable(entry.Revision(), reason)))
	}
	return err
}

// ListError returns the error for a page that could not be encoded.
func (r *Registry) ListError(ctx context.Context, t Target, page *List, err error) error {
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

// deleteError returns the error for a deletion that failed with err.
func (r *Registry) deleteError(ctx context.Context, t Target, err error) error {
	current, readErr := r.storedState(ctx, t)
	switch {
	case readErr != nil:
		return r.readError(readErr, t)
	case !current.found:
		return err
	}
	if reason := decodingError(ctx, t, current); reason != nil {
		return apierrors.NewInternalError(corruptObject("/"+t.path(), undecodable(current.revision, reason)))
	}
	return err
}

// decodingError returns nil for an object that can be decoded, or could be if its conversion webhook worked.
func decodingError(ctx context.Context, t Target, current state) error {
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

// maxUnreadable bounds the objects that an error names.
const maxUnreadable = 100

// unreadableObjects are the causes of the error for a list.
type unreadableObjects struct{ causes []metav1.StatusCause }

// add returns false if there are too many.
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

func (u *unreadableObjects) status(t Target) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Reason: metav1.StatusReasonStoreReadError,
		Details: &metav1.StatusDetails{Group: t.Group, Kind: t.Plural, Name: "list", Causes: u.causes},
		Message: fmt.Sprintf("failed to read one or more %s from the storage", t.GroupResource()),
	}}
}

// unreadable returns the error that names the unreadable objects of a page, from a path on. err is that of reading the
// page.
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

// DeleteUnreadable deletes an object that cannot be decrypted or decoded, without admission and whatever its
// finalizers.
func (r *Registry) DeleteUnreadable(ctx context.Context, t Target) error {
	if err := r.authorizeUnsafeDelete(ctx, t); err != nil {
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
	if err := r.storageOf(t.Match).Store.DeleteUnreadable(ctx, t.path()); !errors.Is(err, storage.ErrNotFound) {
		return status(err, t)
	}
	return nil
}

// authorizeUnsafeDelete checks the permission that unsafe deletions need beside that to delete.
func (r *Registry) authorizeUnsafeDelete(ctx context.Context, t Target) error {
	const verb = "unsafe-delete-ignore-read-errors"
	user, ok := request.UserFrom(ctx)
	if !ok || t.Endpoint.Subresource != "" {
		return apierrors.NewForbidden(t.GroupResource(), t.Name, errors.New(
			"ignoreStoreReadErrorWithClusterBreakingPotential delete option is not allowed on a subresource or non-resource request"))
	}
	decision, reason, err := r.authorizer.Authorize(ctx, authorizer.AttributesRecord{
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
