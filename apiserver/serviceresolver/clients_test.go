package serviceresolver_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"

	"quorate.dev/apiserver/serviceresolver"
)

// lateContext is a context that ends after its deadline, as all contexts do, by a moment that the test chooses.
type lateContext struct {
	context.Context
	deadline time.Time
}

func (c lateContext) Deadline() (time.Time, bool) { return c.deadline, true }

// transport calls itself.
type transport func(*http.Request) (*http.Response, error)

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }

// newTransport returns the transport of a webhook's client around another one.
func newTransport(t *testing.T, under transport) http.RoundTripper {
	t.Helper()
	resolver := &webhook.AuthenticationInfoResolverDelegator{
		ClientConfigForFunc: func(string) (*rest.Config, error) { return &rest.Config{Transport: under}, nil },
	}
	config, err := serviceresolver.Clients{MaxResponse: 1 << 20}.Wrap(resolver).ClientConfigFor("webhook.example.com:443")
	if err != nil {
		t.Fatal(err)
	}
	wrapped, err := rest.TransportFor(config)
	if err != nil {
		t.Fatal(err)
	}
	return wrapped
}

// TestWebhooksAfterTheDeadline calls a webhook after the deadline of a request, and one that fails at the deadline,
// both before the context of the request has ended: the first is not called, and the second returns after the context
// has ended.
func TestWebhooksAfterTheDeadline(t *testing.T) {
	for _, test := range []struct {
		name      string
		remaining time.Duration
		calls     int
	}{
		{"before the call", -time.Second, 0},
		{"during the call", 10 * time.Millisecond, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			under, end := context.WithCancel(t.Context())
			ctx := lateContext{under, time.Now().Add(test.remaining)}
			calls := 0
			client := newTransport(t, func(*http.Request) (*http.Response, error) {
				calls++
				<-time.After(time.Until(ctx.deadline)) // a connection notices the deadline by itself
				return nil, errors.New("dial: i/o timeout")
			})
			time.AfterFunc(100*time.Millisecond, end)
			response, err :=
				client.RoundTrip(httptest.NewRequestWithContext(ctx, http.MethodPost, "https://webhook.example.com", nil))
			if err == nil {
				response.Body.Close()
			}
			if err == nil || under.Err() == nil || calls != test.calls {
				t.Errorf("error %v after %d calls, want %d; the context's error is %v", err, calls, test.calls, under.Err())
			}
		})
	}
}
