package remote

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"
)

const (
	// discoveryTimeout and openAPITimeout bound one download, as in kube-aggregator.
	discoveryTimeout = 5 * time.Second
	openAPITimeout   = time.Minute
	// legacyTimeout bounds the download of the legacy documents of all group versions of one server.
	legacyTimeout = 30 * time.Second

	// maxDiscovery, maxIndex and maxOpenAPI limit the size of documents in bytes, uncompressed. The OpenAPI version 2
	// document of a server with 1,000 CustomResourceDefinitions has 34 MB.
	maxDiscovery = 16 << 20
	maxIndex     = 4 << 20
	maxOpenAPI   = 64 << 20

	// At most maxLarge discovery documents of more than largeDiscovery bytes are in memory at the same time.
	largeDiscovery = 1 << 20
	maxLarge       = 16
)

// response is a response whose body has been read, if its status is 200.
type response struct {
	status int
	header http.Header
	body   []byte

	large chan struct{} // holds an element for this response; nil: the response is not large
}

// release must be called when the body has been decoded, so that another large document may be read.
func (r response) release() {
	if r.large != nil {
		<-r.large
	}
}

// document describes a document to download, and its limits.
type document struct {
	path    string
	timeout time.Duration
	size    int64
	large   chan struct{} // has an element for each large response in memory; nil: no limit
}

// get requests a document and reads it. The body is read only if the status is 200. It waits while too many large
// documents are in memory.
func (d document) get(ctx context.Context, backend Backend, header map[string]string) (response, error) {
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	headers := http.Header{}
	for name, value := range header {
		if value != "" {
			headers.Set(name, value)
		}
	}
	received, err := backend.Fetch(ctx, d.path, headers)
	if err != nil {
		return response{}, fmt.Errorf("get %s: %w", d.path, err)
	}
	defer func() { _ = received.Body.Close() }()
	r := response{status: received.StatusCode, header: received.Header}
	if r.status != http.StatusOK {
		return r, nil
	}
	read := func(size int64) error {
		part, err := io.ReadAll(io.LimitReader(received.Body, size))
		if r.body = append(r.body, part...); err != nil {
			return fmt.Errorf("read %s: %w", d.path, err)
		}
		return nil
	}
	if d.large != nil {
		if err := read(largeDiscovery); err != nil || len(r.body) < largeDiscovery {
			return r, err
		}
		select {
		case d.large <- struct{}{}:
			r.large = d.large
		case <-ctx.Done():
			return response{}, fmt.Errorf("read %s: %w", d.path, ctx.Err())
		}
	}
	if err = read(d.size + 1 - int64(len(r.body))); err == nil && int64(len(r.body)) > d.size {
		err = fmt.Errorf("%s is larger than %d bytes", d.path, d.size)
	}
	if err != nil {
		r.release()
		return response{}, err
	}
	return r, nil
}
