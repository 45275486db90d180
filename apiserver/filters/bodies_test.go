package filters

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"

	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/resource"
)

const podsPath = "/api/v1/namespaces/a/pods"

// slowUpload is a body that sends its first part, then nothing until it is released or closed.
type slowUpload struct {
	first   io.Reader
	stalled chan struct{} // closed when the first part has been sent
	once    sync.Once
	release chan struct{}
	rest    io.Reader
}

func newSlowUpload(first, rest int) *slowUpload {
	return &slowUpload{
		first: bytes.NewReader(make([]byte, first)), rest: bytes.NewReader(make([]byte, rest)),
		stalled: make(chan struct{}), release: make(chan struct{}),
	}
}

func (s *slowUpload) Read(p []byte) (int, error) {
	if n, _ := s.first.Read(p); n > 0 {
		return n, nil
	}
	s.once.Do(func() { close(s.stalled) })
	<-s.release
	return s.rest.Read(p)
}

// upload sends a slow body of the given size without waiting for the response.
func (f *fixture) upload(t *testing.T, who string, body *slowUpload, size int64) <-chan *http.Response {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	r := f.newRequest(t, http.MethodPost, podsPath, who).WithContext(ctx)
	r.Body, r.ContentLength = io.NopCloser(body), size
	responses := make(chan *http.Response, 1)
	client := f.server.Client()
	if transport := client.Transport.(*http.Transport); !f.server.EnableHTTP2 {
		transport = transport.Clone() // a connection of its own
		t.Cleanup(transport.CloseIdleConnections)
		client = &http.Client{Transport: transport}
	}
	go func() {
		defer close(responses)
		if response, err := client.Do(r); err == nil {
			responses <- response
			_ = response.Body.Close()
		}
	}()
	return responses
}

// readBodies is a handler that responds with the size of the body.
func readBodies(w http.ResponseWriter, r *http.Request) {
	body, err := request.From(r.Context()).Body(r)
	if err != nil {
		request.WriteError(w, r, err)
		return
	}
	_, _ = fmt.Fprint(w, len(body))
}

func (f *fixture) post(t *testing.T, who string, size int) (*http.Response, string) {
	t.Helper()
	r := f.newRequest(t, http.MethodPost, podsPath, who)
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(make([]byte, size))), int64(size)
	response, err := f.server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response, string(body)
}

// TestSlowUploadsTakeNoSlot sends more idle uploads than there are slots, which must not block other writes.
func TestSlowUploadsTakeNoSlot(t *testing.T) {
	both(t, func(t *testing.T, http1 bool) {
		f := start(t, http1, func(o *Options) { o.MaxMutatingRequestsInFlight = 3 }, readBodies)
		var uploads []*slowUpload
		var responses []<-chan *http.Response
		for range 12 {
			body := newSlowUpload(100, 900)
			uploads = append(uploads, body)
			responses = append(responses, f.upload(t, "alice", body, 1000))
			<-body.stalled
		}
		response, body := f.post(t, "bob", 5)
		expect(t, response, body, 200, "5")
		for i, body := range uploads {
			close(body.release)
			if response := <-responses[i]; response == nil || response.StatusCode != http.StatusOK {
				t.Errorf("a slow upload got %v", response)
			}
		}
	})
}

// TestUnreadBodyIsCutOff checks that the connection ends with a request whose body neither a handler reads nor the
// client completes: what comes later is not taken for a request.
func TestUnreadBodyIsCutOff(t *testing.T) {
	f := start(t, true, func(o *Options) { o.Bodies.Window = 10 * time.Millisecond }, http.NotFound)
	conn, answers := f.connect(t)
	const head = "POST /nothing HTTP/1.1\r\nHost: a\r\nAuthorization: alice\r\nContent-Length: 1000\r\n\r\n"
	if _, err := io.WriteString(conn, head); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(answers, nil)
	if err != nil || response.StatusCode != http.StatusNotFound {
		t.Fatalf("%+v, %v", response, err)
	}
	_, _ = io.Copy(io.Discard, response.Body)
	if further, err := io.ReadAll(answers); len(further) > 0 {
		t.Errorf("the connection continued: %q, %v", further, err)
	}
}

