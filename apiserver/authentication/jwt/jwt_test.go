package jwt_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/utils/clock"
	testclock "k8s.io/utils/clock/testing"

	"quorate.dev/apiserver/authentication/jwt"
	"quorate.dev/apiserver/authentication/jwt/jwttest"
	"quorate.dev/apiserver/config"
	"quorate.dev/test/docs/guide"
)

// patience bounds waits for background work.
const patience = time.Minute

func startProvider(t *testing.T) *jwttest.Provider {
	t.Helper()
	p, err := jwttest.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func sign(t *testing.T, p *jwttest.Provider, claims jwttest.Claims) string {
	t.Helper()
	token, err := p.Sign(claims)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// fileOf returns an AuthenticationConfiguration with a provider's issuer and a prefix of user names.
func fileOf(p *jwttest.Provider, prefix string) string {
	return fmt.Sprintf(`{"apiVersion":"apiserver.config.k8s.io/v1","kind":"AuthenticationConfiguration","jwt":[{
"issuer":{"url":%q,"certificateAuthority":%q,"audiences":["a"]},"claimMappings":{"username":{"claim":"sub","prefix":%q}}}]}`,
		p.URL(), p.CA(), prefix)
}

// fixture is the authenticator of a file.
type fixture struct {
	*jwt.Issuers
	file    string
	flushes atomic.Int32
	failed  chan struct{} // has an element per failed reload
}

func start(t *testing.T, content string) *fixture {
	t.Helper()
	return startWith(t, content, clock.RealClock{})
}

func startWith(t *testing.T, content string, c clock.Clock) *fixture {
	t.Helper()
	f := &fixture{file: filepath.Join(t.TempDir(), "authentication.yaml"), failed: make(chan struct{}, 10)}
	f.write(t, content)
	flags := config.Default()
	flags.Authentication.ConfigFile = f.file
	configuration, err := jwt.Load(flags)
	if err != nil {
		t.Fatal(err)
	}
	f.Issuers, err = jwt.New(jwt.Options{
		Configuration: configuration, Audiences: authenticator.Audiences{"server"},
		ServiceAccountIssuers: []string{"https://own"},
		Changed:               func() { f.flushes.Add(1) }, Clock: c, Logger: funcr.New(func(_, line string) {
			if strings.Contains(line, "Failed to reload") {
				f.failed <- struct{}{}
			}
		}, funcr.Options{}),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return f
}

func (f *fixture) write(t *testing.T, content string) {
	t.Helper()
	if err := os.WriteFile(f.file+".new", []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(f.file+".new", f.file); err != nil {
		t.Fatal(err)
	}
}

// reload replaces the file.
func (f *fixture) reload(t *testing.T, content string) {
	t.Helper()
	f.write(t, content)
	if err := f.Reload(); err != nil {
		t.Fatal(err)
	}
}

// user returns the name of a token's user, or "".
func (f *fixture) user(ctx context.Context, token string) string {
	response, ok, err := f.AuthenticateToken(ctx, token)
	if !ok || err != nil {
		return ""
	}
	return response.User.GetName()
}

// await waits until a token authenticates a user; "" is none.
func (f *fixture) await(t *testing.T, token, user string) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, patience, true, func(
		ctx context.Context,
	) (bool, error) {
		return f.user(ctx, token) == user, nil
	})
	if err != nil {
		_, ok, err := f.AuthenticateToken(t.Context(), token)
		t.Fatalf("the token does not authenticate %q: %t, %v", user, ok, err)
	}
}

func TestReload(t *testing.T) {
	one, two := startProvider(t), startProvider(t)
	f := start(t, fileOf(one, "one:"))
	ofOne, ofTwo := sign(t, one, one.Standard("a", "alice")), sign(t, two, two.Standard("a", "bob"))
	f.await(t, ofOne, "one:alice")
	if user := f.user(t.Context(), ofTwo); user != "" {
		t.Errorf("the token of another issuer authenticates %q", user)
	}

	f.reload(t, fileOf(one, "first:"))
	f.await(t, ofOne, "first:alice")

	// The new issuer replaces the old one when its keys are known, so that no token is rejected meanwhile.
	f.reload(t, fileOf(two, "two:"))
	f.await(t, ofTwo, "two:bob")
	if user := f.user(t.Context(), ofOne); user != "" {
		t.Errorf("the token of the removed issuer authenticates %q", user)
	}
	if got := f.flushes.Load(); got != 2 {
		t.Errorf("%d flushes, want 2", got)
	}
}

func TestRotatedKeys(t *testing.T) {
	p := startProvider(t)
	f := start(t, fileOf(p, ""))
	before := sign(t, p, p.Standard("a", "alice"))
	f.await(t, before, "alice")
	if err := p.Rotate(); err != nil {
		t.Fatal(err)
	}
	if user := f.user(t.Context(), sign(t, p, p.Standard("a", "bob"))); user != "bob" {
		t.Errorf("a token with the new key authenticates %q", user)
	}
	if user := f.user(t.Context(), before); user != "" {
		t.Errorf("a token with the old key authenticates %q", user)
	}
}

// A file with errors changes nothing, and the next good one applies.
func TestBrokenFileKeepsTheIssuers(t *testing.T) {
	p := startProvider(t)
	f := start(t, fileOf(p, "one:"))
	token := sign(t, p, p.Standard("a", "alice"))
	f.await(t, token, "one:alice")
	broken := fileOf(p, "no:")
	for name, content := range map[string]string{
		"empty": "", "no YAML": "{", "unknown field": strings.Replace(broken, "claimMappings", "mappings", 1),
		"anonymous": strings.Replace(broken, `"jwt"`, `"anonymous":{"enabled":true},"jwt"`, 1),
		"own":       strings.Replace(broken, p.URL(), "https://own", 1),
	} {
		f.reload(t, content)
		select {
		case <-f.failed:
		case <-time.After(patience):
			t.Fatalf("%s: no failure is logged", name)
		}
		if user := f.user(t.Context(), token); user != "one:alice" {
			t.Errorf("%s: the token authenticates %q", name, user)
		}
	}
	if f.flushes.Load() != 0 {
		t.Error("a broken file was applied")
	}
	f.reload(t, fileOf(p, "two:"))
	f.await(t, token, "two:alice")
}

// While the keys of a new issuer cannot be fetched, the former issuers stay in use.
func TestUnreachableIssuerChangesNothing(t *testing.T) {
	p := startProvider(t)
	fake := testclock.NewFakeClock(time.Now())
	f := startWith(t, fileOf(p, "one:"), fake)
	token := sign(t, p, p.Standard("a", "alice"))
	f.await(t, token, "one:alice")
	f.reload(t, strings.Replace(fileOf(p, "no:"), p.URL(), "https://127.0.0.1:1", 1))
	for deadline := time.Now().Add(patience); ; {
		select {
		case <-f.failed:
			if user := f.user(t.Context(), token); user != "one:alice" {
				t.Errorf("the token authenticates %q", user)
			}
			return
		default:
		}
		if time.Now().After(deadline) {
			t.Fatal("no failure is logged")
		}
		if fake.HasWaiters() {
			fake.Step(time.Second)
		}
	}
}

func TestLoad(t *testing.T) {
	p := startProvider(t)
	authority := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(authority, []byte(p.CA()), 0o600); err != nil {
		t.Fatal(err)
	}
	valid := []string{"--oidc-issuer-url=" + p.URL(), "--oidc-client-id=a", "--oidc-ca-file=" + authority}
	for name, test := range map[string]struct {
		flags []string
		want  string // of the error, or nothing
	}{
		"nothing": {nil, ""},
		"valid":   {valid, ""},
		"no TLS":  {[]string{"--oidc-issuer-url=http://x", "--oidc-client-id=a"}, "URL scheme must be https"},
		"no file": {
			[]string{"--authentication-config=/does/not/exist"}, "failed to load authentication configuration from file",
		},
		"no CA":      {append(valid, "--oidc-ca-file=/does/not/exist"), "no such file"},
		"directory":  {[]string{"--authentication-config=" + t.TempDir()}, "is a directory"},
		"wrong kind": {[]string{"--authentication-config=" + authority}, "couldn't get version/kind"},
	} {
		c := config.Default()
		if err := c.Flags().Parse(test.flags); err != nil {
			t.Fatal(err)
		}
		_, err := jwt.Load(c)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
	}
}

func TestAnonymous(t *testing.T) {
	for _, test := range []struct {
		flags []string
		want  bool
	}{
		{[]string{"--authorization-mode=RBAC"}, true},
		{[]string{"--authorization-mode=RBAC", "--anonymous-auth=false"}, false},
		{[]string{"--authorization-mode=RBAC,AlwaysAllow"}, false}, // would be allowed everything
		{nil, false},
		{[]string{"--authorization-config=/x"}, true},
	} {
		c := config.Default()
		if err := c.Flags().Parse(test.flags); err != nil {
			t.Fatal(err)
		}
		loaded, err := jwt.Load(c)
		if err != nil || loaded.Anonymous.Enabled != test.want {
			t.Errorf("%v: %v, %v", test.flags, loaded.Anonymous, err)
		}
	}
}

// TestDocumentedConfiguration checks the example of docs/authentication.md.
func TestDocumentedConfiguration(t *testing.T) {
	example, err := guide.YAML("../../../docs/authentication.md", "kind: AuthenticationConfiguration")
	if err != nil {
		t.Fatal(err)
	}
	_ = start(t, example)
}
