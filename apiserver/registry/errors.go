package registry

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/apiserver/registry/change"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/storage"
	"quorate.dev/apiserver/watchcache"
)

// modifiedMessage mirrors kube-apiserver; some clients match it to decide whether to retry.
const modifiedMessage = "the object has been modified; please apply your changes to the latest version and try again"

// status converts an error of storage or the watch cache into the API status that kube-apiserver returns. It
// corresponds to the interpretation of etcd's errors in etcd3, followed by storeerr.InterpretGetError and the like. API
// statuses, errors of an Edit, and watchcache.ErrDropped, which callers handle, stay as they are. The order of the
// cases matters: an error of a write with an unknown outcome may wrap the error of its context.
func status(err error, t resource.Target) error {
	var conflict *storage.ConflictError
	var large *storage.TooLargeError
	var api apierrors.APIStatus
	var edit *change.EditError
	var unready *watchcache.InitializingError
	var unreadable *storage.TransformError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &edit), errors.As(err, &api), errors.Is(err, watchcache.ErrDropped):
		return err
	case errors.As(err, &unreadable):
		return apierrors.NewInternalError(unreadable)
	case errors.As(err, &unready):
		return initializing(unready, t)
	case errors.Is(err, storage.ErrNotFound):
		return apierrors.NewNotFound(t.GroupResource(), t.Name)
	case errors.Is(err, storage.ErrExists):
		return apierrors.NewAlreadyExists(t.GroupResource(), t.Name)
	case errors.As(err, &conflict):
		return apierrors.NewConflict(t.GroupResource(), t.Name, errors.New(modifiedMessage))
	case errors.Is(err, storage.ErrCompacted), errors.Is(err, watchcache.ErrExpired):
		return apierrors.NewResourceExpired("The resourceVersion for the provided list is too old.")
	case errors.Is(err, context.DeadlineExceeded):
		return apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0)
	case errors.Is(err, storage.ErrUnavailable):
		return apierrors.NewTimeoutError(err.Error(), 0)
	case errors.Is(err, storage.ErrNoSpace):
		return noSpace(err, t)
	case errors.As(err, &large):
		return large // only the message of etcd, like kube-apiserver
	}
	return err // becomes code 500 with the plain message, like in kube-apiserver
}

// internalError is the error for an object that cannot be decoded or encoded. As in kube-apiserver, the failure of a
// conversion webhook is code 500 with the plain message.
func internalError(err error) error {
	var conversion *resource.ConversionError
	if errors.As(err, &conversion) || apierrors.IsRequestEntityTooLargeError(err) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return err
	}
	return apierrors.NewInternalError(err)
}

// notServed is the error for a resource that was removed during the request.
func notServed(t resource.Target) error {
	return apierrors.NewGenericServerResponse(http.StatusNotFound, "", t.GroupResource(), t.Name, "", 0, true)
}

// tooLarge is the error for a read at a revision that the server has not reached.
func tooLarge(requested, current int64) error { return tooLargeFor(1, requested, current) }

// tooLargeFor is tooLarge with the number of seconds after which the client retries.
func tooLargeFor(retry int, requested, current int64) error {
	err := apierrors.NewTimeoutError(fmt.Sprintf("Too large resource version: %d, current: %d", requested, current), retry)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{
		Type:    metav1.CauseTypeResourceVersionTooLarge,
		Message: "Too large resource version",
	}}
	return err
}
