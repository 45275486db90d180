package transfer_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/kubernetes/pkg/apis/core"

	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/builtin/builtintest"
	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/transfer"
)

var configMaps = schema.GroupResource{Resource: "configmaps"}

// next is the handler of resources that are not being transferred. Its responses are "served".
type next struct{}

// Serve implements router.ResourceHandler.
func (next) Serve(w http.ResponseWriter, _ *http.Request, _ resource.Match) { fmt.Fprint(w, "served") }

// world has ConfigMaps that are defined like custom resources which are being transferred.
type world struct {
	*builtintest.Server
	guard transfer.Guard
	match resource.Match
}

func newWorld(t *testing.T) *world {
	t.Helper()
	s := builtintest.NewServer(t, builtin.Options{}, nil)
	match, _ := s.Catalog.Current().Find(configMaps)
	custom := *match.Definition
	custom.Source, custom.Transferring = resource.Custom, true
	match.Definition = &custom
	s.Catalog.Publish(resource.NewCatalog(&custom))
	return &world{Server: s, match: match, guard: transfer.Guard{ResourceHandler: next{}, Registry: s.Registry}}
}

// call is a request for the ConfigMap a in the namespace one.
type call struct {
	verb, body  string
	subresource string
	contentType string
	plain       bool     // without the header of transfers
	groups      []string // groups of the user; nil: system:masters
	anonymous   bool     // without a user
}

// send returns the status code and the body of the response to a call.
func (w *world) send(t *testing.T, c call) (int, string) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPut, "/apis/example.com/v1/configmaps",
		strings.NewReader(c.body))
	if !c.plain {
		r.Header.Set(transfer.Header, "true")
	}
	if c.contentType != "" {
		r.Header.Set("Content-Type", c.contentType)
	}
	record := request.Begin(r, time.Unix(0, 0), logr.Discard())
	record.Info.Verb, record.Info.Namespace, record.Info.Name = c.verb, "one", "a"
	record.Info.Subresource = c.subresource
	if c.groups == nil {
		c.groups = []string{user.SystemPrivilegedGroup}
	}
	if !c.anonymous {
		record.User = &user.DefaultInfo{Name: "mover", Groups: c.groups}
	}
	recorder := httptest.NewRecorder()
	w.guard.Serve(recorder, r.WithContext(record), w.match)
	return recorder.Code, recorder.Body.String()
}

