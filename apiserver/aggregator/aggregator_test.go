package aggregator_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/net/http2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/util/cert"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"

	"quorate.dev/apiserver/aggregator"
	"quorate.dev/apiserver/builtin/builtintest"
	"quorate.dev/apiserver/request"
)

// addresses is a resolver with the URLs of Services by name. It ignores namespaces.
type addresses map[string]string

// ResolveEndpoint implements webhook.ServiceResolver.
func (a addresses) ResolveEndpoint(_, name string, _ int32) (*url.URL, error) {
	address, ok := a[name]
	if !ok {
		return nil, fmt.Errorf("no service %q", name)
	}
	return url.Parse(address)
}

// serve starts an extension API server.
func serve(t *testing.T, handler http.HandlerFunc) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
}

// apiService returns the APIService v1.GROUP, which is available and names a Service.
func apiService(group, service string) *apiregistration.APIService {
	return &apiregistration.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: "v1." + group},
		Spec: apiregistration.APIServiceSpec{
			Group: group, Version: "v1", InsecureSkipTLSVerify: true,
			Service: &apiregistration.ServiceReference{Namespace: "default", Name: service, Port: 443},
		},
		Status: apiregistration.APIServiceStatus{Conditions: []apiregistration.APIServiceCondition{
			{Type: apiregistration.Available, Status: apiregistration.ConditionTrue},
		}},
	}
}

// front is a server whose handler chain has only the aggregator.
type front struct {
	*aggregator.Aggregator
	*httptest.Server
	deadline time.Duration // deadline of requests; 0: none
}

func newFront(t *testing.T, options aggregator.Options) *front {
	t.Helper()
	f := &front{Aggregator: aggregator.New(options)}
	f.Known()
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		record := request.Begin(r, time.Now(), logr.Discard())
		if f.deadline > 0 {
			ctx, cancel := context.WithTimeout(r.Context(), f.deadline)
			defer cancel()
			record.Context = ctx
		}
		record.User = &user.DefaultInfo{Name: "alice", Groups: []string{"developers"}}
		if err := record.Resolve(r.Method); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		if handler := f.Route(r.Context(), r.URL.Path); handler != nil {
			handler.ServeHTTP(w, r.WithContext(record))
			return
		}
		http.Error(w, "local", http.StatusTeapot)
	}))
	t.Cleanup(f.Server.Close)
	return f
}

// get returns the status and the body of the response to a GET request.
func (f *front) get(t *testing.T, path string, header ...string) (int, string) {
	t.Helper()
	r := builtintest.Must[*http.Request](t)(http.NewRequestWithContext(t.Context(), http.MethodGet,
		f.URL+path, http.NoBody))
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	response := builtintest.Must[*http.Response](t)(f.Client().Do(r))
	defer func() { _ = response.Body.Close() }()
	return response.StatusCode, string(builtintest.Must[[]byte](t)(io.ReadAll(response.Body)))
}

func (f *front) expect(t *testing.T, path string, code int, body string) {
	t.Helper()
	if gotCode, got := f.get(t, path); gotCode != code || !strings.Contains(got, body) {
		t.Errorf("%s: got %d %q, want %d %q", path, gotCode, got, code, body)
	}
}

func TestRoute(t *testing.T) {
	server := serve(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "remote "+r.URL.Path) })
	f := newFront(t, aggregator.Options{Resolver: addresses{"a": server.URL}})
	f.Set("v1.a.example", apiService("a.example", "a"))
	f.Set("v1.local.example", &apiregistration.APIService{
		Spec: apiregistration.APIServiceSpec{Group: "local.example", Version: "v1"},
	})
	for path, remote := range map[string]bool{
		"/apis/a.example/v1": true, "/apis/a.example/v1/": true, "/apis/a.example/v1/things": true,
		"/apis/a.example": false, "/apis/a.example/v2": false, "/apis/a.example/v11": false, "/apis/local.example/v1": false,
		"/apis": false, "/apis/": false, "/api/v1": false, "/api/v1/pods": false, "/": false, "/apis//v1": false,
	} {
		code, body := f.get(t, path)
		if remote != (code == http.StatusOK) || remote && body != "remote "+path {
			t.Errorf("%s: got %d %q, want remote %v", path, code, body, remote)
		}
	}
	f.Set("v1.", apiService("", "a")) // kube-aggregator forwards all of /api
	f.expect(t, "/api/v1/pods", http.StatusOK, "remote")
	f.expect(t, "/api", http.StatusOK, "remote")
	f.Set("v1.", nil)
	f.expect(t, "/api/v1/pods", http.StatusTeapot, "local")
	f.Set("v1.a.example", nil)
	f.expect(t, "/apis/a.example/v1/things", http.StatusTeapot, "local")
}

