package extension

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"quorate.dev/test/upstream"
)

var hosts = map[string]func(context.Context, upstream.Options) (*upstream.APIServer, error){
	"kube-apiserver": upstream.StartKubernetes,
	"quorate":        upstream.StartQuorate,
}

// steps share one fixture. The last ones change it permanently.
var steps = []struct {
	name string
	run  func(*fixture)
}{
	{"discovery", discoveryThroughHost},
	{"kubectl", kubectlThroughHost},
	{"objects", objectsThroughHost},
	{"audit", auditedRequests},
	{"kinds", onlyChosenKinds},
	{"administration", administration},
	{"permissions", permissions},
	{"spoofing", spoofedHeaders},
	{"start", startErrors},
	{"namespaces", namespaces},
	{"owners", owners},
	{"webhooks", webhooks},
	{"policies", policies},
	{"transfer", transfers},
	{"move", moves},
	{"rotation", rotatedAuthority},
	{"replicas", deadReplica},
}

func TestExtension(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	for name, start := range hosts {
		t.Run(name, func(t *testing.T) {
			s := newFixture(t, start)
			s.interrupts = name == "kube-apiserver"
			for _, step := range steps {
				t.Run(step.name, func(t *testing.T) { step.run(s.with(t)) })
			}
		})
	}
}

func discoveryThroughHost(s *fixture) {
	for name, client := range map[string]func(*discovery.DiscoveryClient) discovery.DiscoveryInterface{
		"aggregated": func(c *discovery.DiscoveryClient) discovery.DiscoveryInterface { return c },
		"legacy":     func(c *discovery.DiscoveryClient) discovery.DiscoveryInterface { return c.WithLegacy() },
	} {
		s.await(name+" discovery", func(context.Context) error {
			_, all, err := client(discovery.NewDiscoveryClientForConfigOrDie(s.host)).ServerGroupsAndResources()
			if err != nil {
				return err
			}
			for _, list := range all {
				if list.GroupVersion != "demo.example.com/v1" {
					continue
				}
				names := []string{}
				for _, resource := range list.APIResources {
					names = append(names, resource.Name)
				}
				if want := []string{"widgets", "widgets/status"}; !slices.Equal(names, want) {
					return fmt.Errorf("got %v, want %v", names, want)
				}
				return nil
			}
			return fmt.Errorf("the group is missing")
		})
	}
	// Aggregation does not replace the host's document of a built-in group.
	paths, err := s.typed.Discovery().OpenAPIV3().Paths()
	if err != nil {
		s.Fatal(err)
	}
	own, err := discovery.NewDiscoveryClientForConfigOrDie(s.administrator()).OpenAPIV3().Paths()
	if err != nil {
		s.Fatal(err)
	}
	if _, ok := own["apis/apiextensions.k8s.io/v1"]; ok || own["apis/demo.example.com/v1"] == nil {
		s.Errorf("the extension server documents %v", own)
	}
	if paths["apis/apiextensions.k8s.io/v1"] == nil {
		s.Errorf("the host documents %v", paths)
	}
}

func kubectlThroughHost(s *fixture) {
	s.namespaced("kubectl")
	manifest := "{apiVersion: demo.example.com/v1, kind: Widget, metadata: {name: a, namespace: kubectl}, spec: {size: " +
		"%d}}"
	host := "--kubeconfig=" + s.hostFile
	for size, flags := range [][]string{
		{"--server-side=false"}, {"--server-side=false"}, {"--server-side", "--force-conflicts"},
	} {
		file := s.file("widget.yaml", fmt.Appendf(nil, manifest, size+5))
		arguments := append([]string{host, "apply", "-f=" + file}, flags...)
		if printed := s.run(arguments...); !strings.Contains(printed, "widget.demo.example.com/a") {
			s.Errorf("apply %v: %s", flags, printed)
		}
	}
	table := s.run(host, "get", "-n=kubectl", "wd")
	if !strings.Contains(table, "NAME   SIZE") || !strings.Contains(table, "a      7") {
		s.Errorf("the table is\n%s", table)
	}
	s.await("kubectl explain", func(context.Context) error {
		text, err := s.try(host, "explain", "widget.spec.size")
		if err == nil && !strings.Contains(text, "How large the widget is.") {
			err = fmt.Errorf("explain printed\n%s", text)
		}
		return err
	})
	text := s.run(host, "explain", "customresourcedefinition.spec.group")
	if !strings.Contains(text, "the API group of the defined custom resource") {
		s.Errorf("the host's own kinds: explain printed\n%s", text)
	}
	s.run(host, "delete", "-n=kubectl", "widgets", "--all")
	if listed := s.run(host, "get", "-n=kubectl", "widgets"); !strings.Contains(listed, "No resources found") {
		s.Errorf("after deletion:\n%s", listed)
	}
}

