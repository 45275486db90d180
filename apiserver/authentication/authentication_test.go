package authentication

import (
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	testclock "k8s.io/utils/clock/testing"
)

// fixture is an HTTP/2 server that responds with the authenticated user.
type fixture struct {
	clock   *testclock.FakePassiveClock
	server  *httptest.Server
	options Options
}

type answer struct {
	User    *user.DefaultInfo
	Error   string
	Headers http.Header
}

func start(t testing.TB, options Options) *fixture {
	t.Helper()
	f := &fixture{clock: testclock.NewFakePassiveClock(time.Now())}
	options.Clock, options.Registerer = f.clock, prometheus.NewRegistry()
	f.options = options
	a := New(options)
	f.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		result, ok, err := a.AuthenticateRequest(r)
		reply := answer{Headers: r.Header}
		if err != nil {
			reply.Error = err.Error()
		} else if ok {
			reply.User = result.User.(*user.DefaultInfo)
		}
		_ = json.NewEncoder(w).Encode(reply)
	}))
	f.server.TLS = &tls.Config{ClientAuth: tls.RequestClientCert, NextProtos: []string{"h2", "http/1.1"}}
	f.server.EnableHTTP2 = true
	f.server.Config.ConnContext = ConnContext
	f.server.StartTLS()
	t.Cleanup(f.server.Close)
	return f
}

