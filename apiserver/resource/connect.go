package resource

import (
	"context"
	"net/http"
	"net/url"

	"k8s.io/apimachinery/pkg/runtime"
)

// Connect describes a connect endpoint: its requests are proxied, or hijack the connection.
type Connect struct {
	// Methods are the allowed HTTP methods.
	Methods []string
	// Path is set if the rest of the URL path becomes the option "path".
	Path bool
	// Reads is set for a GET that streams content instead of an object, such as a log. Admission is skipped for it
	// only.
	Reads bool
	// Options decodes a query into the internal version of the endpoint's options.
	Options func(query url.Values) (runtime.Object, error)
	// Handler returns the handler of a request, whose options are in call.Body. Errors are API status errors.
	Handler func(ctx context.Context, call Call) (http.Handler, error)
}
