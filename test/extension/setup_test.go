// Package extension runs this project's API server in extension mode with a host: kube-apiserver and
// kube-controller-manager. Clients access its kinds through the host.
package extension

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"quorate.dev/test/docs/guide"
	"quorate.dev/test/upstream"
)

const (
	// waitTimeout is more than a minute, after which an aggregator retries a failed download of OpenAPI documents.
	waitTimeout  = 2 * time.Minute
	pollInterval = 100 * time.Millisecond

	namespace = "quorate-extension" // of the Service and the ServiceAccount in the documentation
	page      = "../../docs/extension-mode.md"
)

var widgets = schema.GroupVersionResource{Group: "demo.example.com", Version: "v1", Resource: "widgets"}

// fixture is a host with two replicas of an extension server that share an etcd.
type fixture struct {
	bolts map[string]string // definition of bolts by storage version
	*testing.T
	directory string
	pki       *upstream.PKI
	host      *rest.Config // of the host's administrator
	typed     kubernetes.Interface
	objects   dynamic.Interface // through the host
	hostFile  string            // the kubeconfig of the host's administrator
	kubectl   string

	serving        *upstream.Authority // of the extension server
	administrators *upstream.Authority // of the extension server
	proxies        *upstream.Authority // of the host's front proxy
	replicas       []*upstream.Replica
	// interrupts is set if moves are interrupted. With the other host they run without interruption.
	interrupts bool
}

// with returns the fixture of a step.
func (s *fixture) with(t *testing.T) *fixture {
	step := *s
	step.T = t
	return &step
}

func must[T any](value T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

// newFixture starts all servers.
func newFixture(t *testing.T, startHost func(context.Context, upstream.Options) (*upstream.APIServer, error)) *fixture {
	s := &fixture{
		T: t, directory: t.TempDir(),
		serving:        must(upstream.NewAuthority("extension"))(t),
		administrators: must(upstream.NewAuthority("administrators"))(t),
		proxies:        must(upstream.NewAuthority("front-proxy"))(t),
		kubectl:        must(upstream.Binary(t.Context(), "kubectl"))(t),
	}
	s.pki = must(upstream.NewPKI(filepath.Join(s.directory, "pki")))(t)
	etcd := must(upstream.StartEtcd(t.Context(), s.directory))(t)
	etcd.StopAfter(t)
	server := must(startHost(t.Context(), upstream.Options{
		Directory: filepath.Join(s.directory, "host"), PKI: s.pki, Etcd: etcd.Endpoint, Arguments: s.frontProxyFlags(),
	}))(t)
	server.StopAfter(t)
	s.host = rest.CopyConfig(server.Admin)
	s.host.QPS = -1
	s.typed, s.objects = kubernetes.NewForConfigOrDie(s.host), dynamic.NewForConfigOrDie(s.host)
	s.hostFile = s.kubeconfig("admin", s.host)
	s.apply(s.host, s.document("kind: ServiceAccount"))
	own := must(upstream.StartEtcd(t.Context(), t.TempDir()))(t)
	own.StopAfter(t)
	s.startReplicas(own.Endpoint)
	s.register()
	s.bolts = startConverter(t)
	s.apply(s.host, movedDefinitions)
	s.apply(s.host, s.bolts["v1beta1"])
	// kube-controller-manager starts last, because it discovers new kinds only every 30 seconds.
	manager := upstream.Client{
		Directory: s.directory, PKI: s.pki, Server: server.Admin,
		Arguments: []string{"--controllers=namespace-controller,garbage-collector-controller"},
	}
	must(manager.StartControllerManager(t.Context()))(t).StopAfter(t)
	return s
}

// frontProxyFlags are the flags with which a host calls extension servers.
func (s *fixture) frontProxyFlags() []string {
	certificate, key, err := s.proxies.Client("front-proxy-client")
	if err != nil {
		s.Fatal(err)
	}
	certificateFile, keyFile, err := upstream.Write(s.directory, "front-proxy", certificate, key)
	if err != nil {
		s.Fatal(err)
	}
	return []string{
		"--requestheader-client-ca-file=" + s.file("front-proxy-ca.crt", s.proxies.PEM()),
		"--requestheader-allowed-names=front-proxy-client", "--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group", "--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + certificateFile, "--proxy-client-key-file=" + keyFile,
	}
}

func (s *fixture) file(name string, content []byte) string {
	s.Helper()
	path := filepath.Join(s.directory, name)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		s.Fatal(err)
	}
	return path
}