// TestGroupsWaitUntilKnown begins requests before the APIServices are known.
func TestGroupsWaitUntilKnown(t *testing.T) {
	a := aggregator.New(aggregator.Options{Unknown: http.NotFoundHandler()})
	a.Set("v1.a.example", apiService("a.example", "a"))
	if a.Route(t.Context(), "/api/v1/pods") != nil || a.Route(t.Context(), "/apis/apps/v1") != nil ||
		a.Table().Get("v1.a.example") != nil {
		t.Error("the core group and documents must be served, and no backend be known")
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if a.Route(gone, "/apis/apps/v1/deployments") == nil {
		t.Error("a group was served although an APIService may own it")
	}
	synctest.Test(t, func(t *testing.T) {
		a := aggregator.New(aggregator.Options{Unknown: http.NotFoundHandler()})
		a.Set("v1.a.example", apiService("a.example", "a"))
		if a.Route(t.Context(), "/apis/apps/v1/deployments") == nil { // after a timeout
			t.Error("a group was served although an APIService may own it")
		}
		routes := make(chan bool, 2)
		for _, path := range []string{"/apis/apps/v1/deployments", "/apis/a.example/v1/things"} {
			go func() { routes <- (a.Route(t.Context(), path) == nil) == strings.Contains(path, "apps") }()
		}
		synctest.Wait()
		a.Known()
		for range 2 {
			if !<-routes {
				t.Error("a request that waited was not routed by the APIServices")
			}
		}
	})
}

func TestUnavailable(t *testing.T) {
	f := newFront(t, aggregator.Options{Resolver: addresses{}})
	service := apiService("a.example", "a")
	f.Set("v1.a.example", service)
	f.expect(t, "/apis/a.example/v1/things", http.StatusServiceUnavailable, "service unavailable")
	broken := apiService("b.example", "a")
	broken.Spec.InsecureSkipTLSVerify, broken.Spec.CABundle = false, []byte("garbage")
	f.Set("v1.b.example", broken)
	f.expect(t, "/apis/b.example/v1/things", http.StatusInternalServerError, "unable to load root certificates")
}

func TestIdentityCannotBeForged(t *testing.T) {
	server := serve(t, func(w http.ResponseWriter, r *http.Request) { _, _ = fmt.Fprint(w, r.Header) })
	f := newFront(t, aggregator.Options{Resolver: addresses{"a": server.URL}})
	f.Set("v1.a.example", apiService("a.example", "a"))
	_, got := f.get(t, "/apis/a.example/v1/things", "Connection", "X-Remote-User, X-Remote-Group",
		"X-Remote-User", "mallory",
		"X-Remote-Group", "system:masters", "X-Remote-Extra-Scopes", "all", "X-Remote-Uid", "7")
	for _, want := range []string{"X-Remote-User:[alice]", "X-Remote-Group:[developers]"} {
		if !strings.Contains(got, want) {
			t.Errorf("got headers %s, want %s", got, want)
		}
	}
	for _, forged := range []string{"mallory", "masters", "Scopes", "Uid"} {
		if strings.Contains(got, forged) {
			t.Errorf("got headers %s, want none of the client's", got)
		}
	}
}

// TestSlowServer fills the limit of one server, which then responds with 429. Another server is not affected.
func TestSlowServer(t *testing.T) {
	release, waiting := make(chan struct{}), make(chan struct{}, 2)
	slow := serve(t, func(http.ResponseWriter, *http.Request) { waiting <- struct{}{}; <-release })
	fast := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "fast") })
	var rejected atomic.Int32
	f := newFront(t, aggregator.Options{
		Resolver: addresses{"slow": slow.URL, "fast": fast.URL}, MaxRequestsInFlight: 2,
		Rejected: func(_ *http.Request, code int) { rejected.Store(int32(code)) },
	})
	f.Set("v1.slow.example", apiService("slow.example", "slow"))
	f.Set("v1.other.example", apiService("other.example", "slow")) // another group of the same server
	f.Set("v1.fast.example", apiService("fast.example", "fast"))
	finished := make(chan struct{}, 2)
	for range 2 {
		go func() { f.get(t, "/apis/slow.example/v1/things"); finished <- struct{}{} }()
		<-waiting
	}
	f.expect(t, "/apis/slow.example/v1/things", http.StatusTooManyRequests, "Too many requests")
	f.expect(t, "/apis/other.example/v1/things", http.StatusTooManyRequests, "Too many requests")
	f.expect(t, "/apis/fast.example/v1/things", http.StatusOK, "fast")
	if rejected.Load() != http.StatusTooManyRequests {
		t.Errorf("rejected requests were reported with code %d, want 429", rejected.Load())
	}
	close(release)
	<-finished
	<-finished
	go func() { // both slots are free again
		for range 2 {
			<-waiting
		}
	}()
	f.expect(t, "/apis/slow.example/v1/things", http.StatusOK, "")
}

