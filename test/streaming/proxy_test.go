package streaming

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"golang.org/x/net/websocket"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"quorate.dev/test/upstream"
)

// web is the server in a pod: it echoes requests.
func web() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("X-Mine", r.Header.Get("X-Mine"))
		fmt.Fprintf(w, "%s %s %s uri=%s for=%s host=%s proto=%s user=%q authorization=%q", r.Method, r.URL, body,
			r.Header.Get("X-Forwarded-Uri"),
			r.Header.Get("X-Forwarded-For"), r.Header.Get("X-Forwarded-Host"), r.Header.Get("X-Forwarded-Proto"),
			r.Header.Get("X-Remote-User"), r.Header.Get("Authorization"))
	})
	mux.HandleFunc("/page", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, `<html><head></head><body><a href="/there">there</a><img src="near"/></body></html>`)
	})
	mux.HandleFunc("/moved", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/page", http.StatusFound)
	})
	mux.HandleFunc("/away", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "https://example.com/x", http.StatusMovedPermanently)
	})
	mux.HandleFunc("/teapot", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "short and stout", http.StatusTeapot)
	})
	mux.HandleFunc("/abort", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	mux.Handle("/echo", websocket.Handler(func(socket *websocket.Conn) { _, _ = io.Copy(socket, socket) }))
	return mux
}

// listenAt serves at an address that proxies may connect to.
func listenAt(t *testing.T, address string, secure bool) (port int) {
	server := httptest.NewUnstartedServer(web())
	_ = server.Listener.Close()
	listener, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		t.Fatal(err)
	}
	server.Listener = listener
	if secure {
		server.StartTLS()
	} else {
		server.Start()
	}
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return listener.Addr().(*net.TCPAddr).Port
}