// kubeconfig writes the file for a client.
func (s *fixture) kubeconfig(name string, client *rest.Config) string {
	s.Helper()
	path := filepath.Join(s.directory, name+".kubeconfig")
	if err := upstream.WriteKubeconfig(path, client); err != nil {
		s.Fatal(err)
	}
	return path
}

// token returns a token of a service account of the host.
func (s *fixture) token(account string) string {
	s.Helper()
	accounts := s.typed.CoreV1().ServiceAccounts(namespace)
	request, err := accounts.CreateToken(s.Context(), account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return request.Status.Token
}

// replicaNames are the names of the extension server's replicas.
var replicaNames = []string{"a", "b"}

// auditPolicy is the audit policy of the replicas.
const auditPolicy = `{"apiVersion":"audit.k8s.io/v1","kind":"Policy","rules":[{"level":"Metadata","verbs":["create"]}]}`

// auditLog returns the audit log file of a replica.
func (s *fixture) auditLog(replica string) string {
	return filepath.Join(s.directory, "audit-"+replica+".log")
}

// startReplicas starts the extension server with the identity in the documentation.
func (s *fixture) startReplicas(etcd string) {
	identity := rest.AnonymousClientConfig(s.host)
	identity.BearerToken = s.token("quorate-extension")
	kubeconfig := s.kubeconfig("extension", identity)
	administrators := s.file("administrators.crt", s.administrators.PEM())
	policy := s.file("audit.yaml", []byte(auditPolicy))
	for _, name := range replicaNames {
		replica := &upstream.Replica{Launch: func(ctx context.Context, _ upstream.Options) (*upstream.APIServer, error) {
			return upstream.StartExtension(ctx, upstream.ExtensionOptions{
				Directory: filepath.Join(s.directory, "extension-"+name), Etcd: etcd, Serving: s.serving,
				Names: []string{namespace + "." + namespace + ".svc"},
				Arguments: []string{
					"--extension-groups=" + widgets.Group + "," + movedGroup, "--kubeconfig=" + kubeconfig, "--etcd-prefix=/extension",
					"--client-ca-file=" + administrators, "--audit-policy-file=" + policy, "--audit-log-path=" + s.auditLog(name),
					"--enable-admission-plugins=OwnerReferencesPermissionEnforcement",
				},
			})
		}}
		if err := replica.Start(s.Context()); err != nil {
			s.Fatal(err)
		}
		s.replicas = append(s.replicas, replica)
		s.Cleanup(func() { s.stop(replica) })
	}
}

func (s *fixture) stop(replica *upstream.Replica) {
	server := replica.Server()
	if err := server.Stop(); err != nil {
		s.Error(err)
	}
	if s.Failed() {
		s.Logf("the end of the log of an extension server:\n%s", server.Tail())
	}
}

// direct returns the client of a replica without credentials.
func (s *fixture) direct(replica int) *rest.Config {
	return rest.CopyConfig(s.replicas[replica].Server().Admin)
}

// administrator returns the client of an administrator of the extension server.
func (s *fixture) administrator() *rest.Config {
	s.Helper()
	c := s.direct(0)
	var err error
	if c.CertData, c.KeyData, err = s.administrators.Client("local-admin", "system:masters"); err != nil {
		s.Fatal(err)
	}
	return c
}

// register creates the definition in the extension server, and the Service and the APIService in the host.
func (s *fixture) register() {
	s.Helper()
	s.apply(s.administrator(), s.document("kind: CustomResourceDefinition"))
	_, port, err := net.SplitHostPort(s.balance())
	if err != nil {
		s.Fatal(err)
	}
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: namespace},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "127.0.0.1"},
	}
	if _, err := s.typed.CoreV1().Services(namespace).Create(s.Context(), service, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	api := s.document("kind: APIService")
	api = strings.ReplaceAll(api, "CA_BUNDLE", base64.StdEncoding.EncodeToString(s.serving.PEM()))
	s.apply(s.host, strings.ReplaceAll(api, "port: 443", "port: "+port))
	s.awaitAvailable()
}

