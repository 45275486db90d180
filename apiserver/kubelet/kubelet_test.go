package kubelet_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	upstreamrequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/util/cert"
	"k8s.io/kubernetes/pkg/apis/core"

	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/builtin/builtintest"
	"quorate.dev/apiserver/kubelet"
	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/resource"
)

const podIP = "10.0.0.5"

func must[T any](t testing.TB) func(T, error) T { return builtintest.Must[T](t) }

// cluster has the node "one" with a kubelet, and the pod "web" on it.
type cluster struct {
	*builtintest.Server
	kubelets *kubelet.Kubelets
	metrics  *prometheus.Registry
}

// newCluster starts a kubelet with a handler.
func newCluster(t *testing.T, handler http.HandlerFunc, options kubelet.Options) *cluster {
	t.Helper()
	backend := httptest.NewTLSServer(handler)
	t.Cleanup(backend.Close)
	c := &cluster{Server: builtintest.NewServer(t, builtin.Options{}, nil), metrics: prometheus.NewRegistry()}
	options.AddressTypes, options.Registerer = []string{"InternalIP"}, c.metrics
	c.kubelets = must[*kubelet.Kubelets](t)(kubelet.New(c.Server, options))
	node := &core.Node{ObjectMeta: metav1.ObjectMeta{Name: "one"}}
	node.Status.Addresses = []core.NodeAddress{{Type: core.NodeInternalIP, Address: "127.0.0.1"}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(backend.Listener.Addr().(*net.TCPAddr).Port)
	c.create(t, "nodes", "", node)
	pod := builtintest.NewPod("web")
	pod.Spec.NodeName = "one"
	c.create(t, "pods", "default", pod)
	key := resource.Key{
		GroupResource: schema.GroupResource{Resource: "pods"}, Subresource: "status", Namespace: "default", Name: "web",
	}
	must[runtime.Object](t)(c.Update(t.Context(), key, func(o runtime.Object) error {
		status := &o.(*core.Pod).Status
		status.Phase, status.PodIP, status.PodIPs = core.PodRunning, podIP, []core.PodIP{{IP: podIP}}
		return nil
	}, resource.WriteOptions{}))
	return c
}

func (c *cluster) create(t *testing.T, plural, namespace string, object runtime.Object) {
	t.Helper()
	key := resource.Key{GroupResource: schema.GroupResource{Resource: plural}, Namespace: namespace}
	must[runtime.Object](t)(c.Create(t.Context(), key, object, resource.WriteOptions{}))
}

// connect returns the handler of a request with options in a query.
func (c *cluster) connect(ctx context.Context, connect *resource.Connect, name, query string) (http.Handler, error) {
	values, err := url.ParseQuery(query)
	if err != nil {
		return nil, err
	}
	options, err := connect.Options(values)
	if err != nil {
		return nil, err
	}
	return connect.Handler(ctx, resource.Call{Namespace: "default", Name: name, Body: options})
}

// count returns the sum of a counter's series.
func (c *cluster) count(t *testing.T, name string) (sum float64) {
	t.Helper()
	for _, family := range must[[]*dto.MetricFamily](t)(c.metrics.Gather()) {
		for _, metric := range family.GetMetric() {
			if family.GetName() == name {
				sum += metric.GetCounter().GetValue()
			}
		}
	}
	return sum
}

func serve(t *testing.T, handler http.Handler) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
	return w
}

