package remote

import (
	"context"
	"net/http"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"

	"quorate.dev/apiserver/aggregator"
)

const (
	// discoveryTimeout and openAPITimeout are kube-aggregator's.
	discoveryTimeout = 5 * time.Second
	openAPITimeout   = time.Minute

	// maxDiscovery, maxIndex and maxOpenAPI limit the size of documents in bytes, uncompressed. The OpenAPI version 2
	// document of a server with 1,000 CustomResourceDefinitions has 34 MB.
	maxDiscovery = 16 << 20
	maxIndex     = 4 << 20
	maxOpenAPI   = 64 << 20
)

// document is a document to download, with the user of the request and its limits.
type document struct {
	path    string
	as      user.Info
	timeout time.Duration
	size    int64
}

// get downloads a document.
func (d document) get(ctx context.Context, backend Backend, header map[string]string) (*aggregator.Response, error) {
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	headers := http.Header{}
	for name, value := range header {
		if value != "" {
			headers.Set(name, value)
		}
	}
	return backend.Fetch(ctx, d.path, headers, d.as, d.size)
}