// client returns a client with its own connection.
func (f *fixture) client(t testing.TB, certificate *tls.Certificate) *http.Client {
	t.Helper()
	transport := f.server.Client().Transport.(*http.Transport).Clone()
	if certificate != nil {
		transport.TLSClientConfig.Certificates = []tls.Certificate{*certificate}
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func (f *fixture) ask(t testing.TB, client *http.Client, headers http.Header) answer {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.server.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, values := range headers {
		r.Header[name] = values
	}
	response, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	var got answer
	if err := json.Unmarshal(body, &got); err != nil {
		t.Fatal(err)
	}
	return got
}

func authorityFile(t testing.TB, authorities ...*testAuthority) *Authority {
	t.Helper()
	file := filepath.Join(t.TempDir(), "ca.crt")
	write(t, file, authorities...)
	authority, err := NewAuthority(file)
	if err != nil {
		t.Fatal(err)
	}
	return authority
}

func write(t testing.TB, file string, authorities ...*testAuthority) {
	t.Helper()
	var content []byte
	for _, a := range authorities {
		content = append(content, a.pem...)
	}
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestClientCertificate(t *testing.T) {
	ca, other := newTestAuthority(t, "clients"), newTestAuthority(t, "other")
	f := start(t, Options{Clients: authorityFile(t, ca), Anonymous: true})
	alice := f.ask(t,
		f.client(t, ca.issue(t, pkix.Name{CommonName: "alice", Organization: []string{"dev", "ops"}}, time.Hour)), nil)
	if alice.User == nil || alice.User.Name != "alice" ||
		!reflect.DeepEqual(alice.User.Groups, []string{"dev", "ops", "system:authenticated"}) {
		t.Errorf("alice is %+v", alice)
	}
	if id := alice.User.Extra[user.CredentialIDKey]; len(id) != 1 || !strings.HasPrefix(id[0], "X509SHA256=") {
		t.Errorf("credential id %q", id)
	}
	if got := f.ask(t, f.client(t, other.issue(t, pkix.Name{CommonName: "mallory"}, time.Hour)), nil); got.User != nil ||
		!strings.Contains(got.Error, "unknown authority") {
		t.Errorf("another authority's certificate: %+v", got)
	}
	if got := f.ask(t, f.client(t, ca.issue(t, pkix.Name{}, time.Hour)), nil); got.User == nil ||
		got.User.Name != user.Anonymous {
		t.Errorf("a certificate without a name: %+v", got)
	}
	if got := f.ask(t, f.client(t, nil), nil); got.User == nil || got.User.Name != user.Anonymous ||
		!reflect.DeepEqual(got.User.Groups, []string{"system:unauthenticated"}) {
		t.Errorf("no certificate: %+v", got)
	}
}

func TestCertificateExpiresDuringConnection(t *testing.T) {
	ca := newTestAuthority(t, "clients")
	f := start(t, Options{Clients: authorityFile(t, ca)})
	client := f.client(t, ca.issue(t, pkix.Name{CommonName: "alice"}, time.Hour))
	for range 2 {
		if got := f.ask(t, client, nil); got.User == nil {
			t.Fatalf("not authenticated: %+v", got)
		}
	}
	f.clock.SetTime(time.Now().Add(2 * time.Hour))
	if got := f.ask(t, client, nil); got.User != nil || !strings.Contains(got.Error, "expired") {
		t.Errorf("after expiry: %+v", got)
	}
}

func TestAuthorityChangesDuringConnection(t *testing.T) {
	first, second := newTestAuthority(t, "first"), newTestAuthority(t, "second")
	authority := authorityFile(t, first)
	f := start(t, Options{Clients: authority})
	old := f.client(t, first.issue(t, pkix.Name{CommonName: "old"}, time.Hour))
	fresh := f.client(t, second.issue(t, pkix.Name{CommonName: "new"}, time.Hour))
	expect := func(client *http.Client, want bool) {
		t.Helper()
		if got := f.ask(t, client, nil); (got.User != nil) != want {
			t.Errorf("authenticated %v, want %v: %+v", got.User != nil, want, got)
		}
	}
	expect(old, true)
	expect(fresh, false)
	write(t, authority.file, first, second)
	if err := authority.Reload(); err != nil {
		t.Fatal(err)
	}
	expect(old, true)
	expect(fresh, true)
	write(t, authority.file, second)
	if err := authority.Reload(); err != nil {
		t.Fatal(err)
	}
	expect(old, false)
	expect(fresh, true)
	if err := os.WriteFile(authority.file, []byte("half a fi"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := authority.Reload(); err == nil {
		t.Error("garbage was accepted")
	}
	expect(fresh, true)
}

func TestFrontProxy(t *testing.T) {
	clients, proxies := newTestAuthority(t, "clients"), newTestAuthority(t, "proxies")
	f := start(t, Options{
		Clients: authorityFile(t, clients),
		FrontProxy: (&FrontProxy{
			Authority: authorityFile(t, proxies), AllowedNames: []string{"proxy"},
			UsernameHeaders: []string{"X-Remote-User"}, UIDHeaders: []string{"X-Remote-Uid"},
			GroupHeaders: []string{"X-Remote-Group"}, ExtraHeaderPrefixes: []string{"X-Remote-Extra-"},
		}).Current,
	})
	headers := http.Header{
		"X-Remote-User": {"carol"}, "X-Remote-Uid": {"7"}, "X-Remote-Group": {"a", "", "b"},
		"X-Remote-Extra-Acme.com%2fproject": {"one", "two"},
	}
	got := f.ask(t, f.client(t, proxies.issue(t, pkix.Name{CommonName: "proxy"}, time.Hour)), headers)
	want := &user.DefaultInfo{
		Name: "carol", UID: "7", Groups: []string{"a", "b", "system:authenticated"},
		Extra: map[string][]string{"acme.com/project": {"one", "two"}},
	}
	if !reflect.DeepEqual(got.User, want) {
		t.Errorf("got %+v (%s), want %+v", got.User, got.Error, want)
	}
	for name := range got.Headers {
		if strings.HasPrefix(name, "X-Remote-") {
			t.Errorf("header %s was not removed", name)
		}
	}
	if got := f.ask(
		t, f.client(t, proxies.issue(t, pkix.Name{CommonName: "impostor"}, time.Hour)), headers,
	); got.User != nil {
		t.Errorf("a proxy that is not allowed: %+v", got.User)
	}
	if got := f.ask(
		t, f.client(t, clients.issue(t, pkix.Name{CommonName: "alice"}, time.Hour)), headers,
	); got.User == nil || got.User.Name != "alice" {
		t.Errorf("the headers of a client were accepted: %+v", got.User)
	}
}

// The configuration of front proxies of an extension server changes while connections are open, and may be missing at
// first.
func TestFrontProxyChangesDuringConnection(t *testing.T) {
	proxies := newTestAuthority(t, "proxies")
	authority := NewEmptyAuthority()
	var current atomic.Pointer[FrontProxy]
	f := start(t, Options{Clients: NewEmptyAuthority(), FrontProxy: current.Load, Anonymous: true})
	client := f.client(t, proxies.issue(t, pkix.Name{CommonName: "proxy"}, time.Hour))
	expect := func(name string) {
		t.Helper()
		headers := http.Header{"X-Remote-User": {"carol"}, "X-User": {"dave"}}
		got := f.ask(t, client, headers)
		if (got.User == nil) != (name == "") || got.User != nil && got.User.Name != name {
			t.Errorf("got %+v (%s), want %q", got.User, got.Error, name)
		}
	}
	expect(user.Anonymous)
	current.Store(&FrontProxy{Authority: authority, UsernameHeaders: []string{"X-Remote-User"}})
	expect(user.Anonymous)
	file := filepath.Join(t.TempDir(), "ca.crt")
	write(t, file, proxies)
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := authority.Set(content); err != nil {
		t.Fatal(err)
	}
	expect("carol")
	current.Store(&FrontProxy{Authority: authority, UsernameHeaders: []string{"X-User"}})
	expect("dave")
	current.Store(&FrontProxy{
		Authority: authority, UsernameHeaders: []string{"X-User"}, AllowedNames: []string{"another"},
	})
	expect("")
	current.Store(&FrontProxy{Authority: authority, UsernameHeaders: []string{"X-User"}, AllowedNames: []string{"proxy"}})
	expect("dave")
}

// countingTokens accepts one token and counts the calls.
type countingTokens struct{ calls int }

func (c *countingTokens) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	c.calls++
	switch token {
	case "good":
		return &authenticator.Response{User: &user.DefaultInfo{Name: "dave"}}, true, nil
	case "elsewhere":
		return &authenticator.Response{User: &user.DefaultInfo{Name: "dave"}, Audiences: []string{"other"}}, true, nil
	case "broken":
		return nil, false, errors.New("cannot verify")
	}
	return nil, false, nil
}

func bearer(token string) http.Header { return http.Header{"Authorization": {"Bearer " + token}} }

func TestTokens(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens.csv")
	if err := os.WriteFile(file, []byte("from-file,erin,3,\"a,b\"\n,frank,4\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	fromFile, err := NewTokenFile(file)
	if err != nil {
		t.Fatal(err)
	}
	counting := &countingTokens{}
	f := start(t, Options{
		Tokens: []authenticator.Token{fromFile, counting}, TokenLife: 10 * time.Second,
		Audiences: []string{"here"}, Anonymous: true,
	})
	client := f.client(t, nil)
	for range 3 {
		if got := f.ask(t, client, bearer("good")); got.User == nil || got.User.Name != "dave" ||
			got.Headers.Get("Authorization") != "" {
			t.Errorf("good token: %+v", got)
		}
	}
	if counting.calls != 1 {
		t.Errorf("%d calls while the result was cached, want 1", counting.calls)
	}
	f.clock.SetTime(time.Now().Add(11 * time.Second))
	f.ask(t, client, bearer("good"))
	if counting.calls != 2 {
		t.Errorf("%d calls after the cached result expired, want 2", counting.calls)
	}
	if got := f.ask(t, client, bearer("from-file")); !reflect.DeepEqual(
		got.User, &user.DefaultInfo{Name: "erin", UID: "3", Groups: []string{"a", "b", "system:authenticated"}},
	) {
		t.Errorf("token of the file: %+v", got)
	}
	for _, bad := range []string{"bad", "broken", "elsewhere"} {
		if got := f.ask(t, client, bearer(bad)); got.User != nil || got.Error == "" {
			t.Errorf("token %q: %+v", bad, got)
		}
	}
	for _, none := range []string{"Basic YTpi", "Bearer", "Bearer  good"} {
		if got := f.ask(t, client, http.Header{"Authorization": {none}}); got.User == nil || got.User.Name != user.Anonymous {
			t.Errorf("Authorization %q: %+v", none, got)
		}
	}
}

func TestTokenOfWebSocket(t *testing.T) {
	encode := base64.RawURLEncoding.EncodeToString
	for _, c := range []struct {
		protocols     []string
		token, others string
		fails         bool
	}{
		{[]string{"v4.channel.k8s.io"}, "", "", false},
		{[]string{tokenProtocol + encode([]byte("good")) + ", v4.channel.k8s.io"}, "good", "v4.channel.k8s.io", false},
		{[]string{"a", tokenProtocol + encode([]byte("good")), "b,c"}, "good", "a,b,c", false},
		{[]string{tokenProtocol + encode([]byte("good"))}, "", "", true},
		{[]string{"a", tokenProtocol + "!"}, "", "", true},
		{[]string{"a", tokenProtocol + encode([]byte{0xff})}, "", "", true},
		{[]string{"a", tokenProtocol + encode([]byte("x")), tokenProtocol + encode([]byte("y"))}, "", "", true},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header = http.Header{
			"Connection": {"keep-alive, Upgrade"}, "Upgrade": {"WebSocket"}, "Sec-Websocket-Protocol": c.protocols,
		}
		token, others, err := tokenOf(r)
		if (err != nil) != c.fails || token != c.token || (token != "" && others != c.others) {
			t.Errorf("%q: %q %q %v", c.protocols, token, others, err)
		}
	}
}

func TestTokenFileErrors(t *testing.T) {
	for _, content := range []string{"a,b\n", "a,\"b\n"} {
		if _, err := parseTokens(strings.NewReader(content)); err == nil {
			t.Errorf("%q accepted", content)
		}
	}
	if _, err := NewTokenFile(filepath.Join(t.TempDir(), "missing")); err == nil {
		t.Error("a missing file accepted")
	}
}

func TestLocalCalls(t *testing.T) {
	a := New(Options{Clock: testclock.NewFakePassiveClock(time.Now()), Registerer: prometheus.NewRegistry()})
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	if _, ok, err := a.AuthenticateRequest(r); ok || err != nil {
		t.Errorf("without credentials: %v %v", ok, err)
	}
	r = r.WithContext(Local(r.Context(), &user.DefaultInfo{Name: "system:apiserver"}))
	got, ok, err := a.AuthenticateRequest(r)
	if !ok || err != nil || got.User.GetName() != "system:apiserver" ||
		!reflect.DeepEqual(got.User.GetGroups(), []string{"system:authenticated"}) {
		t.Errorf("local: %+v %v %v", got, ok, err)
	}
}

func BenchmarkClientCertificate(b *testing.B) {
	ca := newTestAuthority(b, "clients")
	a := New(Options{
		Clients: authorityFile(b, ca), Clock: testclock.NewFakePassiveClock(time.Now()), Registerer: prometheus.NewRegistry(),
	})
	pair := ca.issue(b, pkix.Name{CommonName: "alice"}, time.Hour)
	leaf, err := parse(pair)
	if err != nil {
		b.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.TLS = &tls.ConnectionState{PeerCertificates: leaf}
	for name, ctx := range map[string]context.Context{
		"verified": ConnContext(b.Context(), nil), "every-time": b.Context(),
	} {
		b.Run(name, func(b *testing.B) {
			r := r.WithContext(ctx)
			b.ReportAllocs()
			for b.Loop() {
				if _, ok, err := a.AuthenticateRequest(r); !ok || err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