// TestUpgradeEndsWithTheRequest sends an upgrade to a server that never responds. On a loaded machine, the deadline of
// a request can pass before the request reaches the server.
func TestUpgradeEndsWithTheRequest(t *testing.T) {
	var ended atomic.Bool
	server := serve(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done(); ended.Store(true) })
	f := newFront(t, aggregator.Options{Resolver: addresses{"a": server.URL}})
	f.deadline = 50 * time.Millisecond
	f.Set("v1.a.example", apiService("a.example", "a"))
	builtintest.Eventually(t, "a request that has reached the server ends", func() bool {
		f.get(t, "/apis/a.example/v1/things/a/exec", "Connection", "Upgrade", "Upgrade", "SPDY/3.1")
		return ended.Load()
	})
}

// TestUpgradeOutlastsTheDeadline uses a stream after the deadline of the request has passed, as with kube-apiserver.
func TestUpgradeOutlastsTheDeadline(t *testing.T) {
	server := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		conn, buffer, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: test\r\n\r\n")
		line, _ := buffer.ReadString('\n')
		_, _ = io.WriteString(conn, "got "+line)
	})
	f := newFront(t, aggregator.Options{Resolver: addresses{"a": server.URL}})
	f.deadline = 300 * time.Millisecond
	f.Set("v1.a.example", apiService("a.example", "a"))
	conn := builtintest.Must[net.Conn](t)(new(net.Dialer).DialContext(t.Context(), "tcp", f.Listener.Addr().String()))
	defer func() { _ = conn.Close() }()
	began := time.Now()
	_, _ = io.WriteString(conn,
		"GET /apis/a.example/v1/a/exec HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: test\r\n\r\n")
	head := make([]byte, len("HTTP/1.1 101"))
	if _, err := io.ReadFull(conn, head); err != nil || string(head) != "HTTP/1.1 101" {
		t.Fatalf("got %q, %v", head, err)
	}
	builtintest.Eventually(t, "the deadline passes", func() bool { return time.Since(began) > 2*f.deadline })
	_, _ = io.WriteString(conn, "hello\n")
	rest := builtintest.Must[[]byte](t)(io.ReadAll(conn))
	if !strings.HasSuffix(string(rest), "got hello\n") {
		t.Errorf("got %q", rest)
	}
}

// TestConnections counts the connections to a server: one for all requests and APIServices until the certificate
// changes, and none when no APIService is left.
func TestConnections(t *testing.T) {
	directory := t.TempDir()
	files := [2]string{filepath.Join(directory, "tls.crt"), filepath.Join(directory, "tls.key")}
	writePair(t, files, "first")
	certificate := builtintest.Must[*aggregator.Certificate](t)(aggregator.NewCertificate(files[0], files[1]))
	var open atomic.Int32
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.TLS.PeerCertificates[0].Subject.CommonName)
	}))
	server.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	server.EnableHTTP2 = true
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			open.Add(1)
		case http.StateClosed:
			open.Add(-1)
		}
	}
	server.StartTLS()
	t.Cleanup(server.Close)
	f := newFront(t, aggregator.Options{Resolver: addresses{"a": server.URL}, Certificate: certificate})
	for _, group := range []string{"a.example", "b.example"} {
		f.Set("v1."+group, apiService(group, "a"))
		f.Set("v1."+group, apiService(group, "a")) // like a change of its status
		f.expect(t, "/apis/"+group+"/v1/things", http.StatusOK, "first")
	}
	if got := open.Load(); got != 1 {
		t.Errorf("got %d connections, want one", got)
	}
	if err := os.WriteFile(files[0], []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := certificate.Reload(); err == nil {
		t.Error("a certificate that cannot be parsed was loaded")
	}
	f.expect(t, "/apis/a.example/v1/things", http.StatusOK, "first")
	writePair(t, files, "second")
	if err := certificate.Reload(); err != nil {
		t.Fatal(err)
	}
	f.expect(t, "/apis/a.example/v1/things", http.StatusOK, "second")
	builtintest.Eventually(t, "the old connection is closed", func() bool { return open.Load() == 1 })
	f.Set("v1.a.example", nil)
	f.expect(t, "/apis/b.example/v1/things", http.StatusOK, "second")
	f.Set("v1.b.example", apiService("b.example", "other"))
	builtintest.Eventually(t, "all connections are closed", func() bool { return open.Load() == 0 })
}

