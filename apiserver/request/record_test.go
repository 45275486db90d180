package request

import (
	"context"
	"errors"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apiserver/pkg/authentication/user"
	upstream "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"
)

func TestRecordAnswersUpstreamsKeys(t *testing.T) {
	received := time.Unix(1000, 0)
	r := httptest.NewRequest("GET", "/api/v1/namespaces/a/pods/b", nil)
	record := Begin(r, received, logr.Discard())
	if err := record.Resolve(r.Method); err != nil {
		t.Fatal(err)
	}
	if _, ok := upstream.UserFrom(record); ok {
		t.Error("a user before authentication")
	}
	if _, ok := upstream.NamespaceFrom(record); ok {
		t.Error("a namespace before a handler set it")
	}
	record.User = &user.DefaultInfo{Name: "alice"}
	record.SetNamespace("a")
	w := httptest.NewRecorder()
	record.Warnings.To(w)

	ctx, cancel := context.WithCancel(record)
	defer cancel()
	if From(ctx) != record || From(record) != record {
		t.Error("From does not find the record")
	}
	if who, ok := upstream.UserFrom(ctx); !ok || who.GetName() != "alice" {
		t.Errorf("user %v", who)
	}
	if info, ok := upstream.RequestInfoFrom(ctx); !ok || info.Name != "b" || info.Verb != "get" {
		t.Errorf("request info %+v", info)
	}
	if namespace, ok := upstream.NamespaceFrom(ctx); !ok || namespace != "a" {
		t.Errorf("namespace %q, %v", namespace, ok)
	}
	if at, ok := upstream.ReceivedTimestampFrom(ctx); !ok || !at.Equal(received) {
		t.Errorf("received %v, %v", at, ok)
	}
	if _, err := logr.FromContext(ctx); err != nil {
		t.Error("no logger in the context")
	}
	warning.AddWarning(ctx, "", "beware")
	if got := w.Header().Get("Warning"); got != `299 - "beware"` {
		t.Errorf("warning header %q", got)
	}
}

// TestRecordEndsWithItsContext checks that contexts derived from a record follow the one it wraps.
func TestRecordEndsWithItsContext(t *testing.T) {
	base, cancel := context.WithCancelCause(t.Context())
	r := httptest.NewRequest("GET", "/", nil).WithContext(base)
	derived, stop := context.WithTimeout(Begin(r, time.Now(), logr.Discard()), time.Hour)
	defer stop()
	gone := errors.New("gone")
	cancel(gone)
	<-derived.Done()
	if cause := context.Cause(derived); !errors.Is(cause, gone) {
		t.Errorf("cause %v", cause)
	}
	if From(t.Context()) != nil {
		t.Error("a record where there is none")
	}
}

func TestInflight(t *testing.T) {
	var inflight Inflight
	for range 2 {
		if !inflight.Enter() {
			t.Fatal("refused while open")
		}
	}
	idle := inflight.Close()
	if inflight.Enter() {
		t.Error("entered after Close")
	}
	inflight.Leave()
	select {
	case <-idle:
		t.Error("idle with one left")
	default:
	}
	inflight.Leave()
	<-idle
	if inflight.Close() != idle {
		t.Error("a second Close gives another channel")
	}
	<-new(Inflight).Close() // nothing to wait for
}

func TestWatchesEnd(t *testing.T) {
	var watches Watches
	ended := map[int]bool{}
	var numbers []int
	for i := range 3 {
		number, ok := watches.Enter(func() { ended[i] = true })
		if !ok {
			t.Fatal("refused while open")
		}
		numbers = append(numbers, number)
	}
	idle := watches.Close()
	if _, ok := watches.Enter(func() {}); ok {
		t.Error("entered after Close")
	}
	if cancelled := watches.End(2); cancelled != 2 || len(ended) != 2 {
		t.Errorf("cancelled %d, ended %v", cancelled, ended)
	}
	if cancelled := watches.End(2); cancelled != 1 || len(ended) != 3 {
		t.Errorf("then cancelled %d, ended %v", cancelled, ended)
	}
	for _, number := range numbers {
		watches.Leave(number)
	}
	<-idle
}
