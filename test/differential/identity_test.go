package differential

import (
	"encoding/base64"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"quorate.dev/apiserver/authentication/jwt/jwttest"
	"quorate.dev/test/upstream"
)

// identityTest runs both servers with the same configuration of authentication and authorization.
type identityTest struct {
	directory string
	provider  *jwttest.Provider // serves the issuer at URL
	other     *jwttest.Provider // serves otherIssuer
	pair      *Pair
	reviews   map[string]*Reviews
	intended  *intended
}

// otherIssuer is the URL of an issuer that is served at another address.
const otherIssuer = "https://issuer.example.com"

func newIdentityTest(t *testing.T) *identityTest {
	t.Helper()
	i := &identityTest{directory: t.TempDir(), reviews: map[string]*Reviews{}}
	for _, provider := range []**jwttest.Provider{&i.provider, &i.other} {
		started, err := jwttest.Start()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(started.Close)
		*provider = started
	}
	i.other.SetIssuer(otherIssuer)
	for _, name := range []string{upstreamName, oursName} {
		i.reviews[name] = StartReviews()
		t.Cleanup(i.reviews[name].Stop)
		for _, path := range []string{"token", "first", "second"} {
			if err := i.reviews[name].kubeconfig(i.file(name+"-"+path), "/"+path); err != nil {
				t.Fatal(err)
			}
		}
	}
	var err error
	if i.intended, err = loadIntended("testdata/intended.txt"); err != nil {
		t.Fatal(err)
	}
	i.intended.differences = append(i.intended.differences, &intendedDifference{
		name: "access/rules*", reason: "kube-apiserver resolves bindings in random order",
	})
	return i
}

func (i *identityTest) file(name string) string { return filepath.Join(i.directory, name) }