// TestUnreadBodyTakesNoSlot checks that a body that no handler reads does not hold the slot, and completes the
// response.
func TestUnreadBodyTakesNoSlot(t *testing.T) {
	answer := strings.Repeat("x", 64<<10) // more than net/http buffers
	f := start(t, true, func(o *Options) { o.MaxRequestsInFlight = 1 }, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, answer)
	})
	address, err := url.Parse(f.server.URL)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := tls.Dial("tcp", address.Host, &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	const head = "GET /api/v1/pods HTTP/1.1\r\nHost: a\r\nAuthorization: alice\r\nContent-Length: 10\r\n\r\n"
	if _, err := io.WriteString(conn, head); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	free := func(context.Context) (bool, error) {
		response, _ := f.get(t, "GET", "/api/v1/pods", "bob")
		return response.StatusCode == http.StatusOK, nil
	}
	if err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, 5*time.Second, true, free); err != nil {
		t.Errorf("the slot was held while the body was outstanding: %v", err)
	}
	if _, err := io.WriteString(conn, "0123456789"); err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, response.Body); err != nil || n != int64(len(answer)) {
		t.Fatalf("read %d bytes of the response: %v", n, err)
	}
}

// byGroup authenticates a user whose name is also its only group.
type byGroup struct{ byName }

func (b byGroup) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	name := r.Header.Get("Authorization")
	if !strings.HasPrefix(name, "system:") {
		return b.byName.AuthenticateRequest(r)
	}
	return &authenticator.Response{User: &user.DefaultInfo{Name: name, Groups: []string{name}}}, true, nil
}

// TestEssentialRequestsHaveSlots fills the shared slots and sends requests that have reserved ones.
func TestEssentialRequestsHaveSlots(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	f := start(t, false, func(o *Options) {
		o.Authenticator = byGroup{}
		o.MaxRequestsInFlight, o.MaxMutatingRequestsInFlight = 1, 1
	}, func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("wait") {
			entered <- struct{}{}
			<-release
		}
	})
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer close(release)
	hold := func(method, who string) {
		waiting.Go(func() { f.get(t, method, podsPath+"?wait", who) })
		<-entered
	}
	hold("GET", "alice")
	hold("POST", "alice")
	const lease = "/apis/coordination.k8s.io/v1/namespaces/a/leases/b"
	for _, c := range []struct {
		method, path, who string
		code              int
	}{
		{"GET", podsPath, "bob", 429},
		{"POST", podsPath, "bob", 429},
		{"GET", podsPath, "system:nodes", 200},
		{"POST", podsPath, "system:nodes", 200},
		{"POST", podsPath, "system:serviceaccounts:kube-system", 200},
		{"POST", podsPath, "system:serviceaccounts:default", 429},
		{"POST", podsPath, "system:kube-controller-manager", 200},
		{"GET", podsPath, "system:kube-scheduler", 200},
		{"PUT", lease, "bob", 200},
		{"GET", lease, "bob", 429},
		{"PUT", "/apis/example.com/v1/namespaces/a/leases/b", "bob", 429},
		{"POST", podsPath, "root", 200},
	} {
		if response, _ := f.get(t, c.method, c.path, c.who); response.StatusCode != c.code {
			t.Errorf("%s %s by %s: %d, want %d", c.method, c.path, c.who, response.StatusCode, c.code)
		}
	}
	hold("POST", "system:nodes")
	if response, _ := f.get(t, "PUT", lease, "bob"); response.StatusCode != http.StatusTooManyRequests {
		t.Errorf("more requests than reserved slots were served: %d", response.StatusCode)
	}
}

