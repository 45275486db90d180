package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	auditapi "k8s.io/apiserver/pkg/apis/audit"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"quorate.dev/apiserver/config"
	"quorate.dev/apiserver/request"
)

// newConfig returns a configuration with a policy, given as JSON, and without a backend.
func newConfig(t *testing.T, rules string) config.Audit {
	t.Helper()
	c := config.Default().Audit
	c.PolicyFile = filepath.Join(t.TempDir(), "policy.yaml")
	policy := fmt.Sprintf(`{"apiVersion":"audit.k8s.io/v1","kind":"Policy","rules":[%s]}`, rules)
	if err := os.WriteFile(c.PolicyFile, []byte(policy), 0o600); err != nil {
		t.Fatal(err)
	}
	return c
}

func run(t *testing.T, c config.Audit) *Auditor {
	t.Helper()
	auditor, err := New(c, Options{UserAgent: "kube-apiserver/test"})
	if err != nil {
		t.Fatal(err)
	}
	if err := auditor.Run(); err != nil {
		t.Fatal(err)
	}
	return auditor
}

// audited starts the event of a request by alice.
func audited(t *testing.T, auditor *Auditor) *request.Record {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/version", nil)
	record := request.Begin(r, time.Now(), logr.Discard())
	record.AuditID, record.User = "id", &user.DefaultInfo{Name: "alice"}
	record.Attributes.User, record.Attributes.Verb, record.Attributes.Path = record.User, "get", "/version"
	ok, err := auditor.Begin(record, r)
	if err != nil || !ok {
		t.Fatalf("got %t %v, want an audited request", ok, err)
	}
	return record
}

func complete(record *request.Record) {
	record.AuditContext().ProcessEventStage(record, auditapi.StageResponseComplete)
}

func readLog(t *testing.T, path string) []auditv1.Event {
	t.Helper()
	log, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var events []auditv1.Event
	for decoder := json.NewDecoder(bytes.NewReader(log)); ; {
		var event auditv1.Event
		if err := decoder.Decode(&event); errors.Is(err, io.EOF) {
			return events
		} else if err != nil {
			t.Fatal(err)
		}
		events = append(events, event)
	}
}

func TestNewFails(t *testing.T) {
	for name, change := range map[string]func(*config.Audit){
		"loading audit policy file": func(c *config.Audit) { c.PolicyFile = filepath.Join(t.TempDir(), "none") },
		"ensureLogFile":             func(c *config.Audit) { c.Log.Path = filepath.Join(c.PolicyFile, "audit.log") },
		"initializing audit webhook": func(c *config.Audit) {
			c.Webhook.ConfigFile = filepath.Join(t.TempDir(), "none")
		},
	} {
		c := newConfig(t, `{"level":"Metadata"}`)
		change(&c)
		if _, err := New(c, Options{}); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("got error %v, want %s", err, name)
		}
	}
}

func TestNothingToAudit(t *testing.T) {
	withoutPolicy := config.Default().Audit
	withoutPolicy.Log.Path = filepath.Join(t.TempDir(), "folder", "audit.log")
	for _, c := range []config.Audit{newConfig(t, `{"level":"Metadata"}`), withoutPolicy, config.Default().Audit} {
		if auditor, err := New(c, Options{}); auditor != nil || err != nil {
			t.Errorf("got %v %v, want nothing", auditor, err)
		}
	}
	file, err := os.Stat(withoutPolicy.Log.Path)
	if err != nil || file.Mode() != 0o600 {
		t.Errorf("log file: got %v %v, want it created for its owner", file, err)
	}
}

func TestRotation(t *testing.T) {
	c := newConfig(t, `{"level":"RequestResponse"}`)
	c.Log.Path, c.Log.MaxSize, c.Log.Compress = filepath.Join(t.TempDir(), "audit.log"), 1, true
	auditor := run(t, c)
	const events = 3
	for range events {
		record := audited(t, auditor)
		LogResponse(record, nil, func() ([]byte, error) { return json.Marshal(strings.Repeat("x", 600<<10)) })
		complete(record)
	}
	auditor.Shutdown()
	var files []string
	compressed := func(context.Context) (bool, error) { // lumberjack does it in the background
		var err error
		files, err = filepath.Glob(filepath.Join(filepath.Dir(c.Log.Path), "audit-*"))
		isPlain := func(file string) bool { return !strings.HasSuffix(file, ".gz") }
		return len(files) > 0 && !slices.ContainsFunc(files, isPlain), err
	}
	if err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, time.Minute, true, compressed); err != nil {
		t.Errorf("got %v, want rotated files: %v", files, err)
	}
}

