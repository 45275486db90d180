package resource

import (
	"context"
	"net/http"
	"net/url"

	"k8s.io/apimachinery/pkg/runtime"
)

// Connect describes an endpoint whose requests are proxied.
type Connect struct {
	// Methods are the allowed HTTP methods.
	Methods []string
	// Path is set if the rest of the URL path becomes the option "path".
	Path bool
	// Reads is set for a GET that streams content instead of an object: a log. Admission sees all others.
	Reads bool
	// Options parses a query into the internal version of the endpoint's options.
	Options func(query url.Values) (runtime.Object, error)
	// Handler returns the handler of a request, whose options are in Call.Body. Errors are API status errors.
	Handler func(ctx context.Context, objects Client, call Call) (http.Handler, error)
}