func TestPodLog(t *testing.T) {
	c := newCluster(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/containerLogs/default/web/main" || r.URL.RawQuery != "follow=true&tailLines=1" {
			http.Error(w, "unexpected request "+r.URL.String(), http.StatusNotFound)
			return
		}
		_, _ = w.Write([]byte("line\n"))
	}, kubelet.Options{})
	handler := must[http.Handler](t)(c.connect(t.Context(), c.kubelets.PodLog(), "web", "follow=true&tailLines=1"))
	if w := serve(t, handler); w.Code != http.StatusOK || w.Body.String() != "line\n" ||
		w.Header().Get("Content-Type") != "text/plain" {
		t.Errorf("%d %v: %s", w.Code, w.Header(), w.Body)
	}
	handler = must[http.Handler](t)(c.connect(t.Context(), c.kubelets.PodLog(), "web", "previous=true"))
	if w := serve(t, handler); w.Code != http.StatusNotFound {
		t.Errorf("an error of the kubelet became %d: %s", w.Code, w.Body)
	}
	if _, err := c.connect(t.Context(), c.kubelets.PodLog(), "web", "tailLines=-1"); !apierrors.IsInvalid(err) {
		t.Errorf("invalid options: %v", err)
	}
	if _, err := c.connect(t.Context(), c.kubelets.PodLog(), "missing", ""); !apierrors.IsNotFound(err) {
		t.Errorf("a missing pod: %v", err)
	}
	if got := c.count(t, "kube_apiserver_pod_logs_insecure_backend_total"); got != 4 {
		t.Errorf("counted %v requests, want 4", got)
	}
}

// newCA returns the file of a self-signed CA certificate.
func newCA(t *testing.T) string {
	t.Helper()
	key := must[*ecdsa.PrivateKey](t)(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	certificate := must[*x509.Certificate](t)(cert.NewSelfSignedCACert(cert.Config{CommonName: "ca"}, key))
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := cert.WriteCert(file, must[[]byte](t)(cert.EncodeCertificates(certificate))); err != nil {
		t.Fatal(err)
	}
	return file
}

// A kubelet's certificate is verified with the configured CA, which did not sign the one of httptest.
func TestCertificateOfKubeletIsVerified(t *testing.T) {
	c := newCluster(t, func(w http.ResponseWriter, _ *http.Request) {}, kubelet.Options{CAFile: newCA(t)})
	handler := must[http.Handler](t)(c.connect(t.Context(), c.kubelets.PodLog(), "web", ""))
	if w := serve(t, handler); w.Code != http.StatusInternalServerError || !strings.Contains(w.Body.String(), "x509") {
		t.Errorf("%d: %s", w.Code, w.Body)
	}
	if got := c.count(t, "kube_apiserver_pod_logs_backend_tls_failure_total"); got != 1 {
		t.Errorf("counted %v failures, want 1", got)
	}
	handler = must[http.Handler](t)(c.connect(t.Context(), c.kubelets.PodLog(), "web",
		"insecureSkipTLSVerifyBackend=true"))
	if w := serve(t, handler); w.Code != http.StatusOK {
		t.Errorf("without verification: %d: %s", w.Code, w.Body)
	}
}

// As in kube-apiserver, proxies do not reach addresses of the server itself.
func TestNodeProxyRefusesLoopback(t *testing.T) {
	c := newCluster(t, nil, kubelet.Options{})
	if _, err := c.connect(t.Context(), c.kubelets.NodeProxy(), "one", ""); !apierrors.IsBadRequest(err) {
		t.Errorf("a loopback address: %v", err)
	}
	if _, err := c.connect(t.Context(), c.kubelets.NodeProxy(), "two", ""); !apierrors.IsNotFound(err) {
		t.Errorf("a missing node: %v", err)
	}
}

func location(handler http.Handler) string {
	return handler.(*proxy.UpgradeAwareHandler).Location.String()
}

func TestPodProxyLocation(t *testing.T) {
	c := newCluster(t, nil, kubelet.Options{})
	for name, want := range map[string]string{
		"web": "http://" + podIP + "/a/", "web:8080": "http://" + podIP + ":8080/a/",
		"https:web:8443": "https://" + podIP + ":8443/a/",
	} {
		handler := must[http.Handler](t)(c.connect(t.Context(), c.kubelets.PodProxy(), name, "path=/a/"))
		if got := location(handler); got != want {
			t.Errorf("%s is at %s, want %s", name, got, want)
		}
	}
}

// endpointSlices has the slices of the Service default/web.
type endpointSlices []*discoveryv1.EndpointSlice

func (s endpointSlices) GetEndpointSlices(namespace, service string) ([]*discoveryv1.EndpointSlice, error) {
	if namespace != "default" || service != "web" {
		return nil, nil
	}
	return slices.Clone(s), nil
}

// newSlice returns a slice whose endpoints have one port, "http".
func newSlice(family discoveryv1.AddressType, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	name, port := "http", int32(8080)
	return &discoveryv1.EndpointSlice{
		AddressType: family, Endpoints: endpoints, Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &port}},
	}
}