// objectOf returns the JSON of a ConfigMap in the namespace one.
func objectOf(name, uid, n string) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q,"namespace":"one","uid":%q,`+
		`"creationTimestamp":"2024-01-01T00:00:00Z","finalizers":["example.com/hold"]},"data":{"n":%q}}`, name, uid, n)
}

// stored returns the UID and the data of the stored object, or an empty string.
func (w *world) stored(t *testing.T) string {
	t.Helper()
	key := resource.Key{GroupResource: configMaps, Namespace: "one", Name: "a"}
	object, err := w.Get(t.Context(), key, resource.ReadOptions{})
	if err != nil {
		return ""
	}
	return fmt.Sprint(object.(metav1.Object).GetUID(), "=", object.(*core.ConfigMap).Data["n"])
}

// TestGuard sends requests while the resource is being transferred. Only the transfer, an administrator with the
// header, gets through; all others are refused, so that they do not see a part of the objects.
func TestGuard(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const moving = "configmaps are being moved from or to another cluster, please try again later"
	object := objectOf("a", "u", "1")
	for _, test := range []struct {
		call
		code int
		want string
	}{
		{call{verb: "get"}, http.StatusOK, "served"},
		{call{verb: "list"}, http.StatusOK, "served"},
		{call{verb: "watch"}, http.StatusServiceUnavailable, moving},
		{call{verb: "create", body: object}, http.StatusServiceUnavailable, moving},
		{call{verb: "patch", body: object}, http.StatusServiceUnavailable, moving},
		{call{verb: "deletecollection"}, http.StatusServiceUnavailable, moving},
		{call{verb: "update", subresource: "status", body: object}, http.StatusServiceUnavailable, moving},
		{call{verb: "delete", subresource: "status"}, http.StatusServiceUnavailable, moving},
		{call{verb: "get", plain: true}, http.StatusServiceUnavailable, moving},
		{call{verb: "update", plain: true, body: object}, http.StatusServiceUnavailable, moving},
		{call{verb: "delete", plain: true, body: "{}"}, http.StatusServiceUnavailable, moving},
		{call{verb: "list", groups: []string{"users"}}, http.StatusServiceUnavailable, moving},
		{call{verb: "update", groups: []string{"users"}, body: object}, http.StatusServiceUnavailable, moving},
		{call{verb: "update", groups: []string{}, body: object}, http.StatusServiceUnavailable, moving},
		{call{verb: "get", anonymous: true}, http.StatusServiceUnavailable, moving},
	} {
		if code, body := w.send(t, test.call); code != test.code || !strings.Contains(body, test.want) {
			t.Errorf("%+v: got %d %s", test.call, code, body)
		}
		if got := w.stored(t); got != "" {
			t.Fatalf("%+v has stored %s", test.call, got)
		}
	}
	settled := *w.match.Definition
	settled.Transferring = false
	w.match.Definition = &settled
	for _, c := range []call{
		{verb: "watch", plain: true}, {verb: "update"}, {verb: "delete"}, {verb: "get", anonymous: true},
	} {
		if code, body := w.send(t, c); code != http.StatusOK || body != "served" {
			t.Errorf("%+v after the transfer: got %d %s", c, code, body)
		}
	}
}

// TestRefusalHasNoRetryAfter checks that clients do not continue a watch at a revision of another etcd.
func TestRefusalHasNoRetryAfter(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
	record := request.Begin(r, time.Unix(0, 0), logr.Discard())
	record.Info.Verb = "watch"
	recorder := httptest.NewRecorder()
	w.guard.Serve(recorder, r.WithContext(record), w.match)
	if after := recorder.Header().Get("Retry-After"); recorder.Code != http.StatusServiceUnavailable || after != "" {
		t.Errorf("got %d with Retry-After %q", recorder.Code, after)
	}
}

// TestTransfer moves an object into the cluster and out of it, with requests that fail in between.
func TestTransfer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, step := range []struct {
		name string
		call
		code   int
		want   string // part of the body
		stored string
	}{
		{"delete before the object exists", call{verb: "delete", body: `{"preconditions":{"uid":"u"}}`},
			http.StatusNotFound, "not found", ""},
		{"no body", call{verb: "update"}, http.StatusBadRequest, "", ""},
		{"no JSON", call{verb: "update", body: "{"}, http.StatusBadRequest, "", ""},
		{"unknown field", call{verb: "update", body: strings.Replace(objectOf("a", "u", "1"), `"data"`, `"date"`, 1)},
			http.StatusBadRequest, `unknown field \"date\"`, ""},
		{"another name", call{verb: "update", body: objectOf("b", "u", "1")}, http.StatusBadRequest,
			"the namespace and the name of the object must match the URL", ""},
		{"another kind", call{verb: "update", body: `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a",` +
			`"namespace":"one"}}`}, http.StatusBadRequest, "Secret", ""},
		{"no UID", call{verb: "update", body: objectOf("a", "", "1")}, http.StatusUnprocessableEntity, "uid", ""},
		{"another media type", call{verb: "update", body: objectOf("a", "u", "1"), contentType: "application/yaml"},
			http.StatusUnsupportedMediaType, "a transfer is JSON", ""},

		{"first copy", call{verb: "update", body: objectOf("a", "u", "1"), contentType: "application/json;charset=utf-8"},
			http.StatusCreated, `"n":"1"`, "u=1"},
		{"the same copy", call{verb: "update", body: objectOf("a", "u", "1")}, http.StatusOK, `"uid":"u"`, "u=1"},
		{"a later copy", call{verb: "update", body: objectOf("a", "u", "2")}, http.StatusOK, `"n":"2"`, "u=2"},
		{"another object", call{verb: "update", body: objectOf("a", "v", "3")}, http.StatusConflict, "", "u=2"},

		{"delete with no options", call{verb: "delete"}, http.StatusBadRequest,
			"the body must be JSON DeleteOptions", "u=2"},
		{"delete with no UID", call{verb: "delete", body: "{}"}, http.StatusBadRequest, "preconditions.uid is required",
			"u=2"},
		{"delete with another UID", call{verb: "delete", body: `{"preconditions":{"uid":"v"}}`}, http.StatusConflict, "",
			"u=2"},
		{"delete with protobuf", call{verb: "delete", contentType: "application/vnd.kubernetes.protobuf"},
			http.StatusUnsupportedMediaType, "a transfer is JSON", "u=2"},
		{"delete in spite of the finalizer", call{verb: "delete", body: `{"preconditions":{"uid":"u"}}`}, http.StatusOK,
			`"status":"Success"`, ""},
	} {
		code, body := w.send(t, step.call)
		if code != step.code || !strings.Contains(body, step.want) {
			t.Errorf("%s: got %d %s", step.name, code, body)
		}
		if got := w.stored(t); got != step.stored {
			t.Errorf("%s: stored is %q, want %q", step.name, got, step.stored)
		}
	}
}
