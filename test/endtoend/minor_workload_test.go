package endtoend

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// admitted is the label with which the webhook marks the ConfigMaps that it admits.
const admitted = "admitted"

// admission is a mutating admission webhook for ConfigMaps of a cluster. Requests fail if the webhook cannot be called.
type admission struct {
	server *httptest.Server
	// calls is the number of reviews that the webhook has answered.
	calls atomic.Int64
	// broken is the number of requests that are no AdmissionReview, or whose response could not be written.
	broken atomic.Int64
}

// callWebhook registers an admission webhook in demo for the ConfigMaps of a history.
func (s *sandbox) callWebhook(t *testing.T) *admission {
	t.Helper()
	a := &admission{}
	a.server = httptest.NewTLSServer(http.HandlerFunc(a.review))
	t.Cleanup(a.server.Close)
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.server.Certificate().Raw})
	s.apply(s.demo, fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: admit}
webhooks:
- name: admit.example.com
  admissionReviewVersions: [v1]
  sideEffects: None
  failurePolicy: Fail
  clientConfig: {url: %q, caBundle: %q}
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %s}}
  rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [configmaps]}]
`, a.server.URL, base64.StdEncoding.EncodeToString(authority), namespace))
	return a
}

// review labels an object.
func (a *admission) review(w http.ResponseWriter, r *http.Request) {
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Request == nil {
		a.broken.Add(1)
		http.Error(w, "no AdmissionReview", http.StatusBadRequest)
		return
	}
	patchType := admissionv1.PatchTypeJSONPatch
	review.Response = &admissionv1.AdmissionResponse{
		UID: review.Request.UID, Allowed: true, PatchType: &patchType,
		Patch: []byte(`[{"op":"add","path":"/metadata/labels","value":{"` + admitted + `":"true"}}]`),
	}
	review.Request = nil
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(review); err != nil {
		a.broken.Add(1)
		return
	}
	a.calls.Add(1)
}

// during fails the test if the webhook is not called while do runs.
func (a *admission) during(t *testing.T, do func()) {
	t.Helper()
	before := a.calls.Load()
	do()
	calls := a.calls.Load() - before
	t.Logf("the webhook was called %d times", calls)
	if calls == 0 {
		t.Error("the webhook was not called")
	}
}

// verify checks that the webhook has admitted every ConfigMap of a history, after the end of the history.
func (a *admission) verify(t *testing.T, h *history) {
	t.Helper()
	list := must(h.client.CoreV1().ConfigMaps(namespace).List(t.Context(), metav1.ListOptions{}))(t)
	missed := 0
	for _, object := range list.Items {
		if object.Labels[admitted] == "" && object.Name != "kube-root-ca.crt" {
			missed++
			t.Errorf("%s was written without a call of the webhook", object.Name)
		}
	}
	t.Logf("the webhook was called %d times for %d objects, of which %d were not admitted by it; %d calls broke off",
		a.calls.Load(), len(list.Items), missed, a.broken.Load())
	if broken := a.broken.Load(); broken > 0 {
		t.Errorf("%d calls of the webhook broke off", broken)
	}
}

// readReports reads the aggregated API of serveReports repeatedly, as part of a load.
func (l *load) readReports() *reads {
	r := &reads{}
	client := must(dynamic.NewForConfig(ownConnection(l.config)))(l.t).
		Resource(schema.GroupVersionResource{Group: "reports.example.com", Version: "v1", Resource: "reports"}).
		Namespace("default")
	l.repeat(func(ctx context.Context) {
		ctx, a := newAttempt(ctx)
		object, err := client.Get(ctx, "monthly", metav1.GetOptions{})
		if err == nil && object.GetUID() == "" {
			err = fmt.Errorf("the report is %v", object.Object)
		}
		if err != nil {
			r.failed.Add(1)
			l.failures.add("read of the aggregated API", true, a, err)
			return
		}
		r.succeeded.Add(1)
		l.failures.success("reader of the aggregated API", a)
	})
	return r
}

// reads counts the reads of the aggregated API.
type reads struct{ succeeded, failed atomic.Int64 }

// verify fails the test if a read failed, or if too few reads were sent for a result.
func (r *reads) verify(t *testing.T) {
	t.Helper()
	t.Logf("%d reads of the aggregated API succeeded, %d failed", r.succeeded.Load(), r.failed.Load())
	if r.failed.Load() > 0 || r.succeeded.Load() < 100 {
		t.Error("want at least 100 reads of the aggregated API, and no failure")
	}
}
