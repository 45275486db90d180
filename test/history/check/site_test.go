package check

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"quorate.dev/test/upstream"
)

// startSite starts an API server and returns a site on it.
func startSite(t *testing.T) *Site {
	t.Helper()
	upstream.NeedsProcesses(t)
	directory := t.TempDir()
	pki, err := upstream.NewPKI(filepath.Join(directory, "pki"))
	if err != nil {
		t.Fatal(err)
	}
	server, err := upstream.StartQuorate(t.Context(), upstream.Options{
		Directory: directory, PKI: pki, Arguments: []string{"--etcd-unsafe-no-fsync=true"},
	})
	if err != nil {
		t.Fatal(err)
	}
	server.StopAfter(t)
	return newSite(t, server.Admin)
}

func newSite(t *testing.T, config *rest.Config) *Site {
	t.Helper()
	client, err := NewClient(config)
	if err != nil {
		t.Fatal(err)
	}
	return &Site{Clients: []rest.Interface{client, client}, Objects: ConfigMaps("default"), Record: NewRecord()}
}

// observe runs clients and watchers for two seconds, and returns the last revision when all have ended.
func (s *Site) observe(t *testing.T) int64 {
	t.Helper()
	load := Load{Writers: 4, Readers: 4, Watchers: 4, LongestWatch: 100 * time.Millisecond, Consistencies: true}
	working, endWork := context.WithTimeout(t.Context(), 2*time.Second)
	defer endWork()
	watching, endWatches := context.WithCancel(t.Context())
	defer endWatches()
	watchers := s.Watch(watching, load, 1)
	s.Work(working, load, 1).Wait()
	last, err := s.Finish(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	reaching, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := watchers.Reach(reaching, last); err != nil {
		t.Fatal(err)
	}
	endWatches()
	watchers.Finish()
	return last
}

// TestObservationsOfServer checks that the observations of a correct server have no faults, that they are not empty,
// and that a copy of the objects is compared with them.
func TestObservationsOfServer(t *testing.T) {
	s := startSite(t)
	last := s.observe(t)
	if acknowledged := s.Record.Acknowledged(); acknowledged == 0 || acknowledged >= last {
		t.Errorf("revision %d was acknowledged before the last write at %d", acknowledged, last)
	}
	if err := s.AddCopy(t.Context(), s.Clients[0], last, last); err != nil {
		t.Fatal(err)
	}
	for _, fault := range s.Record.Check() {
		t.Error(fault)
	}
	summary := s.Record.Summary()
	if summary.Objects < slots || summary.Writes < 10 || summary.Reads < 10 || summary.Lists == 0 ||
		summary.Watches < 4 || summary.Resumed == 0 || summary.Events == 0 || summary.Known() < summary.Unknown {
		t.Errorf("the clients have only observed %s", summary)
	}

	// A write that the record does not have makes the copy differ.
	if err := s.Clients[0].Delete().AbsPath(s.Objects.path(), "last").Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
	if err := s.AddCopy(t.Context(), s.Clients[0], last, last); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf(`the list at revision %d: last is "", want "last"`, last)
	if faults := s.Record.Check(); len(faults) != 1 || faults[0].Error() != want {
		t.Errorf("got the faults %v, want %q", faults, want)
	}
}

// TestDroppedEventIsNoticed checks that the loss of one event by one watcher is a fault.
func TestDroppedEventIsNoticed(t *testing.T) {
	s := startSite(t)
	var events atomic.Int64
	s.Drop = func() bool { return events.Add(1) == 20 }
	s.observe(t)
	faults := s.Record.Check()
	if len(faults) == 0 || !strings.Contains(fmt.Sprint(errors.Join(faults...)), "is missing") {
		t.Errorf("got the faults %v", faults)
	}
}

// fake serves responses that no correct server sends.
type fake struct {
	pages   atomic.Int64 // number of requested pages of lists
	created string       // resourceVersion of created objects
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	w.Header().Set("Content-Type", "application/json")
	if r.Method == http.MethodPost {
		_ = json.NewEncoder(w).Encode(&Object{ObjectMeta: meta.ObjectMeta{Name: "last", ResourceVersion: f.created}})
		return
	}
	list := &objectList{}
	if list.ResourceVersion = "11"; f.pages.Add(1)%2 == 1 {
		list.Continue = "more"
	} else {
		list.ResourceVersion = "12"
	}
	_ = json.NewEncoder(w).Encode(list)
}

func startFake(t *testing.T, created string) *Site {
	t.Helper()
	server := httptest.NewServer(&fake{created: created})
	t.Cleanup(server.Close)
	return newSite(t, &rest.Config{Host: server.URL})
}

// TestFaultsThatClientsNotice checks the faults of responses that the clients compare themselves.
func TestFaultsThatClientsNotice(t *testing.T) {
	s := startFake(t, "12")
	if _, err := s.Finish(t.Context()); err == nil || err.Error() != "cannot list the objects of server 0" {
		t.Errorf("pages of different revisions: got the error %v", err)
	}
	s.Record.acknowledged = 12
	if revision, err := s.writeLast(t.Context()); err != nil || revision != 12 {
		t.Errorf("got revision %d, error %v", revision, err)
	}
	faults := fmt.Sprint(errors.Join(s.Record.Check()...))
	const want = "a page is of revision \"12\", one before of 11\n" +
		"the last write is at revision 12; a write at 12 had been acknowledged before"
	if faults != want {
		t.Errorf("got the faults\n%s\nwant\n%s", faults, want)
	}
}

// TestUnreachableServer checks that the end of a run fails if a server cannot be read, because a lost write would not
// be noticed, and that operations without a connection are not recorded.
func TestUnreachableServer(t *testing.T) {
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener.Close()
	s := newSite(t, &rest.Config{Host: "http://" + listener.Addr().String()})
	s.Record.operations["object-0-0"] = nil
	if _, err := s.Finish(t.Context()); err == nil || err.Error() != "cannot read object-0-0 of server 0" {
		t.Errorf("got the error %v", err)
	}
	if operations := s.Record.operations["object-0-0"]; len(operations) > 0 {
		t.Errorf("recorded %+v", operations)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := s.writeLast(ctx); err == nil || !strings.HasPrefix(err.Error(), "the last write: ") {
		t.Errorf("got the error %v of the last write", err)
	}
	if err := s.AddCopy(t.Context(), s.Clients[0], 1, 1); err == nil ||
		!strings.HasPrefix(err.Error(), "list the objects of the copy: ") {
		t.Errorf("got the error %v of the copy", err)
	}
	watchers := s.Watch(ctx, Load{Watchers: 1, LongestWatch: time.Millisecond}, 1)
	const want = "watcher 0 has come to revision 0, and not to 7"
	if err := watchers.Reach(ctx, 7); err == nil || err.Error() != want {
		t.Errorf("got the error %v, want %q", err, want)
	}
	watchers.Finish()
}

// TestOutcome checks which operations are recorded, and with which result: an operation that was certainly not executed
// is not recorded, and an operation that may have been executed has an unknown result.
func TestOutcome(t *testing.T) {
	resource := schema.GroupResource{Resource: "configmaps"}
	conflicting := apierrors.NewConflict(resource, "a", errors.New("changed"))
	for name, test := range map[string]struct {
		kind   kind
		err    error
		want   result
		counts bool
	}{
		"success":                     {update, nil, done, true},
		"not found":                   {get, apierrors.NewNotFound(resource, "a"), absent, true},
		"exists":                      {create, apierrors.NewAlreadyExists(resource, "a"), present, true},
		"update conflicts":            {update, conflicting, conflict, true},
		"exact deletion conflicts":    {removeExact, conflicting, conflict, true},
		"patch conflicts":             {patch, conflicting, conflict, false},
		"deletion conflicts":          {remove, conflicting, conflict, false},
		"overload":                    {create, apierrors.NewTooManyRequests("later", 1), unknown, false},
		"no connection":               {create, fmt.Errorf("post: %w", &net.OpError{Op: "dial"}), unknown, false},
		"the connection ended":        {create, fmt.Errorf("post: %w", &net.OpError{Op: "read"}), unknown, true},
		"the request took too long":   {create, context.DeadlineExceeded, unknown, true},
		"an error of the server":      {update, apierrors.NewInternalError(errors.New("etcd")), unknown, true},
		"the server does not respond": {remove, apierrors.NewServerTimeout(resource, "delete", 1), unknown, true},
	} {
		if got, counts := outcome(test.kind, test.err); got != test.want || counts != test.counts {
			t.Errorf("%s: got %s, recorded %t, want %s, %t", name, got, counts, test.want, test.counts)
		}
	}
}

// TestObjectsAreReplaced checks that an object with enough operations, or with enough unknown outcomes, is replaced, so
// that porcupine finds an order of its operations within its time.
func TestObjectsAreReplaced(t *testing.T) {
	lost := func(h *Record, key string) {
		h.add(operation{Input: input{Kind: patch, Key: key}, Output: output{result: unknown}})
	}
	for name, test := range map[string]struct {
		use  func(h *Record, key string)
		most int // highest number of uses of an object
	}{
		"known outcomes":   {func(*Record, string) {}, slotUses},
		"unknown outcomes": {lost, slotUnknowns},
	} {
		h, random := NewRecord(), choices(1, 1)
		uses := map[string]int{}
		for range 10 * slots * slotUses {
			key := h.key(random)
			uses[key]++
			test.use(h, key)
		}
		if most := slices.Max(slices.Collect(maps.Values(uses))); most != test.most {
			t.Errorf("%s: an object was used %d times, want %d", name, most, test.most)
		}
	}
}

// TestObjects checks the paths of collections in the core group and in another group.
func TestObjects(t *testing.T) {
	for _, test := range []struct {
		objects          Objects
		path, everywhere string
	}{
		{ConfigMaps("team"), "/api/v1/namespaces/team/configmaps", "/api/v1/configmaps"},
		{
			Objects{"example.com/v1", "Rule", "rules", "team"},
			"/apis/example.com/v1/namespaces/team/rules", "/apis/example.com/v1/rules",
		},
	} {
		if path, everywhere := test.objects.path(), test.objects.everywhere(); path != test.path ||
			everywhere != test.everywhere {
			t.Errorf("%+v: got %s and %s", test.objects, path, everywhere)
		}
	}
}
