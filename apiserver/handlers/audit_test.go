package handlers_test

import (
	"net/http"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	auditapi "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"

	"quorate.dev/apiserver/request"
)

// auditBackend is a backend of audit events that remembers the last one.
type auditBackend struct {
	audit.Backend
	mu   sync.Mutex
	last *auditapi.Event
}

func (b *auditBackend) ProcessEvents(events ...*auditapi.Event) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last = events[len(events)-1].DeepCopy()
	return true
}

// take returns the last event and forgets it.
func (b *auditBackend) take() *auditapi.Event {
	b.mu.Lock()
	defer b.mu.Unlock()
	last := b.last
	b.last = nil
	return last
}

// checkObject compares an object in an event with its expected fields in YAML. An empty text means that the event must
// not have the object.
func checkObject(t *testing.T, what string, object *runtime.Unknown, want string) {
	t.Helper()
	if (object == nil) != (want == "") {
		t.Errorf("the event has the %s object %v, want %q", what, object, want)
		return
	}
	if object == nil {
		return
	}
	if err := contains(parsed(t, string(object.Raw)), parsed(t, want), ""); err != nil {
		t.Errorf("%v in the %s object %s of the event", err, what, object.Raw)
	}
}

// audited makes the server audit each request as config returns. The event of a request is complete when the client has
// the whole response, because net/http sends the end of the body after the handler has returned.
func (s *server) audited(t *testing.T, config func() request.AuditConfig) *auditBackend {
	t.Helper()
	b := &auditBackend{}
	s.prepare = func(record *request.Record) {
		record.Audit = config()
		if err := record.AuditContext().Init(record.Audit.RequestAuditConfig, b); err != nil {
			t.Error(err)
		}
	}
	s.finish = func(record *request.Record) {
		record.AuditContext().ProcessEventStage(record, auditapi.StageResponseComplete)
		record.ReleaseAudit()
	}
	return b
}

