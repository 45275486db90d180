package resource

import (
	"context"
	"net/http"
	"net/url"

	"k8s.io/apimachinery/pkg/runtime"
)

// Connect is what an endpoint means whose requests go on to somebody else.
type Connect struct {
	// Methods of HTTP that are let through.
	Methods []string
	// Path is set where what follows the endpoint in the path is passed on, as the option "path".
	Path bool
	// Reads is set where the answer is a stream read from elsewhere, in the place of an object: a log. Admission is
	// asked about all others.
	Reads bool
	// Options reads the internal version of the endpoint's options from a query.
	Options func(query url.Values) (runtime.Object, error)
	// Handler finds who answers a request with these options. Call.Body holds them. Errors are API status errors.
	Handler func(ctx context.Context, objects Client, call Call) (http.Handler, error)
}
