package request

import (
	"errors"
	"fmt"
	"io"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MaxBody is the size in bytes of the largest body of a request for a resource.
const MaxBody = 3 << 20

// The buffer for a body starts small and grows by a factor as bytes arrive: a client gets memory for what it has sent,
// not for what it has announced.
const (
	firstBuffer   = 16 << 10
	unknownBuffer = 512 // where the length is not known; often there is no body at all
	bufferGrowth  = 4
)

// body is that of one request, once it has been read.
type body struct {
	data []byte
	err  error
	read bool
}

// Body returns the body of the record's request, and reads it if ReadBody has not.
func (r *Record) Body(from *http.Request) ([]byte, error) {
	if !r.body.read {
		_ = r.ReadBody(from.Body, from.ContentLength, func(int64) error { return nil })
	}
	return r.body.data, r.body.err
}

// ReadBody reads the whole body of the record's request, of the length that the client announced, for Body. reserve is
// called with the number of bytes by which the buffer is about to grow; its error ends the reading, and is the only one
// returned: that of a body which is too large, or ends early, is for Body to return.
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

// bodyError is the client's error in a body that was read up to an error of the connection.
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

// bufferAfter returns the size of the buffer that follows one of the size given. length is that of the body; it is not
// known if it is not positive, as that of a request without a body, and in HTTP/2 that of one in chunks.
func bufferAfter(size int, length int64) int {
	first, most := unknownBuffer, MaxBody+1 // one byte more than allowed shows that there is more
	if length > 0 {
		first, most = firstBuffer, int(length)
	}
	return min(max(first, size*bufferGrowth), most)
}

func tooLarge() error {
	return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", MaxBody))
}

// BodyTooSlow is the error of a request whose body arrives slower than the least rate.
func BodyTooSlow() *apierrors.StatusError {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusRequestTimeout, Reason: metav1.StatusReasonTimeout,
		Message: "the request body arrived too slowly",
	}}
}
