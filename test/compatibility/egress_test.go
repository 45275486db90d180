package compatibility

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/wait"

	"quorate.dev/apiserver/egress/egresstest"
	"quorate.dev/test/upstream"
)

// Names of the networks in an EgressSelectorConfiguration.
const (
	controlPlane = "controlplane"
	cluster      = "cluster"
	storage      = "etcd"
)

// throughProxies are the addresses that each server must reach through the proxy of each network. The names do not
// resolve and the addresses are not routed, so that connections without the proxies would fail.
var throughProxies = map[string][]string{
	storage: {"etcd.invalid:2379"},
	controlPlane: {
		"audit.invalid:443", "authorization.invalid:443", "issuer.invalid:443", "review.invalid:443", "tokens.invalid:443",
	},
	cluster: {
		"10.0.0.70:443",   // webhook of admission behind a Service
		"10.0.0.71:443",   // extension API server
		"10.0.0.72:443",   // webhook of conversion
		"192.0.2.1:80",    // pod
		"192.0.2.3:10250", // kubelet
	},
}

// TestEgress runs both servers with proxies for all connections.
func TestEgress(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	etcd, shared := upstream.NewOptions(t)
	for name, start := range map[string]func(context.Context, upstream.Options) (*upstream.APIServer, error){
		"kube-apiserver": upstream.StartKubernetes, "quorate": upstream.StartQuorate,
	} {
		t.Run(name, func(t *testing.T) {
			e := newEgress(t, strings.TrimPrefix(etcd.Endpoint, "http://"))
			process, err := start(t.Context(), upstream.Options{
				Directory: t.TempDir(), PKI: shared.PKI, Etcd: "http://etcd.invalid:2379",
				Arguments: append(e.flags(t), "--etcd-prefix=/"+name),
			})
			if err != nil {
				t.Fatal(err)
			}
			process.StopAfter(t)
			e.use(t, newServer(t, name, process.Admin))
			used := map[string][]string{}
			for network, proxy := range e.proxies {
				used[network] = proxy.Dialed()
			}
			if !reflect.DeepEqual(used, throughProxies) {
				t.Errorf("through the proxies: %v, want %v", used, throughProxies)
			}
		})
	}
}

// egress contains the proxies of one server, and the backend of all connections except those to etcd.
type egress struct {
	proxies   map[string]*egresstest.Proxy
	directory string
	authority *upstream.Authority
	address   string // address of the TCP proxy
}

func newEgress(t *testing.T, etcd string) *egress {
	t.Helper()
	e := &egress{proxies: map[string]*egresstest.Proxy{}, directory: t.TempDir()}
	var err error
	if e.authority, err = upstream.NewAuthority("egress"); err != nil {
		t.Fatal(err)
	}
	certificate, key, err := e.authority.Server("proxy.example", "audit.invalid",
		"authorization.invalid", "issuer.invalid",
		"review.invalid", "tokens.invalid", "review.default.svc", "convert.default.svc")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	plain := httptest.NewServer(http.HandlerFunc(respond))
	t.Cleanup(plain.Close)
	secure := httptest.NewUnstartedServer(http.HandlerFunc(respond))
	secure.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	secure.StartTLS()
	t.Cleanup(secure.Close)
	route := func(address string) string {
		switch _, port, _ := net.SplitHostPort(address); port {
		case "2379":
			return etcd
		case "80":
			return plain.Listener.Addr().String()
		}
		return secure.Listener.Addr().String()
	}
	for network := range throughProxies {
		e.proxies[network] = &egresstest.Proxy{Route: route}
	}
	listener := listenOn(t, "tcp", "127.0.0.1:0")
	e.address = listener.Addr().String()
	e.proxies[controlPlane].ServeConnect(t, tls.NewListener(listener, secure.TLS))
	e.proxies[storage].ServeConnect(t, listenOn(t, "unix", e.socket(storage)))
	e.proxies[cluster].ServeGRPC(t, listenOn(t, "unix", e.socket(cluster)))
	return e
}

func listenOn(t *testing.T, network, address string) net.Listener {
	t.Helper()
	listener, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	return listener
}

func (e *egress) socket(network string) string { return filepath.Join(e.directory, network) }