// balance returns the address of a proxy that replaces kube-proxy: it forwards each connection to a running replica.
func (s *fixture) balance() string {
	s.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { listener.Close() })
	dial := upstream.DialReplicas(s.replicas, 0)
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer client.Close()
				server, err := dial(s.Context(), "tcp", "")
				if err != nil {
					return
				}
				defer server.Close()
				go func() {
					_, _ = io.Copy(server, client)
					server.Close()
				}()
				_, _ = io.Copy(client, server)
			}()
		}
	}()
	return listener.Addr().String()
}

// document returns the YAML block in the documentation that contains a text.
func (s *fixture) document(contains string) string {
	s.Helper()
	return must(guide.YAML(page, contains))(s.T)
}

// apply runs kubectl apply.
func (s *fixture) apply(client *rest.Config, manifest string) {
	s.Helper()
	file := s.file("manifest.yaml", []byte(manifest))
	s.run("--kubeconfig="+s.kubeconfig("apply", client), "apply", "-f", file)
}

// run runs kubectl and returns its output.
func (s *fixture) run(arguments ...string) string {
	s.Helper()
	output, err := s.try(arguments...)
	if err != nil {
		s.Fatal(err)
	}
	return output
}

func (s *fixture) try(arguments ...string) (string, error) {
	arguments = append([]string{"--cache-dir=" + filepath.Join(s.directory, "cache")}, arguments...)
	command := exec.CommandContext(s.Context(), s.kubectl, arguments...)
	output, err := command.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("kubectl %s: %w\n%s", strings.Join(arguments, " "), err, output)
	}
	return string(output), nil
}

// await waits until a condition returns no error.
func (s *fixture) await(what string, condition func(context.Context) error) {
	s.Helper()
	last := errors.New("never called")
	err := wait.PollUntilContextTimeout(s.Context(), pollInterval, waitTimeout, true, func(
		ctx context.Context,
	) (bool, error) {
		last = condition(ctx)
		return last == nil, nil
	})
	if err != nil {
		s.Fatalf("timed out waiting for %s: %v", what, last)
	}
}

var apiServices = schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}

// awaitAvailable waits until the host can call the extension server and publishes its kinds.
func (s *fixture) awaitAvailable() {
	s.Helper()
	s.await("the APIService", func(ctx context.Context) error {
		service, err := s.objects.Resource(apiServices).Get(ctx, "v1.demo.example.com", metav1.GetOptions{})
		if err != nil {
			return err
		}
		conditions, _, _ := unstructured.NestedSlice(service.Object, "status", "conditions")
		for _, condition := range conditions {
			if c := condition.(map[string]any); c["type"] == "Available" && c["status"] == "True" {
				_, err := s.objects.Resource(widgets).List(ctx, metav1.ListOptions{})
				return err
			}
		}
		return fmt.Errorf("conditions: %v", conditions)
	})
}

// namespaced creates a namespace of the host and returns the widgets in it, through the host.
func (s *fixture) namespaced(name string) dynamic.ResourceInterface {
	s.Helper()
	object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := s.typed.CoreV1().Namespaces().Create(s.Context(), object, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	return s.objects.Resource(widgets).Namespace(name)
}

// widget returns an object without a namespace.
func widget(name string, size int64) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "demo.example.com/v1", "kind": "Widget",
		"metadata": map[string]any{"name": name}, "spec": map[string]any{"size": size},
	}}
}
