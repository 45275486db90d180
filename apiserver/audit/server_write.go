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

// ServerWrite is a write by the server itself that is not part of a client's request. kube-apiserver sends such writes
// over its loopback connection, where they are audited like any other request.
type ServerWrite struct {
	Verb                         string // "create", "update", "patch" or "delete"
	Resource                     schema.GroupVersionResource
	Subresource, Namespace, Name string
	// Encode returns an object, given in the internal version, as JSON.
	Encode func(runtime.Object) ([]byte, error)
}

// ServerEvent is the audit event of a ServerWrite. A nil ServerEvent records nothing.
type ServerEvent struct {
	write  ServerWrite
	record *request.Record
}

// BeginServerWrite evaluates the policy for a write and processes the first stage of its event. It returns nil if the
// write is not audited, or if it is part of a client's request, which has its own event.
func (a *Auditor) BeginServerWrite(ctx context.Context, w ServerWrite, now time.Time, logger logr.Logger) *ServerEvent {
	if a == nil || request.From(ctx) != nil {
		return nil
	}
	r := w.request(ctx, a.userAgent)
	record := request.Begin(r, now, logger)
	record.AuditID = request.NewAuditID()
	record.User = &user.DefaultInfo{
		Name: user.APIServerUser, Groups: []string{user.AllAuthenticated, user.SystemPrivilegedGroup},
	}
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

// request returns the request with which a client would make the write.
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
		URL: &url.URL{Path: strings.Join(path, "/")}, Header: http.Header{"User-Agent": {userAgent}},
		RemoteAddr: request.LocalAddress,
	}
	return r.WithContext(ctx)
}

// Sends records the object that the write sends.
func (e *ServerEvent) Sends(object runtime.Object) {
	if e == nil || object == nil {
		return
	}
	LogRequest(e.record, Request{
		Object: object, Version: e.write.Resource.GroupVersion(), Resource: e.write.Resource,
		Subresource: e.write.Subresource, Encode: e.write.Encode,
	})
}

// Patches records the patch that the write sends.
func (e *ServerEvent) Patches(patch []byte) {
	if e != nil {
		LogPatch(e.record, patch)
	}
}

// Complete processes the last stage of the event. object is the stored object; it may be nil.
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
