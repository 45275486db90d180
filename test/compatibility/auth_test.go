package compatibility

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"quorate.dev/test/upstream"
)

// authFiles are the files that flags of authentication and authorization refer to.
var authFiles = map[string]string{
	"unknown": `{"apiVersion":"apiserver.config.k8s.io/v1","kind":"AuthenticationConfiguration","jwts":[]}`,
	"anonymous": `{"apiVersion":"apiserver.config.k8s.io/v1","kind":"AuthenticationConfiguration",` +
		`"anonymous":{"enabled":true}}`,
	"issuer": `{"apiVersion":"apiserver.config.k8s.io/v1beta1","kind":"AuthenticationConfiguration","jwt":[
{"issuer":{"url":"http://x","audiences":[]},"claimMappings":{"username":{"claim":"sub"}},
"claimValidationRules":[{"expression":"claims."}]}]}`,
	"own-issuer": `{"apiVersion":"apiserver.config.k8s.io/v1","kind":"AuthenticationConfiguration","jwt":[
{"issuer":{"url":"https://kubernetes.default.svc","audiences":["a"]},"claimMappings":{"username":{"claim":"sub","prefix":""}}}]}`,
	"egress": `{"apiVersion":"apiserver.config.k8s.io/v1","kind":"AuthenticationConfiguration","jwt":[
{"issuer":{"url":"https://x","audiences":["a"],"egressSelectorType":"cluster"},"claimMappings":{"username":{"claim":"sub","prefix":""}}}]}`,
	"modes": `{"apiVersion":"apiserver.config.k8s.io/v1","kind":"AuthorizationConfiguration","authorizers":[
{"type":"RBAC","name":"roles"},{"type":"Perhaps","name":"x"},{"type":"Webhook","name":"x","webhook":{"timeout":"99s"}}]}`,
	"names": `{"apiVersion":"apiserver.config.k8s.io/v1","kind":"AuthorizationConfiguration","authorizers":[
{"type":"RBAC","name":"roles"}]}`,
	"no-kubeconfig": `{"apiVersion":"apiserver.config.k8s.io/v1","kind":"AuthorizationConfiguration","authorizers":[
{"type":"Webhook","name":"w","webhook":{"authorizedTTL":"1s","unauthorizedTTL":"1s","timeout":"1s","failurePolicy":"Deny",
"subjectAccessReviewVersion":"v1","matchConditionSubjectAccessReviewVersion":"v1","matchConditions":[{"expression":"request.nothing"}],
"connectionInfo":{"type":"KubeConfigFile","kubeConfigFile":"/does/not/exist"}}}]}`,
	"policy": `{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"user":`,
	"kubeconfig": `{"apiVersion":"v1","kind":"Config","current-context":"c","clusters":[{"name":"c","cluster":
{"server":"https://127.0.0.1:1"}}],"contexts":[{"name":"c","context":{"cluster":"c"}}]}`,
}

// authErrors are flags with which neither server starts. FILE: precedes the name of one of authFiles.
var authErrors = map[string][]string{
	"a claim without an issuer":     {"--oidc-username-claim=sub"},
	"an unknown field":              {"--authentication-config=FILE:unknown"},
	"an invalid issuer":             {"--authentication-config=FILE:issuer"},
	"this server's issuer":          {"--authentication-config=FILE:own-issuer"},
	"an egress selector":            {"--authentication-config=FILE:egress"},
	"a file and an issuer":          {"--authentication-config=FILE:anonymous", "--oidc-client-id=a"},
	"a file and anonymous requests": {"--authentication-config=FILE:anonymous", "--anonymous-auth=true"},
	"a version of the token webhook": {
		"--authentication-token-webhook-config-file=FILE:kubeconfig", "--authentication-token-webhook-version=v2",
	},
	"an unknown mode":           {"--authorization-mode=Perhaps"},
	"ABAC without a policy":     {"--authorization-mode=ABAC"},
	"a broken policy":           {"--authorization-mode=ABAC", "--authorization-policy-file=FILE:policy"},
	"Webhook without a webhook": {"--authorization-mode=Webhook,RBAC"},
	"a version of the webhook": {
		"--authorization-mode=Webhook", "--authorization-webhook-config-file=FILE:kubeconfig",
		"--authorization-webhook-version=v2",
	},
	"a file and a mode": {"--authorization-config=FILE:names", "--authorization-mode=RBAC"},
	"a file and a webhook's cache": {
		"--authorization-config=FILE:names", "--authorization-webhook-cache-authorized-ttl=5m",
	},
	"invalid modes":                  {"--authorization-config=FILE:modes"},
	"a mode of another name":         {"--authorization-config=FILE:names"},
	"a webhook without a kubeconfig": {"--authorization-config=FILE:no-kubeconfig"},
	"a signer and keys":              {"--service-account-signing-endpoint=/x"},
	"an issuer twice":                {"--service-account-issuer=https://kubernetes.default.svc"},
	"keys by HTTP":                   {"--service-account-jwks-uri=http://x"},
	"a blank header":                 {"--requestheader-username-headers= "},
	"another header of UIDs":         {"--requestheader-uid-headers=X-User-Id"},
	"clients as front proxies": {
		"--requestheader-client-ca-file=FILE:pki/client-ca.crt", "--requestheader-username-headers=X-Remote-User",
	},
}

// TestAuthErrorsAreAlike checks that both servers reject the configuration of authentication and authorization with the
// same error.
func TestAuthErrorsAreAlike(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	kubernetes, err := upstream.Binary(t.Context(), "kube-apiserver")
	if err != nil {
		t.Fatal(err)
	}
	quorate, err := upstream.Quorate(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	directory := t.TempDir()
	pki, err := upstream.NewPKI(filepath.Join(directory, "pki"))
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range authFiles {
		if err := os.WriteFile(filepath.Join(directory, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, flags := range authErrors {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			arguments := append(pki.Flags(), "--etcd-servers=http://127.0.0.1:1", "--bind-address=127.0.0.1",
				"--advertise-address=127.0.0.1", "--permit-port-sharing")
			for _, flag := range flags {
				arguments = append(arguments, strings.ReplaceAll(flag, "FILE:", directory+"/"))
			}
			theirs, ours := authComplaint(t, kubernetes, arguments...), authComplaint(t, quorate,
				append([]string{"apiserver"}, arguments...)...)
			if theirs != ours {
				t.Errorf("%v\nkube-apiserver: %s\nours:           %s", flags, theirs, ours)
			}
		})
	}
}

// authComplaint returns the error with which a server exits. kube-apiserver's log quotes the error, or indents it if it
// has several lines.
func authComplaint(t *testing.T, binary string, arguments ...string) string {
	t.Helper()
	text := strings.TrimSpace(complaint(t, binary, arguments...))
	if quoted, err := strconv.Unquote(text); err == nil {
		return quoted
	}
	if lines, ok := strings.CutPrefix(text, "<\n\t"); ok {
		return strings.ReplaceAll(strings.TrimSuffix(lines, "\n >"), "\n\t", "\n")
	}
	return text
}