func objectsThroughHost(s *fixture) {
	in := s.namespaced("objects")
	watch, err := in.Watch(s.Context(), metav1.ListOptions{})
	if err != nil {
		s.Fatal(err)
	}
	defer watch.Stop()
	created, err := in.Create(s.Context(), widget("a", 1), metav1.CreateOptions{})
	if err != nil {
		s.Fatal(err)
	}
	created.Object["status"] = map[string]any{"ready": true}
	updated, err := in.UpdateStatus(s.Context(), created, metav1.UpdateOptions{})
	if err != nil {
		s.Fatal(err)
	}
	if ready, _, _ := unstructured.NestedBool(updated.Object, "status", "ready"); !ready {
		s.Errorf("the status is %v", updated.Object["status"])
	}
	merge := []byte(`{"spec":{"color":"red"}}`)
	if _, err := in.Patch(s.Context(), "a", types.MergePatchType, merge, metav1.PatchOptions{}); err != nil {
		s.Fatal(err)
	}
	list, err := in.List(s.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 {
		s.Fatalf("listed %v, %v", list, err)
	}
	if color, _, _ := unstructured.NestedString(list.Items[0].Object, "spec", "color"); color != "red" {
		s.Errorf("listed %v", list.Items[0])
	}
	if err := in.Delete(s.Context(), "a", metav1.DeleteOptions{}); err != nil {
		s.Fatal(err)
	}
	var seen []string
	for event := range watch.ResultChan() {
		if seen = append(seen, string(event.Type)); event.Type == "DELETED" {
			break
		}
	}
	if want := []string{"ADDED", "MODIFIED", "MODIFIED", "DELETED"}; !slices.Equal(seen, want) {
		s.Errorf("watched %v, want %v", seen, want)
	}
}

// code returns the status of a GET.
func (s *fixture) code(client *rest.Config, path string, headers http.Header) int {
	s.Helper()
	code, _ := s.get(client, path, headers)
	return code
}

// get returns the status and the body of a GET.
func (s *fixture) get(client *rest.Config, path string, headers http.Header) (int, string) {
	s.Helper()
	connection, err := rest.HTTPClientFor(client)
	if err != nil {
		s.Fatal(err)
	}
	defer connection.CloseIdleConnections()
	request, err := http.NewRequestWithContext(s.Context(), http.MethodGet, client.Host+path, nil)
	if err != nil {
		s.Fatal(err)
	}
	for name, values := range headers {
		request.Header[name] = values
	}
	response, err := connection.Do(request)
	if err != nil {
		s.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		s.Fatal(err)
	}
	return response.StatusCode, string(body)
}

func auditedRequests(s *fixture) {
	if _, err := s.namespaced("audit").Create(s.Context(), widget("audited", 1), metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	s.await("the audit event of a user of the host", func(context.Context) error {
		var logs []byte
		for _, name := range replicaNames {
			log, err := os.ReadFile(s.auditLog(name))
			if err != nil && !os.IsNotExist(err) {
				return err
			}
			logs = append(logs, log...)
		}
		for line := range bytes.Lines(logs) {
			var event auditv1.Event
			if err := json.Unmarshal(line, &event); err != nil {
				return err
			}
			if event.Verb == "create" && event.ObjectRef.Name == "audited" && event.User.Username == "admin" {
				return nil
			}
		}
		return fmt.Errorf("the logs have no such event:\n%s", logs)
	})
}

func onlyChosenKinds(s *fixture) {
	admin := s.administrator()
	groups, err := discovery.NewDiscoveryClientForConfigOrDie(admin).ServerGroups()
	if err != nil {
		s.Fatal(err)
	}
	var names []string
	for _, group := range groups.Groups {
		names = append(names, group.Name)
	}
	slices.Sort(names)
	if want := []string{"apiextensions.k8s.io", widgets.Group}; !slices.Equal(names, want) {
		s.Errorf("serves %v, want %v", names, want)
	}
	if _, index := s.get(admin, "/", nil); strings.Contains(index, `"/api"`) || !strings.Contains(index, `"/apis"`) {
		s.Errorf("the index of paths is %s", index)
	}
	for path, want := range map[string]int{
		"/api": http.StatusNotFound, "/api/v1/namespaces": http.StatusNotFound,
		"/apis/coordination.k8s.io/v1/leases": http.StatusNotFound, "/apis/apps/v1": http.StatusNotFound,
		"/openid/v1/jwks": http.StatusNotFound, "/": http.StatusOK, "/version": http.StatusOK, "/openapi/v2": http.StatusOK,
		"/metrics": http.StatusOK, "/readyz?verbose": http.StatusOK, "/healthz": http.StatusOK, "/livez": http.StatusOK,
	} {
		if got := s.code(admin, path, nil); got != want {
			s.Errorf("GET %s: %d, want %d", path, got, want)
		}
	}
}

func administration(s *fixture) {
	other := strings.ReplaceAll(s.document("kind: CustomResourceDefinition"), "demo.example.com", "other.example.com")
	client := s.kubeconfig("administrator", s.administrator())
	_, err := s.try("--kubeconfig="+client, "apply", "-f", s.file("other.yaml", []byte(other)))
	if err == nil ||
		!strings.Contains(err.Error(), "this server serves the API groups demo.example.com, parts.example.com only") {
		s.Errorf("a definition of another group: %v", err)
	}
	// A user with all permissions in the host is not an administrator of the extension server.
	definitions := "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	powerful := s.direct(0)
	powerful.BearerToken = s.account("powerful", rbacv1.PolicyRule{
		Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"},
	})
	if got := s.code(powerful, definitions, nil); got != http.StatusForbidden {
		s.Errorf("a user of the host read definitions: %d", got)
	}
	if got := s.code(powerful, "/apis/demo.example.com/v1/widgets", nil); got != http.StatusOK {
		s.Errorf("a user of the host read widgets directly: %d", got)
	}
	if got := s.code(s.administrator(), definitions, nil); got != http.StatusOK {
		s.Errorf("an administrator read definitions: %d", got)
	}
}

// account creates a service account of the host with permissions and returns its token.
func (s *fixture) account(name string, rules ...rbacv1.PolicyRule) string {
	s.Helper()
	meta := metav1.ObjectMeta{Name: name}
	account := &corev1.ServiceAccount{ObjectMeta: meta}
	if _, err := s.typed.CoreV1().ServiceAccounts(namespace).Create(
		s.Context(), account, metav1.CreateOptions{},
	); err != nil {
		s.Fatal(err)
	}
	role := &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}
	if _, err := s.typed.RbacV1().ClusterRoles().Create(s.Context(), role, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Name: name, Namespace: namespace}},
	}
	if _, err := s.typed.RbacV1().ClusterRoleBindings().Create(s.Context(), binding, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	return s.token(name)
}

