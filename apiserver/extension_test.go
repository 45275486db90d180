package apiserver

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"quorate.dev/test/upstream"
)

const reports = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: reports.reports.example.com}
spec:
  group: reports.example.com
  scope: Namespaced
  names: {plural: reports, singular: report, kind: Report, listKind: ReportList}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`

// freePort returns a port that is free.
func freePort(t *testing.T) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}

// runExtension runs an extension server of a host in this process. It returns the client configuration of an
// administrator, and a function that stops the server and returns its error.
func runExtension(t *testing.T, host *rest.Config) (admin *rest.Config, stop func() error) {
	t.Helper()
	directory := t.TempDir()
	serving, err := upstream.NewAuthority("extension")
	must(t, err)
	administrators, err := upstream.NewAuthority("administrators")
	must(t, err)
	certificate, key, err := serving.Server("localhost")
	must(t, err)
	certificateFile, keyFile, err := upstream.Write(directory, "serving", certificate, key)
	must(t, err)
	kubeconfig, clients := filepath.Join(directory, "kubeconfig"), filepath.Join(directory, "clients.crt")
	must(t, upstream.WriteKubeconfig(kubeconfig, host))
	must(t, os.WriteFile(clients, administrators.PEM(), 0o600))
	port := freePort(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- Run(ctx, []string{
			"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port),
			"--etcd-data-dir=" + filepath.Join(directory, "member"), "--tls-cert-file=" + certificateFile,
			"--tls-private-key-file=" + keyFile, "--client-ca-file=" + clients, "--extension-groups=reports.example.com",
			"--kubeconfig=" + kubeconfig, "",
		})
	}()
	stop = func() error { cancel(); return <-ended }
	t.Cleanup(cancel)
	admin = &rest.Config{
		Host: fmt.Sprintf("https://127.0.0.1:%d", port), TLSClientConfig: rest.TLSClientConfig{CAData: serving.PEM()},
		QPS: -1,
	}
	admin.CertData, admin.KeyData, err = administrators.Client("local-admin", "system:masters")
	must(t, err)
	return admin, stop
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// get returns the status of a GET request, 0 if the server is unreachable.
func get(t *testing.T, client *http.Client, url string) int {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	must(t, err)
	response, err := client.Do(request)
	if err != nil {
		return 0
	}
	defer response.Body.Close()
	return response.StatusCode
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, time.Minute, true, func(
		context.Context,
	) (bool, error) {
		return condition(), nil
	})
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// TestExtensionServer runs an extension server from its flags to its end: it waits for its host, serves only its
// groups, creates objects in namespaces of the host only, and stops gracefully.
func TestExtensionServer(t *testing.T) {
	upstream.NeedsProcesses(t)
	pki, err := upstream.NewPKI(filepath.Join(t.TempDir(), "pki"))
	must(t, err)
	frontProxy, err := pki.WriteFrontProxy()
	must(t, err)
	host, err := upstream.StartQuorate(t.Context(), upstream.Options{
		Directory: t.TempDir(), PKI: pki, Arguments: frontProxy,
	})
	must(t, err)
	host.StopAfter(t)
	admin, stop := runExtension(t, host.Admin)
	client, err := rest.HTTPClientFor(admin)
	must(t, err)
	eventually(t, "the server is ready", func() bool { return get(t, client, admin.Host+"/readyz") == http.StatusOK })
	for path, want := range map[string]int{
		"/api": http.StatusNotFound, "/apis/apps/v1": http.StatusNotFound, "/apis/apiextensions.k8s.io/v1": http.StatusOK,
		"/openapi/v2": http.StatusOK, "/openapi/v3": http.StatusOK, "/metrics": http.StatusOK, "/version": http.StatusOK,
	} {
		if got := get(t, client, admin.Host+path); got != want {
			t.Errorf("%s: got the status %d, want %d", path, got, want)
		}
	}

	objects := dynamic.NewForConfigOrDie(admin)
	definition := &unstructured.Unstructured{}
	must(t, yaml.Unmarshal([]byte(reports), &definition.Object))
	definitions := objects.Resource(schema.GroupVersionResource{
		Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions",
	})
	_, err = definitions.Create(t.Context(), definition, metav1.CreateOptions{})
	must(t, err)
	other := &unstructured.Unstructured{}
	must(t,
		yaml.Unmarshal([]byte(strings.ReplaceAll(reports, "reports.example.com", "invoices.example.com")), &other.Object))
	if _, err = definitions.Create(t.Context(), other, metav1.CreateOptions{}); !apierrors.IsForbidden(err) &&
		!apierrors.IsInvalid(err) {
		t.Errorf("a definition of another group: %v", err)
	}
	report := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "reports.example.com/v1", "kind": "Report", "metadata": map[string]any{"name": "x"},
	}}
	resource := objects.Resource(schema.GroupVersionResource{
		Group: "reports.example.com", Version: "v1", Resource: "reports",
	})
	eventually(t, "an object is created in a namespace of the host", func() bool {
		_, err = resource.Namespace("default").Create(t.Context(), report, metav1.CreateOptions{})
		return err == nil
	})
	if _, err = resource.Namespace("missing").Create(
		t.Context(), report, metav1.CreateOptions{},
	); !apierrors.IsNotFound(err) {
		t.Errorf("an object in a missing namespace: %v", err)
	}
	eventually(t, "the group is published", func() bool {
		return get(t, client, admin.Host+"/apis/reports.example.com/v1") == http.StatusOK
	})
	if err := stop(); err != nil {
		t.Errorf("the server ended with %v", err)
	}
}

// TestCommandLine runs the command with flags with which it does not serve.
func TestCommandLine(t *testing.T) {
	for _, test := range []struct {
		arguments []string
		err       string // part of the message; empty if the command succeeds
	}{
		{[]string{"--help"}, ""},
		{[]string{"--version"}, ""},
		{[]string{"--version=raw"}, ""},
		{[]string{"--unknown"}, "unknown flag"},
		{[]string{"serve"}, "does not take any arguments"},
		{[]string{"--secure-port=-1"}, "secure-port"},
	} {
		err := Run(t.Context(), test.arguments)
		if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
			t.Errorf("%v: got the error %v, want %q", test.arguments, err, test.err)
		}
	}
}
