package client_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/audit"
	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/builtin/builtintest"
	"quorate.dev/apiserver/config"
	"quorate.dev/apiserver/registry/client"
	"quorate.dev/apiserver/resource"
)

// auditLog is a client whose writes are audited with request and response bodies, and the log of its events.
type auditLog struct {
	*client.Client
	path string
	read int // events that take has returned
}

func newAuditLog(t *testing.T, s *builtintest.Server) *auditLog {
	t.Helper()
	directory := t.TempDir()
	c := config.Default().Audit
	c.PolicyFile, c.Log.Path = filepath.Join(directory, "policy.yaml"), filepath.Join(directory, "audit.log")
	c.Log.Mode = config.AuditBlockingMode
	const policy = `{"apiVersion":"audit.k8s.io/v1","kind":"Policy","omitStages":["RequestReceived"],` +
		`"rules":[{"level":"RequestResponse"}]}`
	if err := os.WriteFile(c.PolicyFile, []byte(policy), 0o600); err != nil {
		t.Fatal(err)
	}
	auditor := builtintest.Must[*audit.Auditor](t)(audit.New(c, audit.Options{}))
	if err := auditor.Run(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(auditor.Shutdown)
	return &auditLog{path: c.Log.Path, Client: client.New(client.Options{
		Registry: s.Registry, Auditor: auditor, Clock: clock.RealClock{}, Logger: logr.Discard(),
	})}
}

// take returns the later events, one per line: verb, path, status code, and the key "n" of request and response.
func (l *auditLog) take(t *testing.T) []string {
	t.Helper()
	log, err := os.ReadFile(l.path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(log)), "\n")
	if lines[0] == "" {
		lines = nil
	}
	var taken []string
	for _, line := range lines[l.read:] {
		var event auditv1.Event
		if err := json.Unmarshal([]byte(line), &event); err != nil {
			t.Fatal(err)
		}
		taken = append(taken, fmt.Sprintf("%s %s %d %q %q", event.Verb, event.RequestURI, event.ResponseStatus.Code,
			dataOf(event.RequestObject), dataOf(event.ResponseObject)))
	}
	l.read = len(lines)
	return taken
}

// dataOf returns the key "n" of a ConfigMap in an event, or an empty string if the event has no such object.
func dataOf(object *runtime.Unknown) string {
	var c struct {
		APIVersion, Kind string
		Data             map[string]string
	}
	if object == nil || json.Unmarshal(object.Raw, &c) != nil || c.APIVersion != "v1" || c.Kind != "ConfigMap" {
		return ""
	}
	return c.Data["n"]
}

// TestWritesAreAudited writes in all ways. Each write has one event, also if it fails or is repeated after a conflict;
// an edit that refuses has none, because a client would send nothing.
func TestWritesAreAudited(t *testing.T) {
	t.Parallel()
	s := builtintest.NewServer(t, builtin.Options{}, nil)
	l, ctx := newAuditLog(t, s), t.Context()
	const collection, object = "/api/v1/namespaces/one/configmaps", "/api/v1/namespaces/one/configmaps/a"
	for _, step := range []struct {
		name string
		do   func() error
		want []string
	}{
		{"create", func() error {
			_, err := l.Create(ctx, keyOf("a"), newConfigMap("a", "1"), resource.WriteOptions{})
			return err
		}, []string{"create " + collection + ` 201 "1" "1"`}},
		{"create that fails", func() error {
			_, err := l.Create(ctx, keyOf(""), newConfigMap("a", "2"), resource.WriteOptions{})
			return err
		}, []string{"create " + collection + ` 409 "2" ""`}},
		{"update", func() error {
			_, err := l.Update(ctx, keyOf("a"), setN("2"), resource.WriteOptions{})
			return err
		}, []string{"update " + object + ` 200 "2" "2"`}},
		{"update that is repeated", func() error {
			count := 0
			_, err := l.Update(ctx, keyOf("a"), func(object runtime.Object) error {
				if count++; count == 1 {
					succeeds(t)(s.Update(ctx, keyOf("a"), setN("3"), resource.WriteOptions{}))
				}
				return setN(fmt.Sprint("attempt ", count))(object)
			}, resource.WriteOptions{})
			return err
		}, []string{"update " + object + ` 200 "attempt 2" "attempt 2"`}},
		{"edit that fails", func() error {
			_, err := l.Update(ctx, keyOf("a"), func(runtime.Object) error { return os.ErrInvalid }, resource.WriteOptions{})
			return err
		}, nil},
		{"apply", func() error {
			_, err := l.Apply(ctx, keyOf("a"), configuration("a", "4"), resource.WriteOptions{})
			return err
		}, []string{"patch " + object + ` 200 "4" "4"`}},
		{"delete", func() error {
			return l.Delete(ctx, keyOf("a"), &metav1.DeleteOptions{})
		}, []string{"delete " + object + ` 200 "" ""`}},
		{"delete again", func() error {
			return l.Delete(ctx, keyOf("a"), nil)
		}, []string{"delete " + object + ` 404 "" ""`}},
		{"reads", func() error {
			_, err := l.List(ctx, keyOf(""), resource.ReadOptions{})
			return err
		}, nil},
	} {
		err := step.do()
		if got := l.take(t); !slices.Equal(got, step.want) {
			t.Errorf("%s (%v): got %q, want %q", step.name, err, got, step.want)
		}
	}
}