func permissions(s *fixture) {
	reader := s.account("reader", rbacv1.PolicyRule{
		Verbs: []string{"get", "list"}, APIGroups: []string{widgets.Group}, Resources: []string{"widgets"},
	})
	for name, server := range map[string]*rest.Config{
		"through the host": rest.AnonymousClientConfig(s.host), "directly": s.direct(0),
	} {
		server.BearerToken = reader
		client := dynamic.NewForConfigOrDie(server).Resource(widgets).Namespace("default")
		if _, err := client.List(s.Context(), metav1.ListOptions{}); err != nil {
			s.Errorf("%s: the reader cannot list: %v", name, err)
		}
		_, err := client.Create(s.Context(), widget("a", 1), metav1.CreateOptions{})
		const want = `cannot create resource "widgets" in API group "demo.example.com" in the namespace "default"`
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), want) {
			s.Errorf("%s: the reader created a widget: %v", name, err)
		}
		server.BearerToken = "unknown"
		if got := s.code(server, "/apis/demo.example.com/v1/widgets", nil); got != http.StatusUnauthorized {
			s.Errorf("%s: an invalid token: %d", name, got)
		}
		server.BearerToken = ""
		if got := s.code(server, "/apis/demo.example.com/v1/widgets", nil); got != http.StatusForbidden {
			s.Errorf("%s: the anonymous user: %d", name, got)
		}
		if got := s.code(server, "/metrics", nil); got != http.StatusForbidden {
			s.Errorf("%s: the anonymous user reads metrics: %d", name, got)
		}
	}
}