// TestShutdownOfServer sends a write to a server that shuts down and does not process the write.
func TestShutdownOfServer(t *testing.T) {
	server := httptest.NewUnstartedServer(nil)
	server.EnableHTTP2 = true
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
	var connections atomic.Int32
	server.Config.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){
		"h2": func(_ *http.Server, connection *tls.Conn, _ http.Handler) {
			if connections.Add(1) == 1 {
				goAway(t, connection)
				return
			}
			new(http2.Server).ServeConn(connection, &http2.ServeConnOpts{Handler: handler})
		},
	}
	server.StartTLS()
	t.Cleanup(server.Close)
	f := newFront(t, aggregator.Options{Resolver: addresses{"a": server.URL}})
	f.Set("v1.a.example", apiService("a.example", "a"))
	r := builtintest.Must[*http.Request](t)(http.NewRequestWithContext(t.Context(), http.MethodPatch,
		f.URL+"/apis/a.example/v1/things/one", strings.NewReader("change")))
	response := builtintest.Must[*http.Response](t)(f.Client().Do(r))
	defer func() { _ = response.Body.Close() }()
	body := builtintest.Must[[]byte](t)(io.ReadAll(response.Body))
	if response.StatusCode != http.StatusOK || string(body) != "change" {
		t.Errorf("got %d %q", response.StatusCode, body)
	}
	if got := connections.Load(); got != 2 {
		t.Errorf("got %d connections, want 2", got)
	}
}

// goAway reads one request and announces that the server does not process it.
func goAway(t *testing.T, connection net.Conn) {
	if _, err := io.ReadFull(connection, make([]byte, len(http2.ClientPreface))); err != nil {
		t.Error(err)
		return
	}
	frames := http2.NewFramer(connection, connection)
	if err := frames.WriteSettings(); err != nil {
		t.Error(err)
	}
	for {
		frame, err := frames.ReadFrame()
		if err != nil {
			return // the client has closed the connection
		}
		if data, ok := frame.(*http2.DataFrame); ok && data.StreamEnded() {
			if err := frames.WriteGoAway(0, http2.ErrCodeNo, nil); err != nil {
				t.Error(err)
			}
		}
	}
}

func writePair(t *testing.T, files [2]string, name string) {
	t.Helper()
	certificate, key, err := cert.GenerateSelfSignedCertKey(name, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, content := range [][]byte{certificate, key} {
		if err := os.WriteFile(files[i], content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFetch reads documents of an available server, and of an unavailable one, from which it may only read discovery.
func TestFetch(t *testing.T) {
	server := serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(w, "%s %s %v", r.URL.Path, r.Header.Get("X-Remote-User"), r.Header.Values("X-Remote-Group"))
	})
	f := newFront(t, aggregator.Options{Resolver: addresses{"a": server.URL}})
	f.Set("v1.a.example", apiService("a.example", "a"))
	unavailable := apiService("b.example", "a")
	unavailable.Status.Conditions = nil
	f.Set("v1.b.example", unavailable)
	for _, c := range []struct{ name, path, want string }{
		{"v1.a.example", "/apis", "/apis system:kube-aggregator [system:masters]"},
		{"v1.a.example", "/apis/a.example/v1", "/apis/a.example/v1 system:kube-aggregator []"},
		{"v1.a.example", "/openapi/v2", "/openapi/v2 system:aggregator []"},
		{"v1.b.example", "/apis", "/apis system:kube-aggregator [system:masters]"},
		{"v1.b.example", "/openapi/v2", "service unavailable"},
	} {
		got := ""
		response, err := f.Table().Get(c.name).Fetch(t.Context(), c.path, nil)
		if err != nil {
			got = err.Error()
		} else {
			got = string(builtintest.Must[[]byte](t)(io.ReadAll(response.Body)))
			_ = response.Body.Close()
		}
		if got != c.want {
			t.Errorf("%s of %s: got %q, want %q", c.path, c.name, got, c.want)
		}
	}
}

// TestProbeTimeout checks that all probes of a server that does not respond fail with the same message.
func TestProbeTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := aggregator.New(aggregator.Options{
			Resolver: addresses{"a": "https://a.default.svc:443"},
			Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			},
		})
		a.Known()
		a.Set("v1.a.example", apiService("a.example", "a"))
		messages := sets.Set[string]{}
		for range 50 {
			err := a.Table().Get("v1.a.example").Probe(t.Context())
			if err == nil {
				t.Fatal("the probe has passed")
			}
			messages.Insert(err.Error())
		}
		if messages.Len() != 1 {
			t.Errorf("got messages %q, want one", sets.List(messages))
		}
	})
}
