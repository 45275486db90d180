package storage

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

var (
	// ErrNotFound says that nothing is stored under the path.
	ErrNotFound = errors.New("not found")
	// ErrExists says that something is stored under the path already.
	ErrExists = errors.New("exists already")
	// ErrCompacted says that the revision asked for is no longer kept.
	ErrCompacted = errors.New("revision has been compacted")
	// ErrFuture says that the revision asked for has not been reached.
	ErrFuture = errors.New("revision is in the future")
	// ErrUnavailable says that etcd did not answer. Whether a write happened is unknown.
	ErrUnavailable = errors.New("storage is unavailable")
	// ErrTooLarge says that etcd refuses a write of this size.
	ErrTooLarge = errors.New("too large for storage")
	// ErrNoSpace says that the database has reached its quota.
	ErrNoSpace = errors.New("storage is full")
)

// ConflictError says that a path is not at the revision that a write expected.
type ConflictError struct {
	Current Value // what is stored now, if Found
	Found   bool
}

func (e *ConflictError) Error() string {
	if !e.Found {
		return "conflict: nothing is stored any more"
	}
	return fmt.Sprintf("conflict: %s is at revision %d", e.Current.Path, e.Current.Revision)
}

// TooLargeError is ErrTooLarge in the words of whoever refused: etcd, or the client, which sends no message of that size.
type TooLargeError struct{ Reason error }

func (e *TooLargeError) Error() string { return e.Reason.Error() }

// Unwrap makes it ErrTooLarge too.
func (e *TooLargeError) Unwrap() []error { return []error{ErrTooLarge, e.Reason} }

// classify adds one of this package's errors to an error of etcd. Errors of the caller's context stay as they are.
func classify(err error) error {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	err = rpctypes.Error(err) // a client in the same process returns some errors as they look on the wire
	switch {
	case errors.Is(err, rpctypes.ErrCompacted):
		return fmt.Errorf("%w: %w", ErrCompacted, err)
	case errors.Is(err, rpctypes.ErrFutureRev):
		return fmt.Errorf("%w: %w", ErrFuture, err)
	case errors.Is(err, rpctypes.ErrRequestTooLarge), unsendable(err):
		return &TooLargeError{err}
	case errors.Is(err, rpctypes.ErrNoSpace):
		return fmt.Errorf("%w: %w", ErrNoSpace, err)
	case unanswered(err):
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return err
}

// unsendable tells whether a request never left, being larger than a message may be. Only gRPC's words tell that from a
// server that is short of something.
func unsendable(err error) bool {
	s, ok := status.FromError(err)
	return ok && s.Code() == codes.ResourceExhausted && strings.Contains(s.Message(), "trying to send message larger than max")
}

// unanswered tells whether a request got no answer, as opposed to an answer that refuses it.
func unanswered(err error) bool {
	code := status.Code(err)
	var etcd rpctypes.EtcdError
	if errors.As(err, &etcd) {
		code = etcd.Code()
	}
	switch code {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Aborted, codes.Unknown:
		return true
	}
	return false
}
