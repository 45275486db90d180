package differential

import (
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Webhooks serves the admission webhooks that one server calls. The path of a call selects the response. The calls are
// recorded.
type Webhooks struct {
	server *httptest.Server
	other  []byte // CA bundle that does not contain the authority of the server

	mu          sync.Mutex
	calls       []webhookCall
	conversions []conversion
	results     []string // canonical JSON of the results of conversions
	// converted are the conversions and their results that takeConversions has returned.
	converted map[string]bool
}

// webhookCall is a call of a webhook, in the form that is compared.
type webhookCall struct {
	Path        string          `json:"path"`
	ContentType string          `json:"contentType"`
	Accept      string          `json:"accept"`
	UserAgent   string          `json:"userAgent"`
	Token       string          `json:"token"`       // value of the header Authorization
	Certificate string          `json:"certificate"` // common name of the client's certificate
	Review      json.RawMessage `json:"review"`
}

// StartWebhooks starts the webhooks. The caller must call Stop. other is a CA bundle that scripts configure instead of
// the right one.
func StartWebhooks(other []byte) *Webhooks {
	w := &Webhooks{other: other, converted: map[string]bool{}}
	w.server = httptest.NewUnstartedServer(w)
	w.server.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	w.server.Config.ErrorLog = log.New(io.Discard, "", 0) // scripts cause handshakes to fail
	w.server.StartTLS()
	return w
}

// Stop stops the webhooks and ends all calls.
func (w *Webhooks) Stop() error {
	w.server.CloseClientConnections()
	w.server.Close()
	return nil
}

// variables returns the variables with which scripts configure webhooks.
func (w *Webhooks) variables() map[string]string {
	bundle := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: w.server.Certificate().Raw})
	return map[string]string{
		"webhooks": w.server.URL, "ca": base64.StdEncoding.EncodeToString(bundle),
		"other-ca": base64.StdEncoding.EncodeToString(w.other),
		"port":     w.server.URL[strings.LastIndexByte(w.server.URL, ':')+1:],
	}
}

// take returns the calls since its last call. Validating webhooks are called concurrently, so calls of paths below
// /validate are sorted by path.
func (w *Webhooks) take() [][]byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	slices.SortStableFunc(w.calls, func(a, b webhookCall) int {
		if !strings.HasPrefix(a.Path, "/validate/") || !strings.HasPrefix(b.Path, "/validate/") {
			return 0
		}
		return strings.Compare(a.Path, b.Path)
	})
	var encoded [][]byte
	for _, call := range w.calls {
		one, err := json.Marshal(call)
		if err != nil {
			one = fmt.Appendf(nil, "%q", err)
		}
		encoded = append(encoded, one)
	}
	w.calls = nil
	return encoded
}

// patches are JSON patches by the last element of the path of the call.
var patches = map[string]string{
	"annotate":       `[{"op":"add","path":"/metadata/annotations","value":{"webhook":"was here"}}]`,
	"default":        `[{"op":"add","path":"/data","value":{"patched":"yes"}}]`,
	"container":      `[{"op":"add","path":"/spec/containers/-","value":{"name":"sidecar","image":"s"}}]`,
	"same":           `[{"op":"test","path":"/kind","value":"ConfigMap"}]`,
	"name":           `[{"op":"replace","path":"/metadata/name","value":"other"}]`,
	"namespace":      `[{"op":"replace","path":"/metadata/namespace","value":"default"}]`,
	"managed-fields": `[{"op":"add","path":"/metadata/managedFields","value":[{"manager":"w","operation":"Nonsense"}]}]`,
	"wrong-path":     `[{"op":"replace","path":"/none/at/all","value":1}]`,
	"unknown-field":  `[{"op":"add","path":"/none","value":1}]`,
	"wrong-type":     `[{"op":"add","path":"/data","value":7}]`,
	"invalid":        `[{"op":"add","path":"/data","value":{"not a key!":""}}]`,
	"kind":           `[{"op":"replace","path":"/kind","value":"Secret"}]`,
	"no-patch":       `nonsense`,
	"color":          `[{"op":"add","path":"/spec/color","value":"red"}]`,
}

