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
	// ErrNotFound means that the path does not exist.
	ErrNotFound = errors.New("not found")
	// ErrExists means that the path exists already.
	ErrExists = errors.New("exists already")
	// ErrCompacted means that the requested revision has been compacted.
	ErrCompacted = errors.New("revision has been compacted")
	// ErrFuture means that the requested revision is greater than the current one.
	ErrFuture = errors.New("revision is in the future")
	// ErrUnavailable means that etcd did not respond. A write may or may not have been applied.
	ErrUnavailable = errors.New("storage is unavailable")
	// ErrUncertain means that the outcome of a write is unknown: it may have been applied, or may be applied later.
	ErrUncertain = errors.New("the outcome is unknown")
	// ErrTooLarge means that etcd or its client rejected a write because of its size.
	ErrTooLarge = errors.New("too large for storage")
	// ErrNoSpace means that the database has reached its quota, or its file system is almost full.
	ErrNoSpace = errors.New("storage is full")
)

// ConflictError means that the precondition of a write failed: the ModRevision of the path is not the expected one.
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

// TooLargeError wraps ErrTooLarge. Its message is the message of etcd, or of the gRPC client, which does not send the
// request.
type TooLargeError struct{ Reason error }

func (e *TooLargeError) Error() string { return e.Reason.Error() }

// Unwrap makes errors.Is report ErrTooLarge.
func (e *TooLargeError) Unwrap() []error { return []error{ErrTooLarge, e.Reason} }

// classify wraps an error of etcd in the corresponding error of this package. It returns errors of the caller's
// context, and errors without a corresponding error, unchanged.
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

// uncertainError wraps ErrUncertain and the error of the write, whose message it has.
type uncertainError struct{ error }

// Unwrap makes errors.Is report ErrUncertain.
func (e uncertainError) Unwrap() []error { return []error{e.error, ErrUncertain} }

// classifyWrite classifies the error of a transaction that was sent to etcd. It adds ErrUncertain if the transaction
// may have been applied, or may be applied later.
func classifyWrite(err error) error {
	err = classify(err)
	if errors.Is(err, ErrUnavailable) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return uncertainError{err}
	}
	return err
}

// isTooLargeToSend reports whether the gRPC client rejected a request because of its size. Only the message
// distinguishes this error from a server's ResourceExhausted.
func isTooLargeToSend(err error) bool {
	s, ok := status.FromError(err)
	return ok && s.Code() == codes.ResourceExhausted &&
		strings.Contains(s.Message(), "trying to send message larger than max")
}

// isDropped reports whether raft has not accepted a write (ErrProposalDropped). etcd returns only the text of raft's
// error, without an error code.
func isDropped(err error) bool { return strings.Contains(err.Error(), raft.ErrProposalDropped.Error()) }

// isUnavailable reports whether a request got no response.
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
