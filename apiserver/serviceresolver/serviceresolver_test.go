package serviceresolver

import (
	"encoding/pem"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"

	"quorate.dev/apiserver/transport"
)

func TestResolve(t *testing.T) {
	ready := discoveryv1.EndpointConditions{Ready: ptr.To(true)}
	client := fake.NewClientset(
		&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "hooks", Name: "hook"},
			Spec: corev1.ServiceSpec{
				Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.0.0.7",
				Ports: []corev1.ServicePort{{Name: "https", Port: 443}},
			},
		},
		&discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "hooks", Name: "hook-1", Labels: map[string]string{discoveryv1.LabelServiceName: "hook"},
			},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("https"), Port: ptr.To[int32](8443)}},
			Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.1.0.1"}, Conditions: ready}},
		},
	)
	for name, test := range map[string]struct {
		endpoints bool
		want      string
	}{
		"cluster IP": {false, "https://10.0.0.7:443"},
		"endpoint":   {true, "https://10.1.0.1:8443"},
	} {
		t.Run(name, func(t *testing.T) {
			factory := informers.NewSharedInformerFactory(client, 0)
			resolver, err := New(factory, test.endpoints)
			if err != nil {
				t.Fatal(err)
			}
			factory.Start(t.Context().Done())
			factory.WaitForCacheSync(t.Context().Done())
			if found, err := resolver.ResolveEndpoint("hooks", "hook", 443); err != nil || found.String() != test.want {
				t.Errorf("got %v, %v, want %s", found, err, test.want)
			}
			for _, missing := range []struct {
				namespace, name string
				port            int32
			}{{"hooks", "other", 443}, {"hooks", "hook", 80}, {"", "hook", 443}, {"hooks", "", 443}, {"hooks", "hook", 0}} {
				if found, err := resolver.ResolveEndpoint(missing.namespace, missing.name, missing.port); err == nil {
					t.Errorf("%v: got %v", missing, found)
				}
			}
		})
	}
}

// newManager returns upstream's manager of webhooks' clients.
func newManager(t *testing.T, clients Clients) *webhook.ClientManager {
	t.Helper()
	manager, err := webhook.NewClientManager([]schema.GroupVersion{admissionv1.SchemeGroupVersion},
		admissionv1.AddToScheme)
	if err != nil {
		t.Fatal(err)
	}
	resolver, err := webhook.NewDefaultAuthenticationInfoResolver("")
	if err != nil {
		t.Fatal(err)
	}
	manager.SetAuthenticationInfoResolver(resolver)
	manager.SetAuthenticationInfoResolverWrapper(clients.Wrap)
	manager.SetServiceResolver(webhook.NewDefaultServiceResolver())
	return &manager
}

// handled is a transport that calls a handler.
type handled struct{ http.HandlerFunc }

func (h handled) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result(), nil
}

func TestKubernetesServiceIsThisServer(t *testing.T) {
	var paths []string
	local := handled{func(w http.ResponseWriter, r *http.Request) {
		paths = append(paths, r.URL.RequestURI())
		_, _ = io.WriteString(w, "served")
	}}
	manager := newManager(t, Clients{Local: local, MaxResponse: 100})
	certificates := httptest.NewTLSServer(http.NotFoundHandler())
	defer certificates.Close()
	for _, config := range []webhook.ClientConfig{
		{
			Service: &webhook.ClientConfigService{
				Namespace: "default", Name: "kubernetes", Path: "/apis/hooks/v1/reviews", Port: 443,
			},
		},
		{
			Service:  &webhook.ClientConfigService{Namespace: "default", Name: "kubernetes", Path: "/a", Port: 443},
			CABundle: pemOf(certificates),
		},
		{URL: "https://kubernetes.default.svc/b"},
	} {
		client, err := manager.HookClient(config)
		if err != nil {
			t.Fatal(err)
		}
		if body, err := client.Post().Do(t.Context()).Raw(); err != nil || string(body) != "served" {
			t.Errorf("got %q, %v", body, err)
		}
	}
	if want := []string{"/apis/hooks/v1/reviews", "/a", "/b"}; !slices.Equal(paths, want) {
		t.Errorf("got %q, want %q", paths, want)
	}
	other := webhook.ClientConfig{
		Service: &webhook.ClientConfigService{Namespace: "default", Name: "kubernetes", Port: 6443},
	}
	client, err := manager.HookClient(other)
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Post().MaxRetries(0).Do(t.Context()).Error(); err == nil || len(paths) != 3 {
		t.Errorf("another port: %v, %q", err, paths)
	}
}

func TestRedirectsAreRefused(t *testing.T) {
	elsewhere := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("followed") }))
	defer elsewhere.Close()
	for _, code := range []int{
		http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect,
		http.StatusPermanentRedirect,
	} {
		server := httptest.NewTLSServer(http.RedirectHandler(elsewhere.URL, code))
		defer server.Close()
		client, err := newManager(t, Clients{MaxResponse: 100}).HookClient(webhook.ClientConfig{
			URL: server.URL, CABundle: pemOf(server),
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := client.Post().Body([]byte("{}")).Do(t.Context()).Error(); !errors.Is(err, transport.ErrRedirect) {
			t.Errorf("%d: %v", code, err)
		}
	}
}

func TestResponsesAreLimited(t *testing.T) {
	const limit = 1000
	for size, allowed := range map[int]bool{limit - 1: true, limit: true, limit + 1: false, 100 * limit: false} {
		server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, strings.Repeat(" ", size))
		}))
		defer server.Close()
		client, err := newManager(t, Clients{MaxResponse: limit}).HookClient(webhook.ClientConfig{
			URL: server.URL, CABundle: pemOf(server),
		})
		if err != nil {
			t.Fatal(err)
		}
		body, err := client.Post().Do(t.Context()).Raw()
		if (err == nil) != allowed || allowed && len(body) != size {
			t.Errorf("%d bytes: got %d, %v", size, len(body), err)
		}
		if !allowed && !strings.Contains(err.Error(), "the response exceeds the limit of 1000 bytes") {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
}

func pemOf(server *httptest.Server) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
}