// impersonating returns the headers with which the front proxy of the host identifies a user.
var impersonating = http.Header{"X-Remote-User": {"mallory"}, "X-Remote-Group": {"system:masters"}}

func spoofedHeaders(s *fixture) {
	path := "/apis/demo.example.com/v1/widgets"
	if got := s.code(s.direct(0), path, impersonating); got != http.StatusForbidden {
		s.Errorf("without a certificate: %d", got)
	}
	user := s.direct(0)
	var err error
	if user.CertData, user.KeyData, err = s.administrators.Client("mallory"); err != nil {
		s.Fatal(err)
	}
	if got := s.code(user, path, impersonating); got != http.StatusForbidden {
		s.Errorf("with a user's certificate: %d", got)
	}
	if user.CertData, user.KeyData, err = s.proxies.Client("another-name"); err != nil {
		s.Fatal(err)
	}
	if got := s.code(user, path, impersonating); got != http.StatusUnauthorized {
		s.Errorf("with another certificate of the front proxies' authority: %d", got)
	}
	if user.CertData, user.KeyData, err = s.proxies.Client("front-proxy-client"); err != nil {
		s.Fatal(err)
	}
	if got := s.code(user, path, impersonating); got != http.StatusOK {
		s.Errorf("with the front proxy's certificate: %d", got)
	}
}

// startErrors checks that the server exits with the cause if it cannot use the host.
func startErrors(s *fixture) {
	stranger := rest.AnonymousClientConfig(s.host)
	stranger.BearerToken = s.account("stranger")
	forbidden := s.kubeconfig("stranger", stranger)
	stranger.BearerToken = "unknown"
	unknown := s.kubeconfig("unknown", stranger)
	stranger.Host = "https://127.0.0.1:1"
	unreachable := s.kubeconfig("unreachable", stranger)
	for kubeconfig, want := range map[string]string{
		forbidden:   "a RoleBinding in kube-system to the Role extension-apiserver-authentication-reader grants it",
		unknown:     "Unauthorized",
		unreachable: "connection refused",
		s.directory: "--kubeconfig: no usable configuration of the host",
	} {
		_, err := upstream.StartExtension(s.Context(), upstream.ExtensionOptions{
			Directory: filepath.Join(s.directory, "failing"), Serving: s.serving, Names: []string{"localhost"},
			Arguments: []string{"--extension-groups=" + widgets.Group, "--kubeconfig=" + kubeconfig},
		})
		if err == nil || !strings.Contains(err.Error(), want) {
			s.Errorf("got %v, want %q", err, want)
		}
	}
	tolerant, err := upstream.StartExtension(s.Context(), upstream.ExtensionOptions{
		Directory: filepath.Join(s.directory, "tolerant"), Serving: s.serving, Names: []string{"localhost"},
		Answers: "/livez",
		Arguments: []string{
			"--extension-groups=" + widgets.Group, "--kubeconfig=" + unreachable, "--authentication-tolerate-lookup-failure",
		},
	})
	if err != nil {
		s.Fatal(err)
	}
	if got := s.code(tolerant.Admin, "/readyz", nil); got != http.StatusInternalServerError {
		s.Errorf("without a host, the server is ready: %d", got)
	}
	if err := tolerant.Stop(); err != nil {
		s.Error(err)
	}
}
