package hostile

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

const (
	// timeout of a request, and margin until a client has its response on a slow machine.
	timeout, margin = time.Second, 20 * time.Second
	// maxGrowth bounds the memory that one behaviour costs the server in all roles at the same time, in MiB. The largest
	// responses that the server reads are 32 MiB of a conversion webhook and 16 MiB of each admission webhook, and a
	// buffer that grows is in memory two to three times.
	maxGrowth = 256
	// maxLog bounds the lines that one behaviour costs the server, in bytes.
	maxLog = 1 << 20
	// maxBody bounds a response in bytes. Those of the extension API server end with the timeout of the request only.
	maxBody = 1 << 20
	secret  = "c2VjcmV0-of-a-token"
)

// role is a request that makes the API server call the hostile server.
type role struct {
	name, method, path, body, token string
	// proxied is set if the body of the response is the hostile server's.
	proxied bool
	// unaffected is set if the behaviour does not change the response.
	unaffected bool
	// patient requests have no timeout of their own, so that a machine that is busy does not end them.
	patient bool
}

func (e *environment) roles() []role {
	const configMap = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"generateName":"a-"}}`
	claims := fmt.Sprintf(`{"iss":%q,"aud":"hostile","sub":"a","exp":%d}`, e.hostile.URL+"/issuer",
		time.Now().Add(time.Hour).Unix())
	encode := base64.RawURLEncoding.EncodeToString
	signed := encode([]byte(`{"alg":"RS256","kid":"unknown"}`)) + "." + encode([]byte(claims)) +
		"." + encode([]byte(secret))
	return []role{
		{name: "authentication", method: "GET", path: "/api/v1/namespaces", token: secret},
		{name: "issuer", method: "GET", path: "/api/v1/namespaces", token: signed},
		{name: "authorization", method: "GET", path: "/api/v1/namespaces", token: "none"},
		{name: "audit", method: "GET", path: "/api/v1/namespaces/default", unaffected: true},
		{name: "images", method: "POST", path: "/api/v1/namespaces/default/pods?dryRun=All",
			body: `{"apiVersion":"v1","kind":"Pod",
"metadata":{"generateName":"a-"},"spec":{"containers":[{"name":"a","image":"a"}]}}`},
		{name: "validating", method: "POST", path: "/api/v1/namespaces/validating/configmaps?dryRun=All", body: configMap},
		{name: "mutating", method: "POST", path: "/api/v1/namespaces/mutating/configmaps?dryRun=All", body: configMap},
		{name: "conversion", method: "GET", path: "/apis/example.com/v2/widgets/a"},
		{name: "extension", method: "GET", path: "/apis/hostile.example.com/v1/things", proxied: true},
	}
}

// client returns a client for a role. A role with the token "none" is a user without permissions.
func (e *environment) client(t *testing.T, r role) *http.Client {
	t.Helper()
	config := rest.CopyConfig(e.Admin)
	switch r.token {
	case "":
	case "none":
		var err error
		if config, err = e.pki.As(e.Admin, "restricted"); err != nil {
			t.Fatal(err)
		}
	default:
		return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// send sends the request of a role. It returns the status code and the beginning of the body.
func (e *environment) send(ctx context.Context, client *http.Client, r role) (int, string, error) {
	separator := "?"
	if strings.Contains(r.path, "?") {
		separator = "&"
	}
	url := e.Admin.Host + r.path
	if !r.patient {
		url += separator + "timeout=" + timeout.String()
	}
	request, err := http.NewRequestWithContext(ctx, r.method, url, strings.NewReader(r.body))
	if err != nil {
		return 0, "", err
	}
	request.Header.Set("Content-Type", "application/json")
	if r.token != "" && r.token != "none" {
		request.Header.Set("Authorization", "Bearer "+r.token)
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxBody))
	return response.StatusCode, string(body), err
}

// TestHostileServers calls a hostile server in all of its roles at the same time, with one behaviour after another. All
// behaviours are tested if QUORATE_HOSTILE_SERVERS is set.
func TestHostileServers(t *testing.T) {
	e := start(t)
	concurrency := 1
	if os.Getenv("QUORATE_HOSTILE_SERVERS") != "" {
		concurrency = 4
	}
	others := e.watchOthers(t)
	e.warmUp(t)
	for _, b := range behaviours(e.elsewhere.URL) {
		if b.standard || os.Getenv("QUORATE_HOSTILE_SERVERS") != "" {
			t.Run(b.name, func(t *testing.T) { e.test(t, b, concurrency) })
		}
	}
	others(t)
	if n := e.followed.Load(); n > 0 {
		t.Errorf("%d redirects were followed with credentials or bodies", n)
	}
	if log, err := os.ReadFile(e.Log); err != nil || strings.Contains(string(log), secret) {
		t.Errorf("a token is in the log, or %v", err)
	}
	if concurrency > 1 { // the end of the server waits some seconds for the audit webhook
		never := behaviours("")[0].serve
		e.behaviour.Store(&never)
		_, _, _ = e.send(t.Context(), e.client(t, role{}), e.roles()[3])
	}
	stopping := time.Now()
	if err := e.Stop(); err != nil {
		t.Errorf("the server does not stop: %v", err)
	}
	t.Logf("the server stopped after %v", time.Since(stopping))
}

// warmUp calls all roles once, so that memory that is allocated on first use does not count as growth.
func (e *environment) warmUp(t *testing.T) {
	t.Helper()
	serve := text(http.StatusOK, "application/json", "{}")
	e.behaviour.Store(&serve)
	defer e.behaviour.Store(nil)
	for _, r := range e.roles() {
		_, _, _ = e.send(t.Context(), e.client(t, r), r)
	}
}

// test calls the hostile server with one behaviour.
func (e *environment) test(t *testing.T, b behaviour, concurrency int) {
	goroutines, log := e.goroutines(t), e.size(t)
	e.resetPeak(t)
	before := e.memory(t, "VmRSS")
	e.calls.Store(0)
	e.behaviour.Store(&b.serve)
	var running sync.WaitGroup
	for _, r := range e.roles() {
		client := e.client(t, r)
		for range concurrency {
			running.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), timeout+margin)
				defer cancel()
				started := time.Now()
				code, body, err := e.send(ctx, client, r)
				t.Logf("%-14s %d after %4d ms %.120q %v", r.name, code, time.Since(started).Milliseconds(), body, err)
				switch {
				case ctx.Err() != nil:
					t.Errorf("%s: the request has not ended: %v", r.name, err)
				case r.unaffected && code != http.StatusOK:
					t.Errorf("%s: got %d %s", r.name, code, body)
				case !r.unaffected && !r.proxied && (code < http.StatusBadRequest || err != nil):
					t.Errorf("%s: got %d %.1000s %v", r.name, code, body, err)
				}
			})
		}
	}
	running.Wait()
	if e.calls.Load() == 0 {
		t.Error("the hostile server was not called")
	}
	e.behaviour.Store(nil)
	e.hostile.CloseClientConnections()
	if grown := e.memory(t, "VmHWM") - before; grown > maxGrowth*concurrency {
		t.Errorf("the memory of the server has grown by %d MiB", grown)
	} else {
		t.Logf("grown by %d MiB", grown)
	}
	if grown := e.size(t) - log; grown > maxLog {
		t.Errorf("the log has grown by %d bytes", grown)
	}
	e.await(t, fmt.Sprintf("the %d goroutines before", goroutines), func(context.Context) bool {
		return e.goroutines(t) <= goroutines+20
	})
}

// watchOthers sends requests that need none of the roles. The returned function ends them and checks that all have
// succeeded.
func (e *environment) watchOthers(t *testing.T) func(*testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var failed, succeeded atomic.Int64
	var first atomic.Value // the first failure
	done := make(chan struct{})
	client := e.client(t, role{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			bounded, cancel := context.WithTimeout(ctx, margin)
			code, body, err := e.send(bounded, client, role{method: "GET", path: "/api/v1/namespaces/default", patient: true})
			if code == http.StatusOK && err == nil {
				succeeded.Add(1)
			} else if ctx.Err() == nil {
				failed.Add(1)
				first.CompareAndSwap(nil, fmt.Sprintf("%d %.300s %v", code, body, err))
			}
			cancel()
			<-time.After(20 * time.Millisecond) // the rate of requests
		}
	}()
	return func(t *testing.T) {
		t.Helper()
		cancel()
		<-done
		if failed.Load() > 0 || succeeded.Load() == 0 {
			t.Errorf("%d of %d other requests failed, the first with %v", failed.Load(),
				failed.Load()+succeeded.Load(), first.Load())
		}
	}
}

func (e *environment) goroutines(t *testing.T) int {
	t.Helper()
	body, err := e.admin.RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(body)) {
		if value, ok := strings.CutPrefix(line, "go_goroutines "); ok {
			n, err := strconv.Atoi(strings.TrimSpace(value))
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatal("the server has no metric go_goroutines")
	return 0
}

func (e *environment) size(t *testing.T) int64 {
	t.Helper()
	info, err := os.Stat(e.Log)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

// resetPeak resets VmHWM.
func (e *environment) resetPeak(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", e.PID), []byte("5"), 0); err != nil {
		t.Skipf("the peak of the memory of a process cannot be reset: %v", err)
	}
}

// memory returns a value of the process's status in MiB: VmRSS, or VmHWM for its maximum.
func (e *environment) memory(t *testing.T, name string) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", e.PID))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(status), "\n")
	i := slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(line, name+":") })
	if i < 0 {
		t.Fatalf("no %s in the status of the process", name)
	}
	kilobytes, err := strconv.Atoi(strings.Fields(lines[i])[1])
	if err != nil {
		t.Fatal(err)
	}
	return kilobytes >> 10
}