// podAt returns an endpoint that refers to the pod "web" in a namespace.
func podAt(address, namespace string) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{
		Addresses: []string{address}, TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: "web"},
	}
}

// Requests to a Service only go to ready pods of its namespace, whatever addresses its EndpointSlices have.
func TestServiceProxyLocation(t *testing.T) {
	unready, ready := podAt(podIP, "default"), false
	unready.Conditions.Ready = &ready
	c := newCluster(t, nil, kubelet.Options{Family: corev1.IPv4Protocol, Slices: endpointSlices{
		newSlice(discoveryv1.AddressTypeIPv6, podAt("::9", "default")),
		newSlice(discoveryv1.AddressTypeIPv4, unready, discoveryv1.Endpoint{Addresses: []string{"10.0.0.9"}},
			// This is not the address of the pod web.
			podAt("10.0.0.8", "default"), podAt("10.0.0.7", "kube-system"), podAt(podIP, "default")),
	}})
	service := builtintest.NewService(t, "web", nil)
	service.Spec.Ports[0].Name, service.Spec.ClusterIP = "http", core.ClusterIPNone
	service.Spec.ClusterIPs, service.Spec.IPFamilies = []string{core.ClusterIPNone}, []core.IPFamily{core.IPv4Protocol}
	policy := core.IPFamilyPolicySingleStack
	service.Spec.IPFamilyPolicy = &policy
	c.create(t, "services", "default", service)
	for range 10 { // the first endpoint is random
		for name, want := range map[string]string{
			"web:http": "http://" + podIP + ":8080/", "web:80": "http://" + podIP + ":8080/",
			"https:web:http": "https://" + podIP + ":8080/",
		} {
			handler := must[http.Handler](t)(c.connect(t.Context(), c.kubelets.ServiceProxy(), name, "path=/"))
			if got := location(handler); got != want {
				t.Errorf("%s is at %s, want %s", name, got, want)
			}
		}
	}
	for name, refused := range map[string]func(error) bool{
		"web:81": apierrors.IsServiceUnavailable, "web:other": apierrors.IsServiceUnavailable,
		"missing:http": apierrors.IsServiceUnavailable, "missing:80": apierrors.IsNotFound, ":": apierrors.IsBadRequest,
	} {
		if _, err := c.connect(t.Context(), c.kubelets.ServiceProxy(), name, ""); !refused(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// getOnly authorizes every get and nothing else.
type getOnly struct{}

func (getOnly) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetVerb() == "get" {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "only get", nil
}

// A WebSocket is opened with GET, but a stream into a pod needs the verb create.
func TestStreamsNeedCreate(t *testing.T) {
	c := newCluster(t, nil, kubelet.Options{Authorizer: getOnly{}})
	streams := map[string]*resource.Connect{
		"command=ls&stdout=true": c.kubelets.PodExec(), "stdout=true": c.kubelets.PodAttach(),
		"ports=80": c.kubelets.PodPortForward(),
	}
	for verb, want := range map[string]func(error) bool{
		"get": apierrors.IsForbidden, "create": func(err error) bool { return err == nil },
	} {
		record := &request.Record{Context: t.Context()}
		record.Info = upstreamrequest.RequestInfo{
			IsResourceRequest: true, Verb: verb, Resource: "pods", Namespace: "default", Name: "web",
		}
		record.Attributes.Verb = verb
		for query, connect := range streams {
			if _, err := c.connect(record, connect, "web", query); !want(err) {
				t.Errorf("%s %s: %v", verb, query, err)
			}
		}
	}
	if got := c.count(t, "apiserver_websocket_streaming_requests_total"); got != 3 {
		t.Errorf("counted %v streams, want 3", got)
	}
}