// write replaces a file atomically, as an editor or the kubelet does.
func (i *identityTest) write(t *testing.T, name, content string) {
	t.Helper()
	if err := os.WriteFile(i.file(name+".new"), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(i.file(name+".new"), i.file(name)); err != nil {
		t.Fatal(err)
	}
}

// start starts the servers. SERVER in a flag is replaced by the name of the server.
func (i *identityTest) start(t *testing.T, flags ...string) {
	t.Helper()
	pair, err := startPair(t.Context(), i.directory, &Pair{}, func(name string) []string {
		own := make([]string, len(flags))
		for j, flag := range flags {
			own[j] = strings.ReplaceAll(flag, "SERVER", name)
		}
		return own
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pair.Stop(); err != nil {
			t.Error(err)
		}
	})
	i.pair = pair
	pair.Upstream.Reviews, pair.Ours.Reviews = i.reviews[upstreamName], i.reviews[oursName]
	i.give(t)
}

// give creates new tokens and makes them variables of scripts.
func (i *identityTest) give(t *testing.T) {
	t.Helper()
	tokens := i.tokens(t)
	i.pair.Upstream.Variables, i.pair.Ours.Variables = tokens, tokens
}

// run runs a script on both servers.
func (i *identityTest) run(t *testing.T, path string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", path+".script"))
	if err != nil {
		t.Fatal(err)
	}
	script, err := ParseScript(filepath.Base(path), string(text))
	if err != nil {
		t.Fatal(err)
	}
	t.Run(script.Name, func(t *testing.T) { compare(t, i.pair, script, i.intended) })
}

// tokens returns the tokens of scripts by name.
func (i *identityTest) tokens(t *testing.T) map[string]string {
	t.Helper()
	plain := i.provider.Standard("kubernetes", "carol")
	now := plain["iat"].(int64)
	mail := plain.With("email", "eve@example.com").With("tenant", "acme").With("groups", []string{"g1"})
	other := i.other.Standard("kubernetes", "dora").With("iss", otherIssuer).With("tenant", "acme")
	tokens := map[string]string{"other-ca": base64.StdEncoding.EncodeToString([]byte(i.other.CA()))}
	for name, claims := range map[string]jwttest.Claims{
		"plain":  plain,
		"unused": plain.With("sub", "unused"),
		"rich": plain.With("groups", []string{"g1", "g2"}).With("uid", "u-1").With("team",
			"blue").With("jti", "j1"),
		"one-group":      plain.With("groups", "single"),
		"wrong-groups":   plain.With("groups", 7),
		"second":         plain.With("aud", "second"),
		"audiences":      plain.With("aud", []string{"x", "second"}),
		"wrong-audience": plain.With("aud", "x"),
		"no-audience":    plain.With("aud", nil),
		"wrong-issuer":   plain.With("iss", "https://else.example.com"),
		"no-issuer":      plain.With("iss", nil),
		"expired":        plain.With("exp", now-3600),
		"no-expiry":      plain.With("exp", nil),
		"text-expiry":    plain.With("exp", "never"),
		"not-yet":        plain.With("nbf", now+7200),
		"future":         plain.With("iat", now+7200),
		"no-subject":     plain.With("sub", nil),
		"empty":          plain.With("sub", ""),
		"number":         plain.With("sub", 12),
		"blocked":        plain.With("blocked", true),
		"blocked-text":   plain.With("blocked", "perhaps"),
		"system":         plain.With("sub", "system:admin"),
		"huge":           plain.With("padding", strings.Repeat("x", 20_000)),
		"mail":           mail.With("email_verified", true),
		"unverified":     mail.With("email_verified", false),
		"half-verified":  mail.With("email_verified", "true"),
		"maybe-verified": mail,
		"no-mail":        mail.With("email", nil),
		"wrong-tenant":   mail.With("tenant", "else"),
		"no-tenant":      mail.With("tenant", nil),
		"tenants":        mail.With("tenant", []string{"acme"}),
	} {
		tokens[name] = must(t, i.provider.Sign, claims)
	}
	for name, claims := range map[string]jwttest.Claims{
		"other": other, "other-groups": other.With("groups", []string{"g"}), "other-tenant": other.With("tenant", "else"),
		"other-expired": other.With("exp", now), "stolen": plain.With("iss", i.provider.URL()),
	} {
		tokens[name] = must(t, i.other.Sign, claims) // "stolen" has the wrong key
	}
	parts := strings.Split(tokens["plain"], ".")
	encode := base64.RawURLEncoding.EncodeToString
	for name, token := range map[string]string{
		"two-parts": parts[0] + "." + parts[1], "four-parts": tokens["plain"] + ".x",
		"no-signature": parts[0] + "." + parts[1] + ".",
		"none-alg":     encode([]byte(`{"alg":"none"}`)) + "." + parts[1] + ".",
		"hmac":         encode([]byte(`{"alg":"HS256","kid":"key-1"}`)) + "." + parts[1] + "." + parts[2],
		"unknown-key":  encode([]byte(`{"alg":"ES256","kid":"key-9"}`)) + "." + parts[1] + "." + parts[2],
		"not-json":     parts[0] + "." + encode([]byte("no JSON")) + "." + parts[2],
		"not-base64":   parts[0] + ".!!!." + parts[2], "dots": "..", "tampered": parts[0] + "." + encode(
			fmt.Appendf(nil, `{"iss":%q,"aud":"kubernetes","sub":"root","exp":%d}`, i.provider.URL(),
				now+7200)) + "." + parts[2],
	} {
		tokens[name] = token
	}
	return tokens
}

func must(t *testing.T, sign func(jwttest.Claims) (string, error), claims jwttest.Claims) string {
	t.Helper()
	token, err := sign(claims)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// indent indents a text, so that it is a block in YAML.
func indent(text string, spaces int) string {
	return strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n"+strings.Repeat(" ", spaces))
}

// read returns a file of testdata/identity-config, with the addresses of the providers.
func (i *identityTest) read(t *testing.T, name, server string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "identity-config", name))
	if err != nil {
		t.Fatal(err)
	}
	return strings.NewReplacer(
		"PROVIDER_CA", indent(i.provider.CA(), 8), "OTHER_CA", indent(i.other.CA(), 8),
		"PROVIDER", i.provider.URL(), "OTHER", i.other.URL(), "DIRECTORY", i.directory, "SERVER", server,
	).Replace(string(text))
}