// TestAudit records the objects of requests and responses at each level of the audit policy. Events contain JSON,
// whatever the media types of the request are.
func TestAudit(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	s.create(t, "x", "y")
	var config request.AuditConfig
	backend := s.audited(t, func() request.AuditConfig { return config })
	for _, c := range []struct {
		exchange
		level             auditapi.Level
		omits             bool
		request, response string // fields of the objects in the event; empty if there must be no object
	}{
		{
			exchange: exchange{
				name: "create, metadata", request: "POST " + configMaps, sends: jsonType, body: `{"metadata":{"name":"a"}}`,
				code: http.StatusCreated,
			},
			level: auditapi.LevelMetadata,
		},
		{
			exchange: exchange{
				name: "create, request", request: "POST " + configMaps, sends: jsonType,
				body: `{"metadata":{"name":"b"},"data":{"k":"v"}}`, code: http.StatusCreated,
			},
			level: auditapi.LevelRequest, request: `{kind: ConfigMap, apiVersion: v1, metadata: {name: b}, data: {k: v}}`,
		},
		{
			exchange: exchange{
				name: "create in YAML, both", request: "POST " + configMaps, sends: yamlType, accepts: protobufType,
				body: `{metadata: {name: c}, data: {k: v}}`, code: http.StatusCreated,
			},
			level: auditapi.LevelRequestResponse, request: `{kind: ConfigMap, data: {k: v}}`,
			response: `{kind: ConfigMap, apiVersion: v1, metadata: {uid: "*", managedFields: "*"}, data: {k: v}}`,
		},
		{
			exchange: exchange{
				name: "without managed fields", request: "GET " + configMaps + "/b", code: http.StatusOK,
				want: `{metadata: {managedFields: "*"}}`,
			},
			level: auditapi.LevelRequestResponse, omits: true, response: `{metadata: {name: b, managedFields: null}}`,
		},
		{
			exchange: exchange{
				name: "update", request: "PUT " + configMaps + "/x", sends: jsonType, body: `{"metadata":{"name":"x"}}`,
				code: http.StatusOK,
			},
			level: auditapi.LevelRequestResponse, request: `{kind: ConfigMap, metadata: {name: x}}`,
			response: `{kind: ConfigMap, metadata: {name: x, uid: "*"}}`,
		},
		{
			exchange: exchange{
				name: "patch", request: "PATCH " + configMaps + "/x", sends: mergePatch, body: `{"data":{"k":"w"}}`,
				code: http.StatusOK,
			},
			level: auditapi.LevelRequestResponse, request: `{data: {k: w}, kind: null}`,
			response: `{kind: ConfigMap, data: {k: w}}`,
		},
		{
			exchange: exchange{
				name: "apply in YAML", request: "PATCH " + configMaps + "/x?fieldManager=me", sends: applyPatch,
				body: "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndata: {l: w}\n", code: http.StatusOK,
			},
			level: auditapi.LevelRequest, request: `{kind: ConfigMap, data: {l: w}}`,
		},
		{
			exchange: exchange{
				name: "apply of nonsense", request: "PATCH " + configMaps + "/x?fieldManager=me", sends: applyPatch, body: "{",
				code: http.StatusBadRequest,
			},
			level: auditapi.LevelRequest, request: `"{"`,
		},
		{
			exchange: exchange{
				name: "delete with options", request: "DELETE " + configMaps + "/x", sends: yamlType,
				body: "{kind: DeleteOptions, apiVersion: v1, propagationPolicy: Background}", code: http.StatusOK,
			},
			level: auditapi.LevelRequestResponse, request: `{kind: DeleteOptions, propagationPolicy: Background}`,
			response: `{kind: Status, status: Success, details: {name: x}}`,
		},
		{
			exchange: exchange{
				name: "error", request: "GET " + configMaps + "/missing", code: http.StatusNotFound,
			},
			level: auditapi.LevelRequestResponse, response: `{kind: Status, reason: NotFound}`,
		},
		{
			exchange: exchange{
				name: "list in protobuf", request: "GET " + configMaps, accepts: protobufType, code: http.StatusOK,
			},
			level: auditapi.LevelRequestResponse, response: `{kind: ConfigMapList, items: [{}, {}, {}, {data: {key: "y"}}]}`,
		},
		{
			exchange: exchange{name: "table", request: "GET " + configMaps, accepts: tableType, code: http.StatusOK},
			level:    auditapi.LevelRequestResponse, response: `{kind: Table, rows: [{}, {}, {}, {}]}`,
		},
		{
			exchange: exchange{
				name: "table of one object", request: "GET " + configMaps + "/y", accepts: tableType, code: http.StatusOK,
			},
			level: auditapi.LevelRequestResponse, response: `{kind: Table, rows: [{}]}`,
		},
		{
			exchange: exchange{
				name: "custom resource", request: "POST " + gadgetsInA, sends: jsonType, code: http.StatusCreated,
				body: `{"apiVersion":"example.com/v1","kind":"Gadget","metadata":{"name":"g"},"spec":{"replicas":1}}`,
			},
			level: auditapi.LevelRequestResponse, request: `{kind: Gadget, spec: {replicas: 1}}`,
			response: `{kind: Gadget, metadata: {uid: "*"}}`,
		},
		{
			exchange: exchange{
				name: "view", request: "PATCH " + gadgetsInA + "/g/scale", sends: mergePatch, body: `{"spec":{"replicas":2}}`,
				code: http.StatusOK,
			},
			level: auditapi.LevelRequestResponse, request: `{spec: {replicas: 2}}`,
			response: `{kind: Scale, apiVersion: autoscaling/v1, spec: {replicas: 2}}`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			config.Level, config.OmitManagedFields = c.level, c.omits
			s.do(t, c.exchange)
			event := backend.take()
			checkObject(t, "request", event.RequestObject, c.request)
			checkObject(t, "response", event.ResponseObject, c.response)
		})
	}
}

// TestLargeAuditObjects reads a list and a table that exceed the size limit of all audit backends. The encoding of each
// response object stops shortly after the limit.
func TestLargeAuditObjects(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	s.create(t, "x", "y")
	const limit = 100
	backend := s.audited(t, func() request.AuditConfig {
		return request.AuditConfig{
			RequestAuditConfig: audit.RequestAuditConfig{Level: auditapi.LevelRequestResponse}, MaxObject: limit,
		}
	})
	for _, accepts := range []string{"", tableType} {
		s.do(t, exchange{request: "GET " + configMaps, accepts: accepts, code: http.StatusOK})
		event := backend.take()
		if size := len(event.ResponseObject.Raw); size <= limit || size > 2*limit {
			t.Errorf("%q: the event has a response object of %d bytes, want slightly more than %d", accepts, size, limit)
		}
	}
}
