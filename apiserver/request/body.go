package request

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MaxBody is the maximum size in bytes of the body of a resource request.
const MaxBody = 3 << 20

// The buffer for a body starts small and grows while bytes arrive, so that a client occupies memory only for bytes that
// it has sent, not for its Content-Length. Sizes are in bytes.
const (
	firstBuffer = 16 << 10
	// unknownBuffer is the first size if the length is unknown; such a request often has no body.
	unknownBuffer = 512
	bufferGrowth  = 4
)

// body is the body of one request after it has been read.
type body struct {
	data []byte
	err  error
	read bool
}

// Body returns the body of the record's request. It reads the body unless ReadBody has read it.
func (r *Record) Body(from *http.Request) ([]byte, error) {
	if !r.body.read {
		_ = r.ReadBody(from.Body, from.ContentLength, func(int64) error { return nil })
	}
	return r.body.data, r.body.err
}

// BodySize returns the size of the body in bytes, and reports whether the body has been read without an error.
func (r *Record) BodySize() (int, bool) { return len(r.body.data), r.body.read && r.body.err == nil }

// ReadBody reads the whole body of the record's request, which Body then returns. length is the Content-Length. reserve
// is called with the number of bytes by which the buffer is about to grow; its error ends the reading and is the only
// error that ReadBody returns. Body returns the errors of bodies that are too large or incomplete.
func (r *Record) ReadBody(from io.Reader, length int64, reserve func(bytes int64) error) error {
	if r.body.read = true; length > MaxBody {
		r.body.err = tooLarge()
		return nil
	}
	var data []byte
	var err error
	for err == nil && len(data) <= MaxBody && (len(data) == 0 || int64(len(data)) != length) {
		if len(data) == cap(data) {
			size := bufferAfter(cap(data), length)
			if r.body.err = reserve(int64(size - cap(data))); r.body.err != nil {
				return r.body.err
			}
			data = append(make([]byte, 0, size), data...)
		}
		var n int
		n, err = from.Read(data[len(data):cap(data)])
		data = data[:len(data)+n]
	}
	r.body.data, r.body.err = data, bodyError(data, length, err)
	return nil
}

// bodyError returns the Status error for a body that is too large, incomplete, or could not be read, or nil.
func bodyError(data []byte, length int64, err error) error {
	ended := err == nil || errors.Is(err, io.EOF)
	if ended && 0 < len(data) && int64(len(data)) < length {
		ended, err = false, io.ErrUnexpectedEOF
	}
	switch {
	case len(data) > MaxBody:
		return tooLarge()
	case !ended:
		return apierrors.NewBadRequest(fmt.Sprintf("the request body could not be read: %v", err))
	}
	return nil
}

// bufferAfter returns the next size of a buffer of the given size. length is not positive if it is unknown: the request
// has no body or a chunked one.
func bufferAfter(size int, length int64) int {
	// One byte more than MaxBody shows that a body is too large.
	first, most := unknownBuffer, MaxBody+1
	if length > 0 {
		first, most = firstBuffer, int(length)
	}
	return min(max(first, size*bufferGrowth), most)
}

func tooLarge() error {
	return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", MaxBody))
}

// maxKeptBody is the maximum size in bytes of a body that KeepBody reads.
const maxKeptBody = 64 << 10

// KeepBody reads a small body of a request that is about to be forwarded, so that the transport can send the request
// again. A server that shuts down announces the last request that it processes (GOAWAY in HTTP/2); later requests may
// have been sent before the announcement arrives, and would fail if their body were gone.
func KeepBody(r *http.Request) error {
	if r.ContentLength <= 0 || r.ContentLength > maxKeptBody {
		return nil
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return fmt.Errorf("read the request body: %w", err)
	}
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	r.Body, err = r.GetBody()
	return err
}

// BodyTooSlow returns the error for a request whose body arrives too slowly.
func BodyTooSlow() *apierrors.StatusError {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusRequestTimeout, Reason: metav1.StatusReasonTimeout,
		Message: "the request body arrived too slowly",
	}}
}
