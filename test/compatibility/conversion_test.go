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

// TestConversionWebhookIsRefused: a definition whose objects a webhook would convert is not established, and clients are
// warned.
func TestConversionWebhookIsRefused(t *testing.T) {
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
		want = `299 - "this server does not call conversion webhooks yet: objects cannot be converted between versions"`
		path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
		body = `{"metadata":{"name":"things.example.com"},"spec":{
			"group":"example.com","scope":"Cluster","names":{"plural":"things","kind":"Thing"},"versions":[
				{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}},
				{"name":"v2","served":true,"storage":false,"schema":{"openAPIV3Schema":{"type":"object"}}}],
			"conversion":{"strategy":"Webhook","webhook":{
				"conversionReviewVersions":["v1"],"clientConfig":{"url":"https://127.0.0.1:1/"}}}}}`
	)
	response, err := s.send(t.Context(), http.MethodPost, path, "application/json", []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if got := response.Header.Get("Warning"); response.StatusCode != http.StatusCreated || got != want {
		t.Errorf("%s, %s", response.Status, got)
	}
	s.await(t, path+"/things.example.com", "ConversionWebhookNotSupported")
}

// await waits until an answer contains a text.
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
