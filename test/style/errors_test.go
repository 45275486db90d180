package style

import (
	"go/ast"
	"regexp"
	"strings"
	"testing"
)

// gerund matches an error text that opens with a gerund.
var gerund = regexp.MustCompile(`^[a-z]+ing\b`)

// repeated matches an error text that opens with words that each caller would repeat. Errors of the API server mirror
// upstream's, which often open with them.
var repeated = regexp.MustCompile(`^(failed to|error)\b`)

// notGerunds are words of the same form as gerunds.
var notGerunds = map[string]bool{
	"missing": true, // an adjective: "missing APIService"
	"nothing": true,
	"tracing": true, // the name of a part of the configuration, like "egress" and "admission" in the same function
}

// mirrored are the openings of texts that equal upstream's, with the file that has them. Clients, logs and alerts of
// users contain them.
var mirrored = map[string]string{
	"failing or missing response from": "k8s.io/kube-aggregator/pkg/controllers/status/remote/remote_available_controller.go",
	"impersonating ":                   "k8s.io/apiserver/pkg/endpoints/filters/impersonation/mode.go",
	"initializing audit webhook":       "k8s.io/apiserver/pkg/server/options/audit.go",
	"loading audit policy file":        "k8s.io/apiserver/pkg/server/options/audit.go",
	"logging blocked":                  "k8s.io/apiserver/pkg/server/healthz/healthz.go",
	"testing value ":                   "gopkg.in/evanphx/json-patch.v4/patch.go",
	"verifying certificate %s failed":  "k8s.io/apiserver/pkg/authentication/request/x509/x509.go",
}

// TestErrorOpenings checks that errors name the operation that failed in the imperative: "list pods: ...". A caller
// wraps the error, and the result reads as a path of operations.
func TestErrorOpenings(t *testing.T) {
	found := map[string]bool{}
	inspect(t, func(file *source, n ast.Node) {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) == 0 {
			return
		}
		if name := selector(call); name != "errors.New" && name != "fmt.Errorf" {
			return
		}
		text := opening(call.Args[0])
		if repeated.MatchString(text) && !strings.HasPrefix(file.name, "apiserver/") &&
			!strings.Contains(file.name, "testdata/") {
			t.Errorf("%s: %q: name the operation that failed, as in \"list pods: ...\"", file.at(call), text)
		}
		word := gerund.FindString(text)
		if word == "" || notGerunds[word] {
			return
		}
		for prefix := range mirrored {
			if strings.HasPrefix(text, prefix) {
				found[prefix] = true
				return
			}
		}
		t.Errorf("%s: %q: open with the operation in the imperative, as in \"list pods: ...\"", file.at(call), text)
	})
	for prefix := range mirrored {
		if !found[prefix] {
			t.Errorf("%q is in the list of upstream's texts, but no error opens with it", prefix)
		}
	}
}
