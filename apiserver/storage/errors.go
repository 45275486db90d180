package storage

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/raft/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

var (
	// ErrNotFound: the path does not exist.
	ErrNotFound = errors.New("not found")
	// ErrExists: the path exists already.
	ErrExists = errors.New("exists already")
	// ErrCompacted: the requested revision was compacted.
	ErrCompacted = errors.New("revision has been compacted")
	// ErrFuture: the requested revision is above the current one.
	ErrFuture = errors.New("revision is in the future")
	// ErrUnavailable: etcd did not respond. A write may or may not have been applied.
	ErrUnavailable = errors.New("storage is unavailable")
	// ErrTooLarge: etcd refuses a write of this size.
	ErrTooLarge = errors.New("too large for storage")
	// ErrNoSpace: the database has reached its quota.
	ErrNoSpace = errors.New("storage is full")
)

// ConflictError is the failed precondition of a write: the path is not at the expected revision.
type ConflictError struct {
	Current Value // the current value, if Found
	Found   bool
}

func (e *ConflictError) Error() string {
	if !e.Found {
		return "conflict: the path does not exist"
	}
	return fmt.Sprintf("conflict: %s is at revision %d", e.Current.Path, e.Current.Revision)
}

// TooLargeError is ErrTooLarge with the message of etcd, or of the gRPC client, which refuses to send such a message.
type TooLargeError struct{ Reason error }

func (e *TooLargeError) Error() string { return e.Reason.Error() }

// Unwrap makes errors.Is report ErrTooLarge.
func (e *TooLargeError) Unwrap() []error { return []error{ErrTooLarge, e.Reason} }

// classify wraps an error of etcd in one of this package's errors. It returns errors of the caller's context
// unchanged.
func classify(err error) error {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	err = rpctypes.Error(err) // the client of an embedded member returns some errors in their wire form
	switch {
	case errors.Is(err, rpctypes.ErrCompacted):
		return fmt.Errorf("%w: %w", ErrCompacted, err)
	case errors.Is(err, rpctypes.ErrFutureRev):
		return fmt.Errorf("%w: %w", ErrFuture, err)
	case errors.Is(err, rpctypes.ErrRequestTooLarge), isTooLargeToSend(err):
		return &TooLargeError{err}
	case errors.Is(err, rpctypes.ErrNoSpace):
		return fmt.Errorf("%w: %w", ErrNoSpace, err)
	case isUnavailable(err):
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return err
}

// isTooLargeToSend reports whether gRPC refused to send a request because of its size. Only the message distinguishes
// this from a server that is out of a resource.
func isTooLargeToSend(err error) bool {
	s, ok := status.FromError(err)
	return ok && s.Code() == codes.ResourceExhausted &&
		strings.Contains(s.Message(), "trying to send message larger than max")
}

// isDropped reports whether raft has not accepted a write. etcd has no error of its own for it.
func isDropped(err error) bool { return strings.Contains(err.Error(), raft.ErrProposalDropped.Error()) }

// isUnavailable reports whether a request got no response, as opposed to a response that refuses it.
func isUnavailable(err error) bool {
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
