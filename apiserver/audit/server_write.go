package audit

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	auditapi "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"quorate.dev/apiserver/request"
)

// ServerWrite is a write by the server itself that no client's request caused. kube-apiserver sends such writes to itself
// over its loopback connection, where they are audited like any other request.
type ServerWrite struct {
	Verb                         string // "create", "update", "patch" or "delete"
	Resource                     schema.GroupVersionResource
	Subresource, Namespace, Name string
	// Encode returns the JSON of an object in the internal version.
	Encode func(runtime.Object) ([]byte, error)
}

// ServerEvent is the event of a ServerWrite. A nil ServerEvent records nothing.
type ServerEvent struct {
	write  ServerWrite
	record *request.Record
}

// BeginServerWrite evaluates the policy for a write, and processes its first event. It returns nil if the write is not
// audited, or is part of a request that is.
func (a *Auditor) BeginServerWrite(ctx context.Context, w ServerWrite, now time.Time, logger logr.Logger) *ServerEvent {
	if a == nil || request.From(ctx) != nil {
		return nil
	}
	r := w.request(ctx, a.userAgent)
	record := request.Begin(r, now, logger)
	record.AuditID = request.NewAuditID()
	record.User = &user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.AllAuthenticated, user.SystemPrivilegedGroup}}
	record.Attributes = authorizer.AttributesRecord{
		User: record.User, Verb: w.Verb, ResourceRequest: true, Path: r.URL.Path, Namespace: w.Namespace, Name: w.Name,
		APIGroup: w.Resource.Group, APIVersion: w.Resource.Version, Resource: w.Resource.Resource, Subresource: w.Subresource,
	}
	audited, err := a.Begin(record, r)
	if err != nil || !audited {
		return nil
	}
	record.AuditContext().ProcessEventStage(record, auditapi.StageRequestReceived)
	AnnotateDecision(record, "allow", "")
	return &ServerEvent{write: w, record: record}
}

// request returns the request that a client would send.
func (w ServerWrite) request(ctx context.Context, userAgent string) *http.Request {
	path := []string{"", "apis", w.Resource.Group, w.Resource.Version}
	if w.Resource.Group == "" {
		path = []string{"", "api", w.Resource.Version}
	}
	if w.Namespace != "" {
		path = append(path, "namespaces", w.Namespace)
	}
	path = append(path, w.Resource.Resource)
	for _, part := range []string{w.Name, w.Subresource} {
		if part != "" {
			path = append(path, part)
		}
	}
	r := &http.Request{
		URL: &url.URL{Path: strings.Join(path, "/")}, Header: http.Header{"User-Agent": {userAgent}}, RemoteAddr: request.LocalAddress,
	}
	return r.WithContext(ctx)
}

// Sends records the object that the write stores.
func (e *ServerEvent) Sends(object runtime.Object) {
	if e == nil || object == nil {
		return
	}
	LogRequest(e.record, Request{
		Object: object, Version: e.write.Resource.GroupVersion(), Resource: e.write.Resource,
		Subresource: e.write.Subresource, Encode: e.write.Encode,
	})
}

// Patches records the patch of the write.
func (e *ServerEvent) Patches(patch []byte) {
	if e != nil {
		LogPatch(e.record, patch)
	}
}

// Complete processes the last event. object is the stored one; it may be nil.
func (e *ServerEvent) Complete(object runtime.Object, err error) {
	if e == nil {
		return
	}
	event := e.record.AuditContext()
	code := http.StatusOK
	switch {
	case err != nil:
		status := request.StatusOf(err)
		code = int(status.Code)
		e.record.AuditStatus(status)
	case e.write.Verb == "create":
		code = http.StatusCreated
	}
	if object != nil {
		LogResponse(e.record, nil, func() ([]byte, error) { return e.write.Encode(object) })
	}
	event.SetEventResponseStatusCode(int32(code))
	event.ProcessEventStage(e.record, auditapi.StageResponseComplete)
}
