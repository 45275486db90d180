package metrics

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// A call for slowObject takes longer than requests whose traces are not logged.
const (
	slowObject = "slow"
	slowCall   = 600 * time.Millisecond
)

// webhook is an admission webhook that allows everything.
type webhook struct{ server *httptest.Server }

func newWebhook(t *testing.T) *webhook {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review struct{ Request struct{ UID, Name string } }
		_ = json.NewDecoder(r.Body).Decode(&review)
		if review.Request.Name == slowObject {
			<-time.After(slowCall)
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","response":{"uid":%q,"allowed":true}}`,
			review.Request.UID)
	}))
	t.Cleanup(server.Close)
	return &webhook{server}
}

// install makes a server call the webhook for ConfigMaps, and installs a policy for them.
func (h *webhook) install(t *testing.T, config *rest.Config) {
	t.Helper()
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: h.server.Certificate().Raw})
	const prefix = "/apis/admissionregistration.k8s.io/v1/"
	for _, kind := range []string{"mutating", "validating"} {
		do(t, config, http.MethodPost, prefix+kind+"webhookconfigurations",
			fmt.Sprintf(`{"metadata":{"name":"a"},"webhooks":[{
			"name":"a.example.com","admissionReviewVersions":["v1"],"sideEffects":"None","clientConfig":{"url":%q,"caBundle":%q},
			"matchConditions":[{"name":"always","expression":"true"}],
			"rules":[{"operations":["*"],"apiGroups":[""],"apiVersions":["*"],"resources":["configmaps"]}]}]}`,
				h.server.URL, base64.StdEncoding.EncodeToString(authority)))
	}
	do(t, config, http.MethodPost, prefix+"validatingadmissionpolicies", `{"metadata":{"name":"a"},"spec":{
		"matchConstraints":{"resourceRules":[{"operations":["*"],"apiGroups":[""],"apiVersions":["*"],"resources":["configmaps"]}]},
		"validations":[{"expression":"true"}]}}`)
	do(t, config, http.MethodPost, prefix+"validatingadmissionpolicybindings",
		`{"metadata":{"name":"a"},"spec":{"policyName":"a","validationActions":["Deny"]}}`)
}

func decode(t *testing.T, data []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(data, into); err != nil {
		t.Fatalf("%v: %s", err, data)
	}
}