func TestLegacyFormat(t *testing.T) {
	c := newConfig(t, `{"level":"Metadata"}`)
	c.Log.Path, c.Log.Format, c.Log.MaxSize = filepath.Join(t.TempDir(), "audit.log"), config.AuditLegacy, 0
	auditor := run(t, c)
	complete(audited(t, auditor))
	auditor.Shutdown()
	log, err := os.ReadFile(c.Log.Path)
	if err != nil ||
		!strings.Contains(string(log), ` AUDIT: id="id" stage="ResponseComplete" ip="192.0.2.1" method="get" user="alice"`) {
		t.Errorf("got %q %v", log, err)
	}
}

// receiver is the server of an audit webhook.
type receiver struct {
	*httptest.Server
	mu     sync.Mutex
	events []auditv1.Event
	fails  int // number of requests that fail
}

func newReceiver(t *testing.T, c *config.Audit, fails int) *receiver {
	t.Helper()
	r := &receiver{fails: fails}
	r.Server = httptest.NewTLSServer(r)
	t.Cleanup(r.Close)
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: r.Certificate().Raw})
	kubeconfig, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "audit",
		"clusters": []any{map[string]any{"name": "audit", "cluster": map[string]any{
			"server": r.URL, "certificate-authority-data": authority,
		}}},
		"contexts": []any{map[string]any{"name": "audit", "context": map[string]any{"cluster": "audit"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	c.Webhook.ConfigFile = filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(c.Webhook.ConfigFile, kubeconfig, 0o600); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fails > 0 {
		r.fails--
		http.Error(w, "not yet", http.StatusTeapot)
		return
	}
	var list auditv1.EventList
	if err := json.NewDecoder(q.Body).Decode(&list); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	r.events = append(r.events, list.Items...)
}

// Events that are buffered when the server stops are delivered, also after failed attempts.
func TestShutdownDelivers(t *testing.T) {
	c := newConfig(t, `{"level":"Metadata"}`)
	c.Webhook.InitialBackoff = time.Millisecond
	r := newReceiver(t, &c, 2)
	auditor := run(t, c)
	const events = 5
	for range events {
		complete(audited(t, auditor))
	}
	auditor.Shutdown()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.events) != events {
		t.Errorf("got %d events, want %d", len(r.events), events)
	}
}

// TestPendingEvents checks that the memory of the process bounds the events that wait for the webhook.
func TestPendingEvents(t *testing.T) {
	for name, test := range map[string]struct {
		memory, pending int64 // MiB
		want            bool
	}{
		"no limit":                    {0, 200, true},
		"no limit, above the default": {0, 256, false},
		"limit":                       {1024, 100, true},
		"above an eighth":             {1024, 128, false},
		"small limit":                 {128, 30, true},
		"small limit, exceeded":       {128, 32, false},
	} {
		t.Run(name, func(t *testing.T) {
			c := newConfig(t, `{"level":"Metadata"}`)
			r := newReceiver(t, &c, 0)
			version := schema.GroupVersion{Group: "audit.k8s.io", Version: "v1"}
			backend, err := newWebhook(c.Webhook.ConfigFile, version, wait.Backoff{Steps: 1},
				Options{MemoryLimit: test.memory << 20})
			if err != nil {
				t.Fatal(err)
			}
			backend.(*webhookSink).pending.Add(test.pending << 20)
			accepted := backend.ProcessEvents(&auditapi.Event{Level: auditapi.LevelMetadata})
			if accepted != test.want || len(r.events) > 0 != test.want {
				t.Errorf("accepted %t, delivered %d events; want %t", accepted, len(r.events), test.want)
			}
		})
	}
}

// A response that exceeds the limits of all backends is dropped together with the request object, and the annotation
// says so.
func TestLogTooLarge(t *testing.T) {
	c := newConfig(t, `{"level":"RequestResponse"}`)
	c.Log.Path, c.Log.Truncate.Enabled, c.Log.Truncate.MaxEventSize = filepath.Join(t.TempDir(), "audit.log"), true, 2000
	auditor := run(t, c)
	record := audited(t, auditor)
	if record.Audit.MaxObject != 2000 {
		t.Errorf("got limit %d, want 2000", record.Audit.MaxObject)
	}
	LogPatch(record, []byte(`{}`))
	LogTooLarge(record)
	complete(record)
	auditor.Shutdown()
	event := readLog(t, c.Log.Path)[0]
	if event.Annotations["audit.k8s.io/truncated"] != "true" || event.ResponseObject != nil || event.RequestObject != nil {
		t.Errorf("got %v, want a truncated event", event)
	}
}

// sized is an item of a list.
type sized string

func (s sized) Size() int     { return len(s) }
func (s sized) Bytes() []byte { return []byte(s) }

func TestLimit(t *testing.T) {
	const object = sized(`{"metadata":{"name":"a","managedFields":[1,2,3]}}`)
	for _, test := range []struct {
		limit int64
		omits bool
		want  bool
	}{{0, false, false}, {1000, false, false}, {40, false, true}, {40, true, false}, {10, true, true}} {
		record := &request.Record{}
		record.Audit.MaxObject, record.Audit.OmitManagedFields = test.limit, test.omits
		if got := NewLimit(record).Exceeded(object); got != test.want {
			t.Errorf("%+v: got %t", test, got)
		}
	}
}

// A limit applies only if all backends have one.
func TestMaxObject(t *testing.T) {
	c := config.Default().Audit
	c.Log.Path, c.Log.Truncate.Enabled, c.Log.Truncate.MaxEventSize = "log", true, 10
	if got := maxObject(c); got != 10 {
		t.Errorf("got %d, want 10", got)
	}
	c.Webhook.ConfigFile = "kubeconfig"
	if got := maxObject(c); got != 0 {
		t.Errorf("got %d, want no limit", got)
	}
	c.Webhook.Truncate.Enabled, c.Webhook.Truncate.MaxEventSize = true, 20
	if got := maxObject(c); got != 20 {
		t.Errorf("got %d, want 20", got)
	}
}

func TestLogPatch(t *testing.T) {
	for patch, want := range map[string]string{
		`{"a":1}`: `{"a":1}`, "a: 1\nb: [c]": `{"a":1,"b":["c"]}`, "\x00": `"\u0000"`,
	} {
		c := newConfig(t, `{"level":"Request"}`)
		c.Log.Path = filepath.Join(t.TempDir(), "audit.log")
		auditor := run(t, c)
		record := audited(t, auditor)
		LogPatch(record, []byte(patch))
		complete(record)
		auditor.Shutdown()
		if got := string(readLog(t, c.Log.Path)[0].RequestObject.Raw); got != want {
			t.Errorf("%q: got %s, want %s", patch, got, want)
		}
	}
}

func TestServerWrites(t *testing.T) {
	c := newConfig(t, `{"level":"None","verbs":["delete"]},{"level":"RequestResponse"}`)
	c.Log.Path = filepath.Join(t.TempDir(), "audit.log")
	auditor := run(t, c)
	write := ServerWrite{
		Verb: "create", Resource: schema.GroupVersionResource{Group: "g", Version: "v1", Resource: "things"}, Namespace: "n",
		Encode: func(runtime.Object) ([]byte, error) { return []byte(`{"stored":true}`), nil },
	}
	begin := func(w ServerWrite) *ServerEvent {
		return auditor.BeginServerWrite(t.Context(), w, time.Now(), logr.Discard())
	}
	created := begin(write)
	created.Complete(&runtime.Unknown{}, nil)
	write.Verb, write.Name, write.Subresource = "update", "a", "status"
	begin(write).Complete(nil, apierrors.NewConflict(schema.GroupResource{}, "a", errors.New("changed")))
	write.Verb = "delete"
	begin(write).Complete(nil, nil) // not audited
	if inRequest := auditor.BeginServerWrite(created.record, write, time.Now(), logr.Discard()); inRequest != nil {
		t.Error("a write within a request has an event")
	}
	auditor.Shutdown()
	var got []string
	for _, event := range readLog(t, c.Log.Path) {
		line := fmt.Sprintf("%s %s %s %s", event.Stage, event.User.Username, event.Verb, event.RequestURI)
		if event.ResponseStatus != nil {
			line += fmt.Sprintf(" %d %s", event.ResponseStatus.Code, event.ResponseObject.Raw[:10])
		}
		got = append(got, line)
	}
	if want := []string{
		"RequestReceived system:apiserver create /apis/g/v1/namespaces/n/things",
		`ResponseComplete system:apiserver create /apis/g/v1/namespaces/n/things 201 {"stored":`,
		"RequestReceived system:apiserver update /apis/g/v1/namespaces/n/things/a/status",
		`ResponseComplete system:apiserver update /apis/g/v1/namespaces/n/things/a/status 409 {"kind":"S`,
	}; !cmp.Equal(got, want) {
		t.Error(cmp.Diff(want, got))
	}
}
