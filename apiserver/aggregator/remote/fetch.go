package remote

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"
)

const (
	// discoveryTimeout and openAPITimeout are kube-aggregator's.
	discoveryTimeout = 5 * time.Second
	openAPITimeout   = time.Minute
	// legacyTimeout bounds the download of the legacy documents of all group versions of one server.
	legacyTimeout = 30 * time.Second

	// maxDiscovery, maxIndex and maxOpenAPI limit the size of documents in bytes, uncompressed. The OpenAPI version 2
	// document of a server with 1,000 CustomResourceDefinitions has 34 MB.
	maxDiscovery = 16 << 20
	maxIndex     = 4 << 20
	maxOpenAPI   = 64 << 20
)

// response is a response that was read completely.
type response struct {
	status int
	header http.Header
	body   []byte
}

// document is a document to download, with its limits.
type document struct {
	path    string
	timeout time.Duration
	size    int64
}

// get requests a document and reads it. The body is read only if the status is 200.
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
	if r.body, err = io.ReadAll(io.LimitReader(received.Body, d.size+1)); err != nil {
		return response{}, fmt.Errorf("read %s: %w", d.path, err)
	}
	if int64(len(r.body)) > d.size {
		return response{}, fmt.Errorf("%s is larger than %d bytes", d.path, d.size)
	}
	return r, nil
}