func (b *bench) testProxy(t *testing.T) {
	address := upstream.GlobalAddress(t)
	if address == "" {
		t.Skip("this machine has only local addresses, which proxies refuse")
	}
	plain, secure := listenAt(t, address, false), listenAt(t, address, true)
	b.createService(t, address, plain)
	pod := fmt.Sprintf("/api/v1/namespaces/default/pods/pod:%d/proxy", plain)
	for _, c := range []struct{ name, method, path, want string }{
		{"path", "GET", pod + "/a/b?c=d", "GET /a/b?c=d sent uri=/api/v1/namespaces/default/pods/pod:"},
		{"no path", "GET", pod, "Location: /api/v1/namespaces/default/pods/pod:"},
		{"slash", "GET", pod + "/", "GET / sent"},
		{"trailing slash", "GET", pod + "/a/", "GET /a/ sent"},
		{"escaped", "GET", pod + "/a%20b%2Fc//d", "200"},
		{"post", "POST", pod + "/a", "POST /a sent"},
		{"put", "PUT", pod + "/a", "PUT /a sent"},
		{"patch", "PATCH", pod + "/a", "PATCH /a sent"},
		{"delete", "DELETE", pod + "/a", "DELETE /a sent"},
		{"head", "HEAD", pod + "/a", "Mine: kept"},
		{"options", "OPTIONS", pod + "/a", "OPTIONS /a sent"},
		{"links", "GET", pod + "/page", `href="/api/v1/namespaces/default/pods/pod:`},
		{"redirect", "GET", pod + "/moved", "Location: /api/v1/namespaces/default/pods/pod:"},
		{"redirect away", "GET", pod + "/away", "Location: https://example.com/x"},
		{"status", "GET", pod + "/teapot", "418 I'm a teapot"},
		{"abort", "GET", pod + "/abort", "error trying to reach service: EOF"},
		{"closed port", "GET", "/api/v1/namespaces/default/pods/pod:1/proxy/", "connection refused"},
		{"over TLS", "GET", fmt.Sprintf("/api/v1/namespaces/default/pods/https:pod:%d/proxy/x", secure), "GET /x"},
		{
			"wrong scheme", "GET", fmt.Sprintf("/api/v1/namespaces/default/pods/https:pod:%d/proxy/x", plain),
			"does not look like a TLS handshake",
		},
		{"service", "GET", "/api/v1/namespaces/default/services/service:80/proxy/x", "GET /x"},
		{"service's port by name", "GET", "/api/v1/namespaces/default/services/http:service:web/proxy/x?y=z", "GET /x?y=z"},
		{"service without its port", "GET", "/api/v1/namespaces/default/services/service/proxy/x", "no endpoints available"},
		{"node", "GET", fmt.Sprintf("/api/v1/nodes/reachable:%d/proxy/x", plain), "GET /x"},
		{"node over TLS", "GET", fmt.Sprintf("/api/v1/nodes/https:reachable:%d/proxy/x", secure), "GET /x"},
		{"kubelet of another name", "GET", "/api/v1/nodes/reachable/proxy/metrics", "x509"},
		{"kubelet", "GET", "/api/v1/nodes/reachable/proxy/x?y=z", "GET /x?y=z sent uri=/api/v1/nodes/reachable/proxy/x"},
		{
			"kubelet by its port", "POST", fmt.Sprintf("/api/v1/nodes/https:reachable:%d/proxy/x", b.kubelet.port),
			"POST /x sent",
		},
		{"kubelet's redirect", "GET", "/api/v1/nodes/reachable/proxy/moved", "Location: /api/v1/nodes/reachable/proxy/page"},
		{"local kubelet", "GET", "/api/v1/nodes/node/proxy/metrics", "address not allowed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.name == "kubelet of another name" {
				b.setKubeletPort(t, secure)
			}
			if c.name == "kubelet" {
				b.setKubeletPort(t, b.kubelet.port)
			}
			b.both(t, c.want, func(t *testing.T, s *side) string { return get(t, s, c.method, c.path) })
		})
	}
	t.Run("socket", func(t *testing.T) {
		b.both(t, "hello", func(t *testing.T, s *side) string {
			socket := dial(t, s, pod+"/echo", nil)
			if err := websocket.Message.Send(socket, "hello"); err != nil {
				t.Fatal(err)
			}
			return receive(t, socket)
		})
	})
	t.Run("kubectl, kubelet", func(t *testing.T) {
		b.both(t, "GET /y", func(t *testing.T, s *side) string {
			return b.run(t, s, "", "get", "--raw", "/api/v1/nodes/reachable/proxy/y")
		})
	})
	t.Run("kubectl", func(t *testing.T) {
		b.both(t, "GET /y", func(t *testing.T, s *side) string {
			return b.run(t, s, "", "get", "--raw", "/api/v1/namespaces/default/services/service:80/proxy/y")
		})
	})
}

func (b *bench) setKubeletPort(t *testing.T, port int) {
	nodes := b.kubernetes.client.CoreV1().Nodes()
	node, err := nodes.Get(t.Context(), "reachable", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(port)
	if _, err := nodes.UpdateStatus(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// createService creates a service with the pod as its endpoint, and a node that proxies may connect to.
func (b *bench) createService(t *testing.T, address string, port int) {
	ctx, core := t.Context(), b.kubernetes.client.CoreV1()
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "service"}}
	service.Spec.Ports = []corev1.ServicePort{{Name: "web", Port: 80}}
	if _, err := core.Services(namespace).Create(ctx, service, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	name, number := "web", int32(port)
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: "service", Labels: map[string]string{discoveryv1.LabelServiceName: "service"},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{
			Addresses: []string{address},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: "pod"},
		}},
		Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &number}},
	}
	if _, err := b.kubernetes.client.DiscoveryV1().EndpointSlices(namespace).Create(
		ctx, slice, metav1.CreateOptions{},
	); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*side{b.kubernetes, b.quorate} {
		if err := wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, time.Minute, true,
			func(ctx context.Context) (bool, error) {
				_, err := s.client.CoreV1().RESTClient().Get().
					AbsPath("/api/v1/namespaces/" + namespace + "/services/service:80/proxy/x").DoRaw(ctx)
				return !apierrors.IsServiceUnavailable(err), nil
			},
		); err != nil {
			t.Fatal("the server does not find the slice of the Service")
		}
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "reachable"}}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}
	if _, err := core.Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}
