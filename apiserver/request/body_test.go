package request

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/iotest"
	"time"

	"github.com/go-logr/logr"
)

// TestReadBody reads bodies of announced and unknown length, in pieces of several sizes.
func TestReadBody(t *testing.T) {
	readers := map[string]func(io.Reader) io.Reader{
		"whole": func(r io.Reader) io.Reader { return r }, "halves": iotest.HalfReader, "with its end": iotest.DataErrReader,
	}
	for name, pieces := range readers {
		for _, size := range []int{
			0, 1, 511, 512, 513, firstBuffer, firstBuffer + 1, 100_000, MaxBody, MaxBody + 1, MaxBody + 2,
		} {
			for _, length := range []int64{int64(size), -1, 0} {
				data := bytes.Repeat([]byte("x"), size)
				record := Begin(httptest.NewRequest("POST", "/", nil), time.Time{}, logr.Discard())
				reserved := int64(0)
				err := record.ReadBody(pieces(bytes.NewReader(data)), length, func(more int64) error {
					reserved += more
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
				body, err := record.Body(nil)
				switch {
				case size > MaxBody:
					const message = "Request entity too large: limit is 3145728"
					if status := StatusOf(err); status.Code != http.StatusRequestEntityTooLarge || status.Message != message {
						t.Errorf("%s, %d of %d bytes: %v", name, size, length, err)
					}
				case err != nil || !bytes.Equal(body, data):
					t.Errorf("%s, %d of %d bytes: %d bytes, %v", name, size, length, len(body), err)
				}
				if int64(cap(body)) > reserved || (length > 0 && size <= MaxBody && reserved != length) {
					t.Errorf("%s, %d of %d bytes: %d reserved for a buffer of %d", name, size, length, reserved, cap(body))
				}
			}
		}
	}
}

// TestBodyThatEndsEarly breaks the connection and checks how much memory was reserved.
func TestBodyThatEndsEarly(t *testing.T) {
	for _, c := range []struct {
		body     io.Reader
		length   int64
		message  string
		reserved int64
	}{
		{iotest.ErrReader(errors.New("gone")), 2 << 20, "the request body could not be read: gone", firstBuffer},
		{bytes.NewReader(make([]byte, 10)), 20, "the request body could not be read: unexpected EOF", 20},
		{bytes.NewReader(nil), 20, "", 20},
		{
			io.MultiReader(bytes.NewReader(make([]byte, firstBuffer+1)), iotest.ErrReader(errors.New("gone"))), 2 << 20,
			"the request body could not be read: gone", 4 * firstBuffer,
		},
	} {
		record := Begin(httptest.NewRequest("POST", "/", nil), time.Time{}, logr.Discard())
		reserved := int64(0)
		if err := record.ReadBody(c.body, c.length, func(more int64) error { reserved += more; return nil }); err != nil {
			t.Fatal(err)
		}
		_, err := record.Body(nil)
		message := ""
		if err != nil {
			message = StatusOf(err).Message
		}
		if message != c.message || reserved != c.reserved {
			t.Errorf("%+v: %q, %d reserved", c, message, reserved)
		}
	}
}

// TestBodyWithoutMemory makes reserve fail.
func TestBodyWithoutMemory(t *testing.T) {
	record := Begin(httptest.NewRequest("POST", "/", nil), time.Time{}, logr.Discard())
	full, calls := errors.New("full"), 0
	err := record.ReadBody(bytes.NewReader(make([]byte, 1<<20)), 1<<20, func(int64) error {
		if calls++; calls > 2 {
			return full
		}
		return nil
	})
	if !errors.Is(err, full) {
		t.Errorf("reading ended with %v", err)
	}
}

func TestKeepBody(t *testing.T) {
	for _, length := range []int{1, maxKeptBody, maxKeptBody + 1} {
		r := httptest.NewRequest(http.MethodPatch, "/", bytes.NewReader(make([]byte, length)))
		if err := KeepBody(r); err != nil || (r.GetBody != nil) != (length <= maxKeptBody) {
			t.Errorf("%d bytes: kept: %t, error %v", length, r.GetBody != nil, err)
		}
		for range 2 {
			if body, err := io.ReadAll(r.Body); err != nil || len(body) != length {
				t.Errorf("%d bytes: got %d, error %v", length, len(body), err)
			}
			if r.GetBody == nil {
				break
			}
			r.Body, _ = r.GetBody()
		}
	}
}

func TestKeepBodyOfUnknownLengthOrBroken(t *testing.T) {
	r := httptest.NewRequest(http.MethodPatch, "/", iotest.ErrReader(io.ErrUnexpectedEOF))
	if err := KeepBody(r); err != nil || r.GetBody != nil { // not read
		t.Errorf("a body of unknown length: kept: %t, error %v", r.GetBody != nil, err)
	}
	r.ContentLength = 10
	if err := KeepBody(r); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("got %v, want %v", err, io.ErrUnexpectedEOF)
	}
}
