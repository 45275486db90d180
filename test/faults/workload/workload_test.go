package workload

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"

	"quorate.dev/test/history/check"
	"quorate.dev/test/upstream"
)

// defect is a server that is wrong on purpose: a real one whose requests and responses a transport changes.
type defect struct {
	workload string
	wrong    transport.WrapperFunc
	finds    string // in what the check returns
}

func defects() []defect {
	return []defect{
		{"events", deleteEarly, "its TTL is"},
		{"election", ignoreRevisions, "which renewed its lease only"},
		{"namespaces", hideTerminating, "namespaces: deleted-"},
		{"applies", confuseManagers, "the field of manager"},
		{"quota", forgetUsage, "its quota is"},
		{"services", repeatAddresses, "have both 10.0.0."},
		{"finalizers", bringBack, "was at stage 3, and is back at"},
		{"appends", applyTwice, "twice"},
		{"custom objects", nil, "is missing"}, // a watch loses events
	}
}

// deadline bounds the time of a workload.
const deadline = 2 * time.Minute

// observations returns the number of observations after which the check of a workload must have found a defect.
func observations(workload string) int {
	if workload == "election" { // twice as long as a lease, which is renewed every retryPeriod
		return int(2 * leaseDuration / retryPeriod)
	}
	return 60
}

// TestDefects: the check of each workload finds its defect.
func TestDefects(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	t.Parallel()
	server := startServer(t)
	for _, d := range defects() {
		t.Run(d.workload, func(t *testing.T) {
			t.Parallel()
			err := errors.Join(d.run(t, server)...)
			if !strings.Contains(fmt.Sprint(err), d.finds) {
				t.Fatalf("the check has found %v, want %q", err, d.finds)
			}
		})
	}
}

// TestWithout: without a defect the checks find nothing.
func TestWithout(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	t.Parallel()
	server := startServer(t)
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, err := range (defect{workload: name, wrong: nil, finds: ""}).run(t, server) {
				t.Error(err)
			}
		})
	}
}

