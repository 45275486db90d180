package differential

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
)

// Reviews serves the webhooks of authentication and authorization of one server. The content of a review selects the
// response. The calls are recorded.
type Reviews struct {
	server *httptest.Server

	mu    sync.Mutex
	calls [][]byte
}

// StartReviews starts the webhooks. The caller must call Stop.
func StartReviews() *Reviews {
	r := &Reviews{}
	r.server = httptest.NewTLSServer(r)
	return r
}

// Stop stops the webhooks and ends all calls.
func (r *Reviews) Stop() {
	r.server.CloseClientConnections()
	r.server.Close()
}

// kubeconfig writes a kubeconfig file for the webhook at a path.
func (r *Reviews) kubeconfig(file, path string) error {
	return os.WriteFile(file, fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Config","current-context":"c",
"clusters":[{"name":"c","cluster":{"server":%q,"insecure-skip-tls-verify":true}}],
"users":[{"name":"c","user":{"token":"of the server"}}],"contexts":[{"name":"c","context":{"cluster":"c","user":"c"}}]}`,
		r.server.URL+path), 0o600)
}

// take returns the calls since its last call.
func (r *Reviews) take() [][]byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	calls := r.calls
	r.calls = nil
	return calls
}

// reviewCall is a call of a webhook, in the form that is compared.
type reviewCall struct {
	Path          string          `json:"path"`
	ContentType   string          `json:"contentType"`
	Accept        string          `json:"accept"`
	Authorization string          `json:"authorization"`
	Review        json.RawMessage `json:"review"`
}

// reviewed is the part of a review that the webhook reads.
type reviewed struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Spec       struct {
		Token                 string `json:"token"`
		NonResourceAttributes struct {
			Path string `json:"path"`
		} `json:"nonResourceAttributes"`
		ResourceAttributes struct {
			Verb     string `json:"verb"`
			Resource string `json:"resource"`
			Name     string `json:"name"`
		} `json:"resourceAttributes"`
	} `json:"spec"`
}

// tokenStatuses are the statuses of TokenReviews.
var tokenStatuses = map[string]string{
	"hook-hanna": `{"authenticated":true,"user":{"username":"hanna","uid":"h1","groups":["hooked","system:masters-not"],` +
		`"extra":{"Example.com/Key":["a","b"]}}}`,
	"hook-audience":  `{"authenticated":true,"user":{"username":"hanna"},"audiences":["another"]}`,
	"hook-audiences": `{"authenticated":true,"user":{"username":"hanna"},"audiences":["another","https://kubernetes.default.svc"]}`,
	"hook-nameless":  `{"authenticated":true,"user":{}}`,
	"hook-error":     `{"authenticated":false,"error":"the webhook says no"}`,
	"hook-both":      `{"authenticated":true,"user":{"username":"hanna"},"error":"and yet"}`,
}

// accessStatuses are the statuses of SubjectAccessReviews, by the last element of a path or the name of an object.
var accessStatuses = map[string]string{
	"allow":        `{"allowed":true}`,
	"allow-reason": `{"allowed":true,"reason":"because"}`,
	"deny":         `{"allowed":false,"denied":true,"reason":"denied by the webhook"}`,
	"both":         `{"allowed":true,"denied":true,"reason":"undecided"}`,
	"none":         `{"allowed":false,"reason":"no opinion of the webhook"}`,
	"error":        `{"allowed":false,"evaluationError":"it failed"}`,
}

// failures are responses that are not reviews, by the content of the review.
var reviewFailures = map[string]func(w http.ResponseWriter){
	"garbage":    func(w http.ResponseWriter) { _, _ = io.WriteString(w, "this is no JSON") },
	"forbidden":  func(w http.ResponseWriter) { http.Error(w, "not you", http.StatusForbidden) },
	"other-kind": func(w http.ResponseWriter) { _, _ = io.WriteString(w, `{"kind":"Pod","apiVersion":"v1"}`) },
	"empty":      func(http.ResponseWriter) {},
}

func (r *Reviews) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	body, err := io.ReadAll(request.Body)
	var asked reviewed
	if err == nil {
		err = json.Unmarshal(body, &asked)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	call, err := json.Marshal(reviewCall{
		Path: request.URL.RequestURI(), ContentType: request.Header.Get("Content-Type"), Accept: request.Header.Get("Accept"),
		Authorization: request.Header.Get("Authorization"), Review: body,
	})
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	r.mu.Lock()
	r.calls = append(r.calls, call)
	r.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	name, status := asked.status(request.URL.Path)
	if fail, ok := reviewFailures[name]; ok {
		fail(w)
		return
	}
	_, _ = fmt.Fprintf(w, `{"apiVersion":%q,"kind":%q,"status":%s}`, asked.APIVersion, asked.Kind, status)
}

// status returns the name of a review's content and its status. A webhook decides only about paths and names below its
// own path: /first about /hook/first/allow. Roles and bindings may be created, but not with the verbs escalate and
// bind.
func (a *reviewed) status(webhook string) (name, status string) {
	if a.Kind == "TokenReview" {
		status, ok := tokenStatuses[a.Spec.Token]
		if !ok {
			status = `{"authenticated":false}`
		}
		return strings.TrimPrefix(a.Spec.Token, "hook-"), status
	}
	if attributes := a.Spec.ResourceAttributes; attributes.Verb == "create" &&
		strings.HasPrefix(attributes.Resource, "role") {
		return "", `{"allowed":true}`
	}
	subject := a.Spec.NonResourceAttributes.Path
	if subject == "" {
		subject = "/hook/" + strings.ReplaceAll(a.Spec.ResourceAttributes.Name, ".", "/")
	}
	name, concerned := strings.CutPrefix(subject, "/hook"+webhook+"/")
	status, ok := accessStatuses[name]
	if !concerned || !ok {
		status = `{"allowed":false}`
	}
	if !concerned {
		name = ""
	}
	return name, status
}
