package compatibility

import (
	"context"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/wait"

	"quorate.dev/test/upstream"
)

// TestUnenforcedAdmission: webhooks and policies that this server does not enforce are reported in warnings, metrics and
// /readyz?verbose.
func TestUnenforcedAdmission(t *testing.T) {
	upstream.NeedsProcesses(t)
	directory := t.TempDir()
	pki, err := upstream.NewPKI(filepath.Join(directory, "pki"))
	if err != nil {
		t.Fatal(err)
	}
	process, err := upstream.StartQuorate(t.Context(), upstream.Options{Directory: directory, PKI: pki})
	if err != nil {
		t.Fatal(err)
	}
	process.StopAfter(t)
	s := newServer(t, "quorate", process.Admin)
	const (
		group      = "/apis/admissionregistration.k8s.io/v1/"
		stored     = `299 - "this server does not enforce admission webhooks and policies yet: this object has no effect"`
		conversion = `299 - "this server does not call conversion webhooks yet: ` +
			`objects cannot be converted between versions"`
		merge       = "application/merge-patch+json"
		note        = "[!]admission-enforcement warning: stored and not enforced: 1 ValidatingAdmissionPolicyBinding, 1 ValidatingWebhookConfiguration\n"
		gauge       = `quorate_admission_unenforced_objects{kind="ValidatingWebhookConfiguration"} `
		definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	)
	for _, test := range []struct{ method, path, contentType, body, want string }{
		{http.MethodPost, group + "validatingwebhookconfigurations", "application/json", `{"metadata":{"name":"a"}}`, stored},
		{http.MethodPatch, group + "validatingwebhookconfigurations/a", merge, `{"metadata":{"labels":{"a":"b"}}}`, stored},
		{http.MethodPost, group + "validatingadmissionpolicybindings", "application/json",
			`{"metadata":{"name":"a"},"spec":{"policyName":"p","validationActions":["Deny"]}}`, stored},
		{http.MethodPost, definitions, "application/json", `{"metadata":{"name":"things.example.com"},"spec":{
			"group":"example.com","scope":"Cluster","names":{"plural":"things","kind":"Thing"},"versions":[
				{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}},
				{"name":"v2","served":true,"storage":false,"schema":{"openAPIV3Schema":{"type":"object"}}}],
			"conversion":{"strategy":"Webhook","webhook":{
				"conversionReviewVersions":["v1"],"clientConfig":{"url":"https://127.0.0.1:1/"}}}}}`, conversion},
		{http.MethodPost, "/api/v1/namespaces/default/configmaps", "application/json", `{"metadata":{"name":"a"}}`, ""},
	} {
		response, err := s.send(t.Context(), test.method, test.path, test.contentType, []byte(test.body))
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if got := response.Header.Get("Warning"); response.StatusCode >= http.StatusMultipleChoices || got != test.want {
			t.Errorf("%s %s: %s, %s", test.method, test.path, response.Status, got)
		}
	}
	s.await(t, "/readyz?verbose", note)
	s.await(t, "/metrics", gauge+"1\n")
	s.await(t, definitions+"/things.example.com", "ConversionWebhookNotSupported")
	s.delete(t, group+"validatingwebhookconfigurations/a")
	s.await(t, "/metrics", gauge+"0\n")
	s.delete(t, group+"validatingadmissionpolicybindings/a")
	err = wait.PollUntilContextTimeout(t.Context(), pollInterval, patience, true, func(context.Context) (bool, error) {
		_, body := s.answer(t, "/readyz?verbose", "*/*")
		return !strings.Contains(string(body), "not enforced"), nil
	})
	if err != nil {
		t.Errorf("readyz: %v", err)
	}
}

// await waits until a response contains a text.
func (s *server) await(t *testing.T, path, want string) {
	t.Helper()
	var last []byte
	err := wait.PollUntilContextTimeout(t.Context(), pollInterval, patience, true, func(context.Context) (bool, error) {
		_, last = s.answer(t, path, "*/*")
		return strings.Contains(string(last), want), nil
	})
	if err != nil {
		t.Errorf("%s does not contain %q: %.2000s", path, want, last)
	}
}
