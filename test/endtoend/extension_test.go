package endtoend

import (
	"bytes"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"quorate.dev/test/upstream"
)

// reports is a cluster that serves the group reports.example.com to the management plane.
const reports = `
apiVersion: quorate.dev/v1alpha1
kind: ApiServerCluster
metadata: {name: reports, namespace: default}
spec:
  mode: Extension
  replicas: 1
  extension:
    groups:
    - {name: reports.example.com, versions: [v1]}
    - {name: ledgers.example.com, versions: [v1]}
`

const reportsDefinition = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: reports.reports.example.com}
spec:
  group: reports.example.com
  scope: Namespaced
  names: {plural: reports, singular: report, kind: Report}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {pages: {type: integer, description: Number of pages.}}}}}}
`

const report = `
apiVersion: reports.example.com/v1
kind: Report
metadata: {name: monthly, namespace: default}
spec: {pages: 12}
`

// TestExtensionMode serves a group to the hosting cluster: its clients use the group there, and the host survives the end
// of the cluster that serves it.
func TestExtensionMode(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a whole sandbox")
	}
	s := startSandbox(t)
	t.Run("aggregation", func(t *testing.T) { s.testAggregation(t) })
	ledgersToReports := strings.NewReplacer("reports", "ledgers", "Report", "Ledger", "report", "ledger")
	s.apply(s.management, ledgersToReports.Replace(reportsDefinition))
	s.run(s.management, "wait", "crd/ledgers.ledgers.example.com", "--for=condition=Established", "--timeout=60s")
	s.apply(s.management, ledgersToReports.Replace(report))
	s.apply(s.management, reports)
	s.run(s.management, "wait", "asc/reports", "--for=condition=Available", "--timeout=120s")
	kubeconfig := s.adminOf("reports")
	s.apply(kubeconfig, reportsDefinition)
	s.waitFor("the conflict with the host's definition", func() (bool, string) {
		reason := s.run(s.management, "get", "asc", "reports", "-o",
			`jsonpath={.status.apiServices[?(@.name=="v1.ledgers.example.com")].reason}`)
		return reason == "Conflict", reason
	})
	s.moveLedgers(kubeconfig, "extension")
	s.run(s.management, "wait", "asc/reports", "--for=condition=APIServicesAvailable", "--timeout=120s")

	s.apply(s.management, report)
	if got := s.run(s.management, "get", "reports", "monthly", "-o", "jsonpath={.spec.pages}"); got != "12" {
		t.Errorf("the report has %s pages, want 12", got)
	}
	if got := s.run(s.management, "explain", "reports.spec.pages"); !strings.Contains(got, "Number of pages.") {
		t.Errorf("kubectl explain: %s", got)
	}
	s.run(s.management, "create", "namespace", "passing")
	s.apply(s.management, strings.ReplaceAll(report, "default", "passing"))
	s.run(s.management, "delete", "namespace", "passing", "--timeout=60s")
	if got := s.run(s.management, "get", "reports", "-A", "-o", "name"); strings.TrimSpace(got) != "report.reports.example.com/monthly" {
		t.Errorf("after the deletion of a namespace there are %q", got)
	}

	s.moveLedgers(kubeconfig, "host")
	s.run(s.management, "delete", "asc/reports", "--timeout=60s")
	if got := s.run(s.management, "get", "ledgers", "monthly", "-o", "jsonpath={.spec.pages}"); got != "12" {
		t.Errorf("after the end of the cluster, the ledger has %s pages, want 12", got)
	}
	s.waitFor("the host has no trace of the group", func() (bool, string) {
		left := s.run(s.management, "get", "apiservices", "v1.reports.example.com", "--ignore-not-found", "-o", "name")
		return left == "", left
	})
}

// moveLedgers moves a group of the host into the cluster reports, or back.
func (s *sandbox) moveLedgers(kubeconfig, to string) {
	s.t.Helper()
	uid := func() string {
		return s.run(s.management, "get", "ledgers", "monthly", "-o", "jsonpath={.metadata.uid}")
	}
	before := uid()
	command := exec.CommandContext(s.t.Context(), must(upstream.Quorate(s.t.Context()))(s.t), "extension", "move",
		"ledgers.example.com", "--to="+to, "--cluster=default/reports", "--settle=2s",
		"--kubeconfig="+s.management, "--extension-kubeconfig="+kubeconfig)
	if output, err := command.CombinedOutput(); err != nil {
		s.t.Fatalf("move to the %s: %v\n%s", to, err, output)
	}
	if after := uid(); (after == before) != (to == "extension") {
		s.t.Errorf("the UID after the move to the %s is %s, before it was %s", to, after, before)
	}
}

// aggregated registers an extension API server, which runs beside the sandbox, in demo.
const aggregated = `{"spec":{"aggregation":{"apiServices":[{"group":"reports.example.com","version":"v1","address":"%s",
	"serviceRef":{"name":"reports","namespace":"reports"},"caBundle":{"secretRef":{"name":"reports-ca"},"key":"ca.crt"}}]}}}`

// testAggregation declares the APIService of an extension API server, uses its group through demo, replaces the authority
// of its certificate, and removes it.
func (s *sandbox) testAggregation(t *testing.T) {
	address := upstream.GlobalAddress(t)
	if address == "" {
		t.Skip("this machine has only loopback addresses, which are invalid in EndpointSlices")
	}
	serving, administrators := must(upstream.NewAuthority("serving"))(t), must(upstream.NewAuthority("administrators"))(t)
	directory := t.TempDir()
	authority := filepath.Join(directory, "administrators.crt")
	check(t, os.WriteFile(authority, administrators.PEM(), 0o600))
	server := must(upstream.StartExtension(t.Context(), upstream.ExtensionOptions{
		Directory: directory, Serving: serving, Names: []string{"reports.reports.svc"},
		Arguments: []string{
			"--extension-groups=reports.example.com", "--kubeconfig=" + s.demo, "--client-ca-file=" + authority, "--bind-address=0.0.0.0",
		},
	}))(t)
	server.StopAfter(t)
	config := rest.CopyConfig(server.Admin)
	var err error
	config.CertData, config.KeyData, err = administrators.Client("administrator", "system:masters")
	check(t, err)
	s.define(config)

	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "reports-ca"}, Data: map[string][]byte{"ca.crt": serving.PEM()}}
	must(s.pods.CoreV1().Secrets("default").Create(t.Context(), secret, metav1.CreateOptions{}))(t)
	port := must(url.Parse(server.Admin.Host))(t).Port()
	s.run(s.management, "patch", "asc/demo", "--type=merge", "-p", fmt.Sprintf(aggregated, net.JoinHostPort(address, port)))
	s.run(s.management, "wait", "asc/demo", "--for=condition=APIServicesAvailable", "--timeout=120s")
	s.apply(s.demo, report)
	if got := s.run(s.demo, "get", "reports", "monthly", "-o", "jsonpath={.spec.pages}"); got != "12" {
		t.Errorf("the report has %s pages, want 12", got)
	}

	other := must(upstream.NewAuthority("other"))(t)
	secret.Data["ca.crt"] = append(bytes.Clone(serving.PEM()), other.PEM()...)
	must(s.pods.CoreV1().Secrets("default").Update(t.Context(), secret, metav1.UpdateOptions{}))(t)
	s.waitFor("the caBundle has both authorities", func() (bool, string) {
		bundle := s.run(s.demo, "get", "apiservice", "v1.reports.example.com", "-o", "go-template={{.spec.caBundle|base64decode}}")
		return strings.Count(bundle, "BEGIN CERTIFICATE") == 2, bundle
	})

	s.run(s.management, "patch", "asc/demo", "--type=merge", "-p", `{"spec":{"aggregation":null}}`)
	s.waitFor("demo has no trace of the group", func() (bool, string) {
		left := s.run(s.demo, "get", "apiservice/v1.reports.example.com", "-n", "reports", "service/reports", "--ignore-not-found", "-o", "name")
		return left == "", left
	})
}

// define creates the definition of reports and waits until it is served.
func (s *sandbox) define(config *rest.Config) {
	s.t.Helper()
	file := filepath.Join(s.t.TempDir(), "extension.kubeconfig")
	check(s.t, upstream.WriteKubeconfig(file, config))
	s.apply(file, reportsDefinition)
	s.run(file, "wait", "crd/reports.reports.example.com", "--for=condition=Established", "--timeout=60s")
}

// apply applies a manifest.
func (s *sandbox) apply(kubeconfig, manifest string) {
	s.t.Helper()
	file := filepath.Join(s.t.TempDir(), "manifest.yaml")
	check(s.t, os.WriteFile(file, []byte(manifest), 0o600))
	s.run(kubeconfig, "apply", "-f", file)
}

// adminOf returns the administrator's kubeconfig of a cluster, for this machine.
func (s *sandbox) adminOf(name string) string {
	s.t.Helper()
	address := s.run(s.management, "get", "service", name, "-o", "jsonpath={.spec.clusterIP}")
	file := filepath.Join(s.t.TempDir(), name+".kubeconfig")
	content := s.run(s.management, "get", "secret", name+"-admin-kubeconfig", "-o", "go-template={{.data.kubeconfig|base64decode}}")
	check(s.t, os.WriteFile(file, []byte(content), 0o600))
	cluster := strings.TrimSpace(s.run(file, "config", "view", "-o", "jsonpath={.clusters[0].name}"))
	s.run(file, "config", "set-cluster", cluster, fmt.Sprintf("--server=https://%s:6443", address),
		fmt.Sprintf("--tls-server-name=%s.default.svc", name))
	return file
}