// TestBodiesAreBounded exceeds the limits of one user and of all users.
func TestBodiesAreBounded(t *testing.T) {
	both(t, func(t *testing.T, http1 bool) {
		const size = 100 << 10 // in a buffer of as much
		limits := BodyLimits{Total: 6 * size, PerUser: 4 * size, Reserved: 2 * size, Window: time.Hour}
		f := start(t, http1, func(o *Options) { o.Authenticator, o.Bodies = byGroup{}, limits }, readBodies)
		var bodies []*slowUpload
		release := func() {
			for _, body := range bodies {
				close(body.release)
			}
			bodies = nil
		}
		defer release()
		// hold starts uploads that lack only their last byte.
		hold := func(who string, uploads int) {
			for range uploads {
				bodies = append(bodies, newSlowUpload(size-1, 1))
				f.upload(t, who, bodies[len(bodies)-1], size)
				f.awaitHeld(t, float64(len(bodies)*size))
			}
		}
		post := func(who string, code int) {
			t.Helper()
			if response, _ := f.post(t, who, size); response.StatusCode != code {
				t.Errorf("%s with %d bytes already held: %d, want %d", who, len(bodies)*size, response.StatusCode, code)
			}
			f.awaitHeld(t, float64(len(bodies)*size))
		}
		hold("alice", 4)
		post("alice", http.StatusTooManyRequests)
		post("bob", http.StatusOK)
		hold("bob", 2)
		post("bob", http.StatusTooManyRequests)
		post("system:nodes", http.StatusOK)
		hold("root", 2)
		post("system:nodes", http.StatusTooManyRequests)
		if response, body := f.get(t, "DELETE", podsPath+"/b", "alice"); response.StatusCode != http.StatusOK {
			t.Errorf("a request without a body got %d %s", response.StatusCode, body)
		}
		release()
		f.awaitHeld(t, 0)
		post("alice", http.StatusOK)
	})
}

// awaitHeld waits until as many bytes are held for bodies.
func (f *fixture) awaitHeld(t *testing.T, bytes float64) {
	t.Helper()
	held := 0.0
	same := func(context.Context) (bool, error) {
		held = f.value(t, "quorate_request_body_bytes")
		return held == bytes, nil
	}
	if err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, 30*time.Second, true, same); err != nil {
		t.Fatalf("%v bytes are held, want %v", held, bytes)
	}
}

// TestSlowBodiesAreCutOff stops sending at the start and after a large part of the body.
func TestSlowBodiesAreCutOff(t *testing.T) {
	both(t, func(t *testing.T, http1 bool) {
		f := start(t, http1, func(o *Options) { o.Bodies = BodyLimits{Window: 20 * time.Millisecond} }, readBodies)
		for i, first := range []int{1, 1 << 20} {
			idle := newSlowUpload(first, 999)
			defer close(idle.release)
			response := <-f.upload(t, "alice", idle, int64(first)+999)
			if response == nil || response.StatusCode != http.StatusRequestTimeout {
				t.Fatalf("an upload that stops after %d bytes got %+v", first, response)
			}
			ended := f.final(t, "apiserver_request_terminations_total", `code="408"`, `resource="pods"`)
			if ended != float64(i+1) {
				t.Errorf("%v terminations", ended)
			}
		}
		f.awaitHeld(t, 0)
	})
}

// TestSteadyBodiesAreNotCutOff checks the minimum progress.
func TestSteadyBodiesAreNotCutOff(t *testing.T) {
	f := &fixture{registry: prometheus.NewRegistry(), drain: &request.Drain{}}
	filter := newBodies(nil, f.options(func(o *Options) { o.Bodies = BodyLimits{Window: time.Hour, Progress: 10} }))
	r := httptest.NewRequest("POST", podsPath, nil)
	record := request.Begin(r, time.Time{}, logr.Discard())
	record.User = &user.DefaultInfo{Name: "alice"}
	begin := func() *upload { return filter.begin(httptest.NewRecorder(), r, record) }
	for _, c := range []struct {
		received []int64 // before each check
		tooSlow  bool
	}{
		{nil, false}, {[]int64{0}, false}, {[]int64{0, 0}, true}, {[]int64{1000, 9}, true}, {[]int64{0, 10, 10}, false},
		{[]int64{0, 10, 9}, true}, {[]int64{0, 1000, 0}, true},
	} {
		u := begin()
		for _, received := range c.received {
			u.received.Add(received)
			filter.check()
		}
		if tooSlow := u.end(); tooSlow != c.tooSlow {
			t.Errorf("%v bytes per window: too slow %t", c.received, tooSlow)
		}
	}
	complete := begin()
	filter.check()
	complete.end()
	if filter.check(); complete.tooSlow {
		t.Error("a complete body was cut off")
	}
	if filter.checking || len(filter.arriving) > 0 {
		t.Error("the timer still runs without bodies")
	}
}

