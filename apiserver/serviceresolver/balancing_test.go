package serviceresolver_test

import (
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"
	featuregatetesting "k8s.io/component-base/featuregate/testing"

	"quorate.dev/apiserver/serviceresolver"
)

// endpoints resolves Services to its elements in turn. Without elements, no Service has an endpoint.
type endpoints struct {
	all  []string
	next int
}

func (e *endpoints) ResolveEndpoint(string, string, int32) (*url.URL, error) {
	if len(e.all) == 0 {
		return nil, errors.New("no endpoints")
	}
	e.next++
	return url.Parse(e.all[(e.next-1)%len(e.all)])
}

// newClient returns the client of a webhook behind a Service.
func newClient(
	t *testing.T, clients serviceresolver.Clients, resolver webhook.ServiceResolver, service webhook.ClientConfigService,
	bundle []byte,
) *rest.RESTClient {
	t.Helper()
	manager, err := webhook.NewClientManager([]schema.GroupVersion{{Group: "g", Version: "v1"}},
		func(*runtime.Scheme) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	// The certificates of httptest are valid for example.com.
	manager.SetAuthenticationInfoResolver(clients.Wrap(&webhook.AuthenticationInfoResolverDelegator{
		ClientConfigForServiceFunc: func(string, string, int) (*rest.Config, error) {
			return &rest.Config{TLSClientConfig: rest.TLSClientConfig{ServerName: "example.com"}}, nil
		},
	}))
	manager.SetServiceResolver(clients.Resolver(resolver))
	client, err := manager.HookClient(webhook.ClientConfig{Name: "w", CABundle: bundle, Service: &service})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// TestRequestsAreBalanced sends two requests to a webhook with two endpoints. With WebhookRoundTripLoadBalancing each
// request goes to another endpoint, otherwise both go to the endpoint of the first connection.
func TestRequestsAreBalanced(t *testing.T) {
	for enabled, want := range map[bool][]string{true: {"a", "b"}, false: {"a", "a"}} {
		featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate,
			features.WebhookRoundTripLoadBalancing, enabled)
		var called []string
		var bundle []byte
		resolver := &endpoints{}
		for _, name := range []string{"a", "b"} {
			server := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				called = append(called, name)
				if r.Host != "hook.checks.svc:443" {
					t.Errorf("%s has the host %s", name, r.Host)
				}
			}))
			t.Cleanup(server.Close)
			resolver.all = append(resolver.all, server.URL)
			bundle = append(bundle, pem.EncodeToMemory(
				&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})...)
		}
		service := webhook.ClientConfigService{Name: "hook", Namespace: "checks", Port: 443}
		client := newClient(t, serviceresolver.Clients{MaxResponse: 1 << 20}, resolver, service, bundle)
		for range 2 {
			if err := client.Post().Do(t.Context()).Error(); err != nil {
				t.Fatal(err)
			}
		}
		if !slices.Equal(called, want) {
			t.Errorf("enabled %t: called %v, want %v", enabled, called, want)
		}
	}
}

// TestOwnServiceNeedsNoEndpoint calls a webhook behind this server's own Service, in both positions of the gate.
func TestOwnServiceNeedsNoEndpoint(t *testing.T) {
	for _, enabled := range []bool{true, false} {
		featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate,
			features.WebhookRoundTripLoadBalancing, enabled)
		calls := 0
		local := transport(func(*http.Request) (*http.Response, error) {
			calls++
			return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
		})
		service := webhook.ClientConfigService{Name: "kubernetes", Namespace: "default", Port: 443}
		client := newClient(t, serviceresolver.Clients{Local: local, MaxResponse: 1 << 20}, &endpoints{}, service, nil)
		if err := client.Post().Do(t.Context()).Error(); err != nil || calls != 1 {
			t.Errorf("enabled %t: %d calls, %v", enabled, calls, err)
		}
	}
}
