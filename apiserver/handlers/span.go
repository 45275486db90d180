package handlers

import (
	"context"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/endpoints/metrics"

	"quorate.dev/apiserver/request"
)

// spanNames maps verbs to the names that kube-apiserver gives the spans of its handlers.
var spanNames = map[string]string{
	"get": "Get", "list": "List", "create": "Create", "update": "Update", "patch": "Patch", "delete": "Delete",
	"deletecollection": "Delete",
}

// The events of spans have kube-apiserver's names.
const (
	eventBodyRead      = "limitedReadBody succeeded"
	eventConverted     = "Conversion done"
	eventStoring       = "About to store object in database"
	eventStored        = "Write to database call succeeded"
	eventReading       = "About to Get from storage"
	eventListing       = "About to List from storage"
	eventListed        = "Listing from storage done"
	eventPatched       = "Object stored in database"
	eventDeleting      = "About to delete object from database"
	eventDeleted       = "Object deleted from database"
	eventWriting       = "About to write a response"
	eventWritten       = "Writing http response done"
	maxTracedUserAgent = 1024
)

// startSpan starts the span of the request's handler. Watches have no span, because it would last until the client
// disconnects.
func (c *call) startSpan(ctx context.Context) context.Context {
	name := spanNames[c.record.Info.Verb]
	if !c.record.Traced || name == "" {
		return ctx
	}
	info := &c.record.Info
	client := ""
	if ip := utilnet.GetClientIP(c.r); ip != nil {
		client = ip.String()
	}
	agent := c.r.UserAgent()
	if len(agent) > maxTracedUserAgent {
		agent = agent[:maxTracedUserAgent] + "...TRUNCATED"
	}
	ctx, c.span = request.StartSpan(ctx, name,
		"accept", c.r.Header.Get("Accept"), "audit-id", c.record.AuditID, "client", client, "api-group", info.APIGroup,
		"api-version", info.APIVersion, "name", info.Name, "subresource", info.Subresource, "namespace", info.Namespace,
		"protocol", c.r.Proto, "resource", info.Resource, "scope", metrics.CleanScope(info), "url", c.r.URL.Path,
		"user-agent", agent, "verb", metrics.CanonicalVerb(c.r.Method, metrics.CleanScope(info)))
	return ctx
}

// spanSerialize is kube-apiserver's name for the span in which a response is written.
const spanSerialize = "SerializeObject"