// TestIdentityConfiguration compares both servers with --authentication-config, --authorization-config and a token
// webhook: which users are authenticated and authorized, the requests to webhooks, and reloads.
func TestIdentityConfiguration(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	t.Parallel()
	i := newIdentityTest(t)
	write := func(name string) {
		for _, server := range []string{upstreamName, oursName} {
			target, _, _ := strings.Cut(name, "-")
			i.write(t, server+"-"+target, i.read(t, name+".yaml", server))
		}
	}
	write("authentication")
	write("authorization")
	i.start(t,
		"--authentication-config="+i.file("SERVER-authentication"), "--authorization-config="+i.file("SERVER-authorization"),
		"--authentication-token-webhook-config-file="+i.file("SERVER-token"), "--authentication-token-webhook-version=v1",
	)
	i.run(t, "identity-config/tokens")
	if err := i.provider.Rotate(); err != nil {
		t.Fatal(err)
	}
	old := i.pair.Ours.Variables["unused"]
	i.give(t)
	i.pair.Ours.Variables["old"] = old // the variables of both servers are the same map
	i.run(t, "identity-config/rotated")
	i.run(t, "identity-config/webhook")
	i.run(t, "identity-config/access")
	write("authorization-broken")
	write("authentication-broken")
	i.run(t, "identity-config/broken")
	write("authorization-changed")
	write("authentication-changed")
	i.run(t, "identity-config/changed")
	i.compareMetrics(t)
}

// TestIdentityFlags compares both servers with --oidc-*, a token webhook, the modes ABAC and Webhook, and an external
// signer of service-account tokens.
func TestIdentityFlags(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	t.Parallel()
	i := newIdentityTest(t)
	signer, err := jwttest.StartSigner(i.file("signer.sock"), 7200)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(signer.Close)
	i.write(t, "provider-ca", i.provider.CA())
	i.write(t, "policy", i.read(t, "../identity-flags/policy.jsonl", ""))
	i.start(t,
		"--oidc-issuer-url="+i.provider.URL(), "--oidc-client-id=kubernetes", "--oidc-ca-file="+i.file("provider-ca"),
		"--oidc-username-claim=email", "--oidc-groups-claim=groups", "--oidc-groups-prefix=oidc:",
		"--oidc-signing-algs=ES256", "--oidc-required-claim=tenant=acme",
		"--authentication-token-webhook-config-file="+i.file("SERVER-token"), "--authorization-mode=ABAC,Webhook",
		"--authorization-policy-file="+i.file("policy"), "--authorization-webhook-config-file="+i.file("SERVER-first"),
		"--authorization-webhook-cache-unauthorized-ttl=0", "--service-account-signing-endpoint="+i.file("signer.sock"),
		"--service-account-jwks-uri=https://keys.example.com",
	)
	i.run(t, "identity-flags/tokens")
	i.run(t, "identity-flags/access")
	i.run(t, "identity-flags/signer")
	if err := signer.Rotate(1); err != nil {
		t.Fatal(err)
	}
	i.run(t, "identity-flags/signer-rotated")
}

// identityMetrics are the prefixes of the metrics of authentication and authorization.
var identityMetrics = regexp.MustCompile(`(?m)^(apiserver_authentication_config_controller_|` +
	`apiserver_authentication_jwt_authenticator_|apiserver_authorization_)[^ ]* .*$`)

// counted are the series whose values depend only on requests to webhooks and on files. Other series depend on time, or
// on requests of controllers.
var counted = regexp.MustCompile(
	`^apiserver_.*_config_controller_(last_config_info|.*_total)|^apiserver_authorization_webhook_.*_total`,
)

// compareMetrics compares the names of the series, and the values of counted series.
func (i *identityTest) compareMetrics(t *testing.T) {
	t.Helper()
	var both [2][]string
	for j, server := range []*Server{i.pair.Upstream, i.pair.Ours} {
		response, err := server.admin.Get(server.Origin + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range identityMetrics.FindAllString(string(body), -1) {
			name, value, _ := strings.Cut(line, " ")
			switch {
			case strings.Contains(name, "_bucket{") || value == "0":
				continue
			case !counted.MatchString(name):
				line = name
			}
			// The files of authorization name the webhooks of their server.
			both[j] = append(both[j],
				regexp.MustCompile(`^(apiserver_authorization.*),hash="[^"]*"`).ReplaceAllString(line, "$1"))
		}
		slices.Sort(both[j])
	}
	if len(both[0]) < 10 {
		t.Errorf("kube-apiserver has only the metrics %v", both[0])
	}
	if difference := cmp.Diff(both[0], both[1]); difference != "" {
		t.Errorf("metrics (- kube-apiserver, + ours)\n%s", difference)
	}
}