// TestBodiesOfStreamsAreNotRead checks which requests reach their handler before their body has arrived.
func TestBodiesOfStreamsAreNotRead(t *testing.T) {
	var reached atomic.Int64
	f := start(t, false, func(o *Options) {
		o.Catalog.Publish(resource.NewCatalog(&resource.Definition{
			Plural: "pods", Namespaced: true,
			Versions: []*resource.Version{{Name: "v1", Endpoints: map[string]*resource.Endpoint{
				"": {}, "exec": {Connect: &resource.Connect{}}, "proxy": {Connect: &resource.Connect{}},
				"tunnel": {Connect: &resource.Connect{}},
			}}},
		}))
	}, func(w http.ResponseWriter, _ *http.Request) {
		reached.Add(1)
		w.WriteHeader(http.StatusTeapot)
	})
	for _, target := range []string{
		"POST /api/v1/namespaces/a/pods/b/exec", "PUT /api/v1/namespaces/a/pods/b/proxy/x",
		"POST /api/v1/namespaces/a/pods/b/tunnel", "POST /api/v1/proxy/namespaces/a/pods/b",
		"POST /apis/example.com/v1/things", "POST /anything", "GET /api/v1/pods?watch=1",
		"GET /api/v1/pods", "POST /api/v1/namespaces/a/pods/b/nothing",
	} {
		method, path, _ := strings.Cut(target, " ")
		body, sender := io.Pipe() // nothing comes
		r := f.newRequest(t, method, path, "alice")
		r.Body, r.ContentLength = body, -1
		response, err := f.server.Client().Do(r)
		if err != nil {
			t.Fatalf("%s: %v", target, err)
		}
		_ = response.Body.Close()
		_ = sender.Close()
		if response.StatusCode != http.StatusTeapot {
			t.Errorf("%s: %d", target, response.StatusCode)
		}
	}
}

// TestRefusedUploadsHoldNothing checks that forbidden and too large uploads are rejected before their bodies arrive.
func TestRefusedUploadsHoldNothing(t *testing.T) {
	f := start(t, false, func(o *Options) { o.Bodies = BodyLimits{Total: 1, PerUser: 1, Reserved: 1} }, readBodies)
	for _, c := range []struct {
		who  string
		size int64
		code int
	}{
		{"mallory", 1000, 403}, {"", 1000, 401}, {"bad", 1000, 401}, {"alice", request.MaxBody + 1, 413},
		{"alice", 1000, 429}, {"mallory", request.MaxBody + 1, 403},
	} {
		body := newSlowUpload(0, int(c.size))
		response := <-f.upload(t, c.who, body, c.size)
		if response == nil || response.StatusCode != c.code {
			t.Errorf("%+v: %+v", c, response)
		}
		close(body.release)
	}
}

// TestBodyTooSlowStatus checks the Status of a response that kube-apiserver does not have.
func TestBodyTooSlowStatus(t *testing.T) {
	f := start(t, false, func(o *Options) { o.Bodies = BodyLimits{Window: time.Millisecond} }, readBodies)
	body, sender := io.Pipe()
	defer func() { _ = sender.Close() }()
	r := f.newRequest(t, "POST", podsPath, "alice")
	r.Body, r.ContentLength = body, -1
	response, err := f.server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	var status metav1.Status
	if err := json.NewDecoder(response.Body).Decode(&status); err != nil {
		t.Fatal(err)
	}
	if status.Code != http.StatusRequestTimeout || status.Reason != metav1.StatusReasonTimeout {
		t.Errorf("%+v", status)
	}
}
