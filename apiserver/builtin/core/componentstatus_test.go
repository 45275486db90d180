package core

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"k8s.io/kubernetes/pkg/probe"
)

// TestHealthCheckEndsWithItsRequest: a component that does not answer is not checked any longer.
func TestHealthCheckEndsWithItsRequest(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	silent := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { cancel(); <-ended }))
	defer silent.Close()
	defer close(ended)
	address, err := url.Parse(silent.URL)
	if err != nil {
		t.Fatal(err)
	}
	result, message, err := checkURL(*address)(ctx)
	if result != probe.Failure || !strings.Contains(message, context.Canceled.Error()) || err != nil {
		t.Errorf("%s, %s, %v", result, message, err)
	}
}