func (e *egress) write(t *testing.T, name, content string) string {
	t.Helper()
	file := filepath.Join(e.directory, name)
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// flags returns the flags that configure the proxies, and webhooks by URL.
func (e *egress) flags(t *testing.T) []string {
	t.Helper()
	authority := e.write(t, "ca.crt", string(e.authority.PEM()))
	certificate, key, err := e.authority.Client("kube-apiserver")
	if err != nil {
		t.Fatal(err)
	}
	certificateFile, keyFile, err := upstream.Write(e.directory, "client", certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig := func(host string) string {
		return e.write(t, host, fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c","clusters":[{"name":"c",
"cluster":{"server":"https://%s","certificate-authority":%q}}],"contexts":[{"name":"c","context":{"cluster":"c"}}]}`,
			host, authority))
	}
	issuer, err := json.Marshal(map[string]any{
		"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration",
		"jwt": []any{map[string]any{
			"issuer": map[string]any{
				"url": "https://issuer.invalid", "audiences": []string{"a"}, "egressSelectorType": controlPlane,
				"certificateAuthority": string(e.authority.PEM()),
			},
			"claimMappings": map[string]any{"username": map[string]any{"claim": "sub", "prefix": ""}},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return []string{
		"--egress-selector-config-file=" + e.write(t, "egress", fmt.Sprintf(`
apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
- {name: etcd, connection: {proxyProtocol: HTTPConnect, transport: {uds: {udsName: %s}}}}
- {name: cluster, connection: {proxyProtocol: GRPC, transport: {uds: {udsName: %s}}}}
- {name: controlplane, connection: {proxyProtocol: HTTPConnect, transport: {tcp: {url: "https://%s",
   tlsConfig: {caBundle: %s, clientCert: %s, clientKey: %s, tlsServerName: proxy.example}}}}}
`, e.socket(storage), e.socket(cluster), e.address, authority, certificateFile, keyFile)),
		"--audit-policy-file=" +
			e.write(t, "policy", `{"apiVersion":"audit.k8s.io/v1","kind":"Policy","rules":[{"level":"Metadata"}]}`),
		"--audit-webhook-config-file=" + kubeconfig("audit.invalid"), "--audit-webhook-mode=blocking",
		"--authentication-token-webhook-config-file=" + kubeconfig("tokens.invalid"),
		"--authentication-token-webhook-version=v1", "--authentication-config=" + e.write(t, "issuer", string(issuer)),
		"--authorization-mode=RBAC,Webhook", "--authorization-webhook-version=v1",
		"--authorization-webhook-config-file=" + kubeconfig("authorization.invalid"),
	}
}

// respond serves every backend behind the proxies. It allows every review.
func respond(w http.ResponseWriter, r *http.Request) {
	var review map[string]any
	body, _ := io.ReadAll(r.Body)
	_ = json.Unmarshal(body, &review)
	request, _ := review["request"].(map[string]any)
	w.Header().Set("Content-Type", "application/json")
	switch review["kind"] {
	case "AdmissionReview":
		review["response"] = map[string]any{"uid": request["uid"], "allowed": true}
	case "ConversionReview":
		objects := request["objects"].([]any)
		for _, converted := range objects {
			converted.(map[string]any)["apiVersion"] = request["desiredAPIVersion"]
		}
		review["response"] = map[string]any{
			"uid": request["uid"], "convertedObjects": objects, "result": map[string]any{"status": "Success"},
		}
	case "TokenReview":
		review["status"] = map[string]any{"authenticated": true, "user": map[string]any{"username": "of-webhook"}}
	case "SubjectAccessReview":
		review["status"] = map[string]any{"allowed": true}
	default:
		review = map[string]any{"kind": "Served", "path": r.URL.Path}
	}
	_ = json.NewEncoder(w).Encode(review)
}

// use makes a server connect to everything behind the proxies.
func (e *egress) use(t *testing.T, s *server) {
	t.Helper()
	bundle := base64.StdEncoding.EncodeToString(e.authority.PEM())
	for name, ip := range map[string]string{"review": "10.0.0.70", "extension": "10.0.0.71", "convert": "10.0.0.72"} {
		s.create(t, "/api/v1/namespaces/default/services", fmt.Sprintf(
			`{"metadata":{"name":%q},"spec":{"clusterIP":%q,"ports":[{"port":443}]}}`, name, ip))
	}
	e.useNodes(t, s)
	e.useWebhooks(t, s, bundle)
	const aggregated = "/apis/extension.example.com/v1/things"
	s.create(t, "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", `{"metadata":{"name":"extension","labels":
		{"kubernetes.io/service-name":"extension"}},"addressType":"IPv4","endpoints":[{"addresses":["192.0.2.2"]}],"ports":[{"name":"","port":443}]}`)
	s.create(t, "/apis/apiregistration.k8s.io/v1/apiservices",
		`{"metadata":{"name":"v1.extension.example.com"},"spec":{"group":
		"extension.example.com","version":"v1","groupPriorityMinimum":1,"versionPriority":1,"insecureSkipTLSVerify":true,
		"service":{"namespace":"default","name":"extension"}}}`)
	s.awaitServed(t, aggregated)
	if got := s.get(t, aggregated); got["path"] != aggregated {
		t.Errorf("the extension API server returned %v", got)
	}
	for header, value := range map[string]string{"Impersonate-User": "unprivileged", "Authorization": "Bearer unknown"} {
		e.mustBeAllowed(t, s, header, value)
	}
}

// mustBeAllowed sends a request that only the webhooks can authenticate and authorize.
func (e *egress) mustBeAllowed(t *testing.T, s *server, header, value string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.host+"/api/v1/secrets", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set(header, value)
	client := s.http
	if header == "Authorization" {
		client = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
		defer client.CloseIdleConnections()
	}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		t.Errorf("%s: %s", header, response.Status)
	}
}

// useNodes makes a server connect to a kubelet and to a pod.
func (e *egress) useNodes(t *testing.T, s *server) {
	t.Helper()
	s.create(t, "/api/v1/nodes",
		`{"metadata":{"name":"node"},"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.3"}],
		"daemonEndpoints":{"kubeletEndpoint":{"Port":10250}}}}`)
	s.create(t, "/api/v1/namespaces/default/pods",
		`{"metadata":{"name":"pod"},"spec":{"nodeName":"node","containers":[{"name":"c","image":"i"}]}}`)
	s.patch(t, "/api/v1/namespaces/default/pods/pod/status",
		`{"status":{"podIPs":[{"ip":"192.0.2.1"}],"podIP":"192.0.2.1"}}`)
	for _, path := range []string{
		"/api/v1/nodes/node/proxy/of-kubelet", "/api/v1/namespaces/default/pods/pod/proxy/of-pod",
	} {
		if got := s.get(t, path); got["path"] != path[strings.LastIndex(path, "/"):] {
			t.Errorf("%s returned %v", path, got)
		}
	}
}

// useWebhooks makes a server call admission webhooks, by URL and by Service, and a conversion webhook.
func (e *egress) useWebhooks(t *testing.T, s *server, bundle string) {
	t.Helper()
	webhook := func(name, client string) string {
		return fmt.Sprintf(`{"name":"%s.example.com","clientConfig":{%s,"caBundle":%q},"sideEffects":"None","admissionReviewVersions":["v1"],
			"failurePolicy":"Fail","rules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE"],"resources":["configmaps"]}]}`,
			name, client, bundle)
	}
	s.create(t, "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", fmt.Sprintf(
		`{"metadata":{"name":"review"},"webhooks":[%s,%s]}`, webhook("url", `"url":"https://review.invalid/"`),
		webhook("service", `"service":{"namespace":"default","name":"review"}`)))
	s.create(t, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
		fmt.Sprintf(`{"metadata":{"name":"kinds.example.com"},"spec":{
		"group":"example.com","scope":"Cluster","names":{"plural":"kinds","singular":"kind","kind":"Kind","listKind":"KindList"},
		"conversion":{"strategy":"Webhook","webhook":{"conversionReviewVersions":["v1"],"clientConfig":{"caBundle":%q,
		"service":{"namespace":"default","name":"convert"}}}},"versions":[
		{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}},
		{"name":"v2","served":true,"storage":false,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`, bundle))
	// A server calls the webhooks once it has observed their configuration.
	left := maps.Clone(map[string]bool{"10.0.0.70:443": true, "review.invalid:443": true})
	attempt := 0
	err := wait.PollUntilContextTimeout(t.Context(), pollInterval, patience, true, func(context.Context) (bool, error) {
		attempt++
		s.create(t, "/api/v1/namespaces/default/configmaps", fmt.Sprintf(`{"metadata":{"name":"map-%d"}}`, attempt))
		for _, proxy := range e.proxies {
			for _, address := range proxy.Dialed() {
				delete(left, address)
			}
		}
		return len(left) == 0, nil
	})
	if err != nil {
		t.Fatalf("webhooks were not called: %v", left)
	}
	s.awaitServed(t, "/apis/example.com/v2/kinds")
	s.create(t, "/apis/example.com/v1/kinds", `{"apiVersion":"example.com/v1","kind":"Kind","metadata":{"name":"a"}}`)
	if got := s.get(t, "/apis/example.com/v2/kinds/a"); got["apiVersion"] != "example.com/v2" {
		t.Errorf("the converted object is %v", got)
	}
}