func startServer(t *testing.T) *rest.Config {
	t.Helper()
	directory := t.TempDir()
	pki, err := upstream.NewPKI(filepath.Join(directory, "pki"))
	if err != nil {
		t.Fatal(err)
	}
	server, err := upstream.StartQuorate(t.Context(), upstream.Options{Directory: directory, PKI: pki, Arguments: Flags()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Kill)
	return server.Admin
}

// run runs the workload until it has observed enough, and returns what its check finds. The defect is in the first of
// three clients, or in the watch of custom objects.
func (d defect) run(t *testing.T, server *rest.Config) []error {
	t.Helper()
	configurations := []*rest.Config{rest.CopyConfig(server), rest.CopyConfig(server), rest.CopyConfig(server)}
	if d.wrong != nil {
		configurations[0].Wrap(d.wrong)
	}
	all, err := New(configurations, 1)
	if err != nil {
		t.Fatal(err)
	}
	w := all[d.workload]
	if objects, ok := w.(*customObjects); ok && d.finds != "" {
		var events atomic.Int64
		objects.drop = func() bool { return events.Add(1)%20 == 0 }
	}
	ctx, end := context.WithTimeout(t.Context(), deadline)
	defer end()
	working, endWork := context.WithCancel(ctx)
	defer endWork()
	if err := w.Start(working); err != nil {
		t.Fatal(err)
	}
	for waiting := true; waiting && w.Observed() < observations(d.workload); {
		waiting = check.Pause(ctx, 20*time.Millisecond)
	}
	endWork()
	w.Stop()
	checking := ctx
	if d.finds != "" { // a check that waits for what does not happen need not wait long
		limited, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		checking = limited
	}
	return w.Check(checking)
}

// trip is a RoundTripper.
type trip func(*http.Request) (*http.Response, error)

func (t trip) RoundTrip(request *http.Request) (*http.Response, error) { return t(request) }

// send sends another request with the credentials of a transport, and discards the response.
func send(next http.RoundTripper, like *http.Request, method, path, contentType, body string) (string, error) {
	request := like.Clone(like.Context())
	request.Method, request.URL.Path, request.URL.RawQuery = method, path, ""
	request.Body, request.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
	request.Header.Set("Content-Type", contentType)
	response, err := next.RoundTrip(request)
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(response.Body)
	return string(text), errors.Join(err, response.Body.Close())
}

// rewrite replaces the body of a response.
func rewrite(response *http.Response, change func(string) string) (*http.Response, error) {
	text, err := io.ReadAll(response.Body)
	if err := errors.Join(err, response.Body.Close()); err != nil {
		return nil, err
	}
	changed := change(string(text))
	response.Body, response.ContentLength = io.NopCloser(strings.NewReader(changed)), int64(len(changed))
	response.Header.Del("Content-Length")
	return response, nil
}

// deleteEarly deletes Events before it reads them, as if they had expired.
func deleteEarly(next http.RoundTripper) http.RoundTripper {
	return trip(func(request *http.Request) (*http.Response, error) {
		if request.Method == http.MethodGet && strings.Contains(request.URL.Path, "/events/expiring-") {
			if _, err := send(next, request, http.MethodDelete, request.URL.Path, "application/json", ""); err != nil {
				return nil, err
			}
		}
		return next.RoundTrip(request)
	})
}

var revisionField = regexp.MustCompile(`"resourceVersion":"\d+"`)

// ignoreRevisions always reads the first state of a Lease, which another client must have created, and overwrites
// whatever is there.
func ignoreRevisions(next http.RoundTripper) http.RoundTripper {
	var mu sync.Mutex
	first := ""
	return trip(func(request *http.Request) (*http.Response, error) {
		if request.Method == http.MethodPost && strings.HasSuffix(request.URL.Path, "/leases") {
			return nil, errors.New("another client creates the Lease")
		}
		if !strings.Contains(request.URL.Path, "/leases/election") {
			return next.RoundTrip(request)
		}
		if request.Method == http.MethodPut {
			body, err := io.ReadAll(request.Body)
			if err != nil {
				return nil, err
			}
			current, err := send(next, request, http.MethodGet, request.URL.Path, "application/json", "")
			if err != nil {
				return nil, err
			}
			body = revisionField.ReplaceAll(body, []byte(revisionField.FindString(current)))
			request.Body, request.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
			return next.RoundTrip(request)
		}
		response, err := next.RoundTrip(request)
		if err != nil || response.StatusCode != http.StatusOK {
			return response, err
		}
		return rewrite(response, func(text string) string {
			mu.Lock()
			defer mu.Unlock()
			if first == "" {
				first = text
			}
			return first
		})
	})
}

// hideTerminating does not find namespaces that are being deleted.
func hideTerminating(next http.RoundTripper) http.RoundTripper {
	return trip(func(request *http.Request) (*http.Response, error) {
		response, err := next.RoundTrip(request)
		if err != nil || request.Method != http.MethodGet || !strings.Contains(request.URL.Path, "/namespaces/deleted-") {
			return response, err
		}
		return rewrite(response, func(text string) string {
			if strings.Contains(text, "deletionTimestamp") {
				response.StatusCode = http.StatusNotFound
				return `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`
			}
			return text
		})
	})
}

// confuseManagers plants a fault: requests of manager 1 reach the server as forced requests of manager 0.
func confuseManagers(next http.RoundTripper) http.RoundTripper {
	return trip(func(request *http.Request) (*http.Response, error) {
		if query, ok := strings.CutPrefix(request.URL.RawQuery, "fieldManager=manager-1"); ok {
			request.URL.RawQuery = "fieldManager=manager-0&force=true" + query
		}
		return next.RoundTrip(request)
	})
}

// forgetUsage resets the usage of a quota before each creation.
func forgetUsage(next http.RoundTripper) http.RoundTripper {
	return trip(func(request *http.Request) (*http.Response, error) {
		before, isObject := strings.CutSuffix(request.URL.Path, "/configmaps")
		if request.Method == http.MethodPost && isObject && request.URL.RawQuery == "" { // not a dry run
			if _, err := send(next, request, http.MethodPatch, before+"/resourcequotas/"+quotaName+"/status",
				"application/merge-patch+json", `{"status":{"used":{"count/configmaps":"0"}}}`); err != nil {
				return nil, err
			}
		}
		return next.RoundTrip(request)
	})
}

var addressField = regexp.MustCompile(`"clusterIP":"10[.0-9]+"`)

// repeatAddresses lists all services with one address.
func repeatAddresses(next http.RoundTripper) http.RoundTripper {
	return trip(func(request *http.Request) (*http.Response, error) {
		response, err := next.RoundTrip(request)
		if err != nil || request.Method != http.MethodGet || !strings.HasSuffix(request.URL.Path, "/services") {
			return response, err
		}
		return rewrite(response, func(text string) string {
			return addressField.ReplaceAllString(text, `"clusterIP":"10.0.0.9"`)
		})
	})
}

// bringBack reads the first state of each pod again and again.
func bringBack(next http.RoundTripper) http.RoundTripper {
	var mu sync.Mutex
	first := map[string]string{}
	return trip(func(request *http.Request) (*http.Response, error) {
		response, err := next.RoundTrip(request)
		if err != nil || request.Method != http.MethodGet || !strings.Contains(request.URL.Path, "/pods/finalized-") {
			return response, err
		}
		return rewrite(response, func(text string) string {
			mu.Lock()
			defer mu.Unlock()
			former, ok := first[request.URL.Path]
			if !ok && response.StatusCode == http.StatusOK {
				first[request.URL.Path] = text
			}
			if !ok {
				return text
			}
			response.StatusCode = http.StatusOK
			return former
		})
	})
}

// applyTwice applies each JSON patch twice, like a server that repeats a write whose response it has lost.
func applyTwice(next http.RoundTripper) http.RoundTripper {
	return trip(func(request *http.Request) (*http.Response, error) {
		if request.Method != http.MethodPatch || !strings.Contains(request.URL.Path, "/serviceaccounts/appends-") {
			return next.RoundTrip(request)
		}
		body, err := io.ReadAll(request.Body)
		if err != nil {
			return nil, err
		}
		if _, err := send(
			next, request, http.MethodPatch, request.URL.Path, string(types.JSONPatchType), string(body),
		); err != nil {
			return nil, err
		}
		request.Body, request.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		return next.RoundTrip(request)
	})
}

// TestListOrder: elements occur once, and in an order that the times of their patches permit.
func TestListOrder(t *testing.T) {
	first := &element{name: "first", list: "l", began: 1, ended: 2}
	second := &element{name: "second", list: "l", began: 3, ended: 6}
	third := &element{name: "third", list: "l", began: 4} // no response
	refused := &element{name: "refused", list: "l", began: 5, refused: true}
	w := &appends{all: map[string]*element{}, order: []*element{first, second, third, refused}}
	for _, e := range w.order {
		w.all[e.name] = e
	}
	for _, test := range []struct {
		names string
		began int
		wrong string
	}{
		{"first second", 7, ""},
		{"first third second", 7, ""},
		{"first second third", 7, ""},
		{"first", 5, ""},
		{"first", 7, "lacks second"},
		{"second first", 7, "behind"},
		{"first second first", 7, "twice"},
		{"first refused", 5, "rejected"},
		{"first other", 5, "no client"},
	} {
		err := w.compare("l", strings.Fields(test.names), test.began)
		if (err == nil) != (test.wrong == "") || !strings.Contains(fmt.Sprint(err), test.wrong) {
			t.Errorf("%s, read at %d: %v", test.names, test.began, err)
		}
	}
}

// TestStage: a read may show neither less than what was acknowledged before nor more than what was tried.
func TestStage(t *testing.T) {
	s := stage{tried: 2, known: 1}
	for _, test := range []struct {
		atLeast, got int
		wrong        bool
	}{{1, 1, false}, {1, 0, true}, {1, 3, true}, {1, 2, false}, {2, 1, true}} {
		if err := s.end(test.atLeast, test.got); (err != nil) != test.wrong {
			t.Errorf("from %d to %d: %v", test.atLeast, test.got, err)
		}
	}
	if s.known != 2 {
		t.Errorf("%d is known after a read of 2", s.known)
	}
}
