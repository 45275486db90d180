// Package handlers serves the requests for resources. A handler parses the options and the body, negotiates the format
// of the response, calls the registry, and sends the encoding that package encoding or the watch cache has for the
// result. Each verb has its own file.
//
// Handlers return their errors up to Serve, which writes them as a Status. A handler returns an error only while no
// part of the response has been sent; afterwards it can only abort the connection or end the stream.
package handlers

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation/path"
	internalscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/codec"
	"quorate.dev/apiserver/registry"
	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/resource"
)

// Options configure Handlers. All fields except Metrics and MemoryLimit are required.
type Options struct {
	Registry *registry.Registry
	// Authorizer decides whether the user of an update or a patch may create the object, and whether a user may delete an
	// object that cannot be read. The requests themselves are already authorized.
	Authorizer authorizer.UnconditionalAuthorizer
	Clock      clock.Clock
	// Metrics may be nil; nothing is measured then.
	Metrics *Metrics
	// MinWatchTimeout is the minimum timeout of a watch without timeoutSeconds. The maximum is twice as long.
	MinWatchTimeout time.Duration
	// MemoryLimit is the memory limit of the process in bytes; 0 means none. It bounds the memory that responses hold.
	MemoryLimit int64
	// DeleteWorkers is the number of objects that one deletecollection request deletes concurrently.
	DeleteWorkers int
}

// Handlers serve the requests for resources.
type Handlers struct {
	Options
	deleteOptionsGuard *codec.Guard
	// responseMemory bounds the bytes that responses hold in addition to the encodings in the watch cache.
	responseMemory *request.ByteLimit
	// auditMemory bounds the bytes of responses that audit events refer to. It is acquired after responseMemory.
	auditMemory *request.ByteLimit
	// writeTimeout is the timeout for each write to the client of a watch.
	writeTimeout time.Duration
}

// New returns handlers.
func New(options Options) *Handlers {
	return &Handlers{
		Options:            options,
		deleteOptionsGuard: codec.NewGuard(internalscheme.Scheme),
		responseMemory:     request.NewByteLimit(options.bounded(maxResponseMemory)),
		auditMemory:        request.NewByteLimit(options.bounded(maxAuditMemory)),
		writeTimeout:       writeTimeout,
	}
}

// bounded returns bound, or an eighth of the memory limit of the process if that is less.
func (o Options) bounded(bound int64) int64 {
	const part = 8
	if o.MemoryLimit > 0 {
		return min(bound, o.MemoryLimit/part)
	}
	return bound
}

// maxWriteDuration is the maximum duration of a mutating request, kube-apiserver's requestTimeoutUpperBound.
const maxWriteDuration = 34 * time.Second

// call is the state of one request.
type call struct {
	*Handlers
	w      http.ResponseWriter
	r      *http.Request
	record *request.Record
	target resource.Target
	output output
	// memory is the request's share of responseMemory; nil if the request has acquired none.
	memory *request.Held
	// span is nil if the request is not traced.
	span *request.Span
}

// Serve responds to a request for a resource.
func (h *Handlers) Serve(w http.ResponseWriter, r *http.Request, match resource.Match) {
	record := request.From(r.Context())
	record.SetNamespace(record.Info.Namespace)
	endpoint, ok := match.Version.Endpoints[record.Info.Subresource]
	if !ok {
		notRouted(w, r, match, &record.Info)
		return
	}
	exists, sensible := routed(&record.Info, match.Definition, endpoint)
	if !exists || (record.VerbInPath && !routedByVerb(&record.Info, match.Definition, endpoint)) {
		notRouted(w, r, match, &record.Info)
		return
	}
	c := &call{Handlers: h, w: w, r: r, record: record, target: resource.Target{
		Match: match, Endpoint: endpoint, Namespace: record.Info.Namespace, Name: record.Info.Name,
	}}
	if match.Plural == "namespaces" && match.Group == "" {
		c.target.Namespace = ""
	}
	if endpoint.Connect != nil {
		c.serveConnect()
		return
	}
	if err := c.checkRoute(sensible); err != nil {
		c.refuse(err)
		return
	}
	if match.Version.Deprecation != "" {
		record.Warnings.AddWarning("", match.Version.Deprecation)
	}
	if problems := path.IsValidPathSegmentName(c.target.Name); len(problems) > 0 {
		message := fmt.Sprintf("Name parameter invalid: %q: %s", c.target.Name, strings.Join(problems, ";"))
		request.WriteError(w, r, apierrors.NewBadRequest(message))
		return
	}
	defer c.shrinkMemory(0)
	ctx := c.startSpan(r.Context())
	defer c.span.End()
	if err := c.serve(ctx); err != nil {
		request.WriteError(w, r, err)
	}
}

// serve runs the handler of the verb. It returns an error only while nothing has been written.
func (c *call) serve(ctx context.Context) (err error) {
	if c.output, err = negotiate(c.r, c.target); err != nil {
		return err
	}
	c.output.undecorated = c.target.Endpoint.Undecorated
	switch c.record.Info.Verb {
	case "get":
		return c.get(ctx)
	case "list":
		return c.list(ctx)
	case "watch":
		if !slices.Contains(c.target.Endpoint.Verbs, "watch") {
			return apierrors.NewMethodNotSupported(c.target.GroupResource(), "watch")
		}
		return c.watch(ctx)
	}
	if c.target.Name == "" && (c.record.Info.Verb == "update" || c.record.Info.Verb == "patch") {
		return errNoName
	}
	ctx, cancel := context.WithTimeout(ctx, maxWriteDuration)
	defer cancel()
	switch c.record.Info.Verb {
	case "create":
		return c.create(ctx)
	case "update":
		return c.update(ctx)
	case "patch":
		return c.patch(ctx)
	case "delete":
		return c.delete(ctx)
	case "deletecollection":
		return c.deleteCollection(ctx)
	}
	return c.notAllowed()
}

// allowed reports whether the endpoint has a route for the verb. kube-apiserver has routes for watches of all built-in
// kinds that can be listed, even if their storage cannot be watched.
func (c *call) allowed() bool {
	verb := c.record.Info.Verb
	if verb == "watch" && c.target.Source == resource.BuiltIn {
		verb = "list"
	}
	return slices.Contains(c.target.Endpoint.Verbs, verb)
}