// responses are the field "response" of a review by the last element of the path of the call.
var responses = map[string]string{
	"allow":        `{"allowed":true}`,
	"deny":         `{"allowed":false}`,
	"deny-message": `{"allowed":false,"status":{"message":"no, says the test","reason":"Because","code":409}}`,
	"warn":         `{"allowed":true,"warnings":["first","second \"quoted\""],"auditAnnotations":{"a":"b","no key":"c","x/y":"d"}}`,
	"deny-warn":    `{"allowed":false,"warnings":["before the end"]}`,
	"no-type":      `{"allowed":true,"patch":"W10="}`,
	"empty-patch":  `{"allowed":true,"patchType":"JSONPatch","patch":"W10="}`,
}

// bodies are whole responses by the last element of the path of the call.
var bodies = map[string]string{
	"garbage":       `this is no JSON`,
	"nothing":       ``,
	"null":          `null`,
	"no-response":   `{"kind":"AdmissionReview","apiVersion":"${version}"}`,
	"other-uid":     `{"kind":"AdmissionReview","apiVersion":"${version}","response":{"uid":"another","allowed":true}}`,
	"other-kind":    `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a"}}`,
	"other-version": `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v2","response":{"uid":"${uid}","allowed":true}}`,
	"no-kind":       `{"response":{"uid":"${uid}","allowed":true}}`,
	"huge":          "",
}

// review is the part of an AdmissionReview that the webhook reads.
type review struct {
	APIVersion string `json:"apiVersion"`
	Request    struct {
		UID string `json:"uid"`
	} `json:"request"`
}

func (w *Webhooks) ServeHTTP(writer http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	if servesConversion(r.URL.Path) {
		w.convert(writer, r, body)
		return
	}
	var asked review
	if err := json.Unmarshal(body, &asked); err != nil {
		http.Error(writer, err.Error(), http.StatusBadRequest)
		return
	}
	uid := asked.Request.UID
	certificate := ""
	if peers := r.TLS.PeerCertificates; len(peers) > 0 {
		certificate = peers[0].Subject.CommonName
	}
	w.mu.Lock()
	w.calls = append(w.calls, webhookCall{
		Token: r.Header.Get("Authorization"), Certificate: certificate,
		Path: r.URL.RequestURI(), ContentType: r.Header.Get("Content-Type"), Accept: r.Header.Get("Accept"),
		UserAgent: strings.SplitN(r.Header.Get("User-Agent"), "/", 2)[0],
		Review:    json.RawMessage(strings.ReplaceAll(string(body), uid, "<uid of the review>")),
	})
	w.mu.Unlock()
	name := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	switch {
	case name == "never":
		<-r.Context().Done()
	case name == "reset":
		panic(http.ErrAbortHandler)
	case strings.HasPrefix(name, "status-"):
		code, err := strconv.Atoi(strings.TrimPrefix(name, "status-"))
		if err != nil {
			code = http.StatusInternalServerError
		}
		http.Error(writer, "the status that the path asks for", code)
	default:
		writer.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(writer,
			strings.NewReplacer("${uid}", uid, "${version}", asked.APIVersion).Replace(answerOf(name)))
	}
}

// answerOf returns the body of the response to a call.
func answerOf(name string) string {
	if body, ok := bodies[name]; ok {
		if name == "huge" {
			return strings.Repeat(" ", 10<<20)
		}
		return body
	}
	response := responses[name]
	if patch, ok := patches[name]; ok {
		response = fmt.Sprintf(`{"allowed":true,"patchType":"JSONPatch","patch":%q}`,
			base64.StdEncoding.EncodeToString([]byte(patch)))
	}
	if response == "" {
		response = `{"allowed":true}`
	}
	return `{"kind":"AdmissionReview","apiVersion":"${version}","response":{"uid":"${uid}",` + response[1:] + `}`
}
