package apiserver

import (
	"context"
	"net/http"
	"time"

	"quorate.dev/apiserver/crd"
	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/router"
)

// publishTimeout bounds the time for which the response to a write of a CustomResourceDefinition is delayed.
const publishTimeout = 3 * time.Second

// publishFirst delays responses to writes of CustomResourceDefinitions until discovery, OpenAPI and the router of this
// replica have the change. kube-apiserver publishes the change after the response.
type publishFirst struct {
	router.ResourceHandler
	await func(context.Context) error
}

// Serve implements router.ResourceHandler.
func (p publishFirst) Serve(w http.ResponseWriter, r *http.Request, match resource.Match) {
	if match.GroupResource() == crd.Resource && writes(request.From(r.Context()).Info.Verb) {
		w = &delayedResponse{ResponseWriter: w, ctx: r.Context(), await: p.await}
	}
	p.ResourceHandler.Serve(w, r, match)
}

func writes(verb string) bool { return verb != "get" && verb != "list" && verb != "watch" }

// delayedResponse is a response writer that delays a successful response.
type delayedResponse struct {
	http.ResponseWriter
	ctx   context.Context //nolint:containedctx // of the request
	await func(context.Context) error
	begun bool
}

// WriteHeader implements http.ResponseWriter. An error of await does not change the response, because the write has
// succeeded.
func (d *delayedResponse) WriteHeader(code int) {
	if !d.begun && code < http.StatusMultipleChoices {
		ctx, cancel := context.WithTimeout(d.ctx, publishTimeout)
		defer cancel()
		_ = d.await(ctx)
	}
	d.begun = true
	d.ResponseWriter.WriteHeader(code)
}

// Write implements http.ResponseWriter.
func (d *delayedResponse) Write(body []byte) (int, error) {
	if !d.begun {
		d.WriteHeader(http.StatusOK)
	}
	return d.ResponseWriter.Write(body)
}

// Unwrap implements the interface that http.ResponseController uses to find the wrapped writer.
func (d *delayedResponse) Unwrap() http.ResponseWriter { return d.ResponseWriter }
