package endtoend

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/test/upstream"
)

// reports is a cluster that serves the group reports.example.com to the management API server.
const reports = `
apiVersion: quorate.dev/v1alpha1
kind: ApiServerCluster
metadata: {name: reports, namespace: default}
spec:
  mode: Extension
  replicas: 3
  certificates: {authorities: {overlap: 5s}}
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

// TestExtensionMode serves a group to the hosting cluster: clients of the host use the group there, and the host stays
// available after the cluster that serves it is deleted.
func TestExtensionMode(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	t.Parallel() // after TestSandbox, which asserts gaps
	s := startSandbox(t)
	t.Run("overlays", func(t *testing.T) { s.testOverlays(t) })
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

	s.changeBindings()
	s.apply(s.management, report)
	if output, err := s.try(s.management, "create", "-f", s.file(strings.ReplaceAll(report, "default", "missing"))); err ==
		nil ||
		!strings.Contains(output, `namespaces "missing" not found`) {
		t.Errorf("a report in a missing namespace: %v\n%s", err, output)
	}
	if got := s.run(s.management, "get", "reports", "monthly", "-o", "jsonpath={.spec.pages}"); got != "12" {
		t.Errorf("the report has %s pages, want 12", got)
	}
	if got := s.run(s.management, "explain", "reports.spec.pages"); !strings.Contains(got, "Number of pages.") {
		t.Errorf("kubectl explain: %s", got)
	}
	s.replaceAuthorities("reports", "v1.reports.example.com")
	s.run(s.management, "create", "namespace", "passing")
	s.apply(s.management, strings.ReplaceAll(report, "default", "passing"))
	s.run(s.management, "delete", "namespace", "passing", "--timeout=60s")
	if got := s.run(
		s.management, "get", "reports", "-A", "-o", "name",
	); strings.TrimSpace(got) != "report.reports.example.com/monthly" {
		t.Errorf("after the deletion of a namespace there are %q", got)
	}

	s.moveLedgers(s.adminOf("reports"), "host")
	s.run(s.management, "delete", "asc/reports", "--timeout=60s")
	if got := s.run(s.management, "get", "ledgers", "monthly", "-o", "jsonpath={.spec.pages}"); got != "12" {
		t.Errorf("after the end of the cluster, the ledger has %s pages, want 12", got)
	}
	s.waitFor("the host has no trace of the group", func() (bool, string) {
		left := s.run(s.management, "get", "apiservices", "v1.reports.example.com", "--ignore-not-found", "-o", "name")
		return left == "", left
	})
	s.checkPermissions()
}

// replaceAuthorities replaces the certificate authorities of a cluster that serves reports to the host, and then kills
// one of its replicas, while clients of the host update a report.
func (s *sandbox) replaceAuthorities(cluster, apiService string) {
	s.t.Helper()
	bundle := func() string {
		return s.run(s.management, "get", "apiservice", apiService, "-o", "jsonpath={.spec.caBundle}")
	}
	before := bundle()
	w := s.updateReport()
	s.quorate("rotate", "authorities", cluster)
	var stages []string
	s.waitFor("the replacement of the authorities", func() (bool, string) {
		object := &v1alpha1.ApiServerCluster{}
		check(s.t, s.clusters.Get(s.t.Context(), ctrl.ObjectKey{Namespace: "default", Name: cluster}, object))
		if rotations := object.Status.Rotations; rotations != nil && rotations.Authorities != nil {
			if stage := rotations.Authorities.Stage; !slices.Contains(stages, stage) {
				stages = append(stages, stage)
			}
			return false, fmt.Sprint(stages)
		}
		return len(stages) > 0, fmt.Sprint(stages)
	})
	if want := []string{v1alpha1.StageTrustBoth, v1alpha1.StageReissue,
		v1alpha1.StageDropOld}; !slices.Equal(stages, want) {
		s.t.Errorf("got stages %v, want %v", stages, want)
	}
	if bundle() == before {
		s.t.Error("the APIService has the former caBundle")
	}
	s.stopWriter(w, 0)

	w = s.updateReport()
	pod := cluster + "-1"
	restarts := s.restarts(pod)
	s.kill(pod)
	s.restarted(pod, restarts)
	s.run(s.management, "wait", "asc/"+cluster, "--for=jsonpath={.status.readyReplicas}=3", "--timeout=120s")
	s.stopWriter(w, 1) // the request in progress
}

// reportWriter updates a report until it is cancelled.
type reportWriter struct {
	cancel   context.CancelFunc
	done     sync.WaitGroup
	writes   atomic.Int64
	longest  time.Duration // longest write
	failures []error
}

func (s *sandbox) updateReport() *reportWriter {
	s.t.Helper()
	config := must(clientcmd.BuildConfigFromFlags("", s.management))(s.t)
	config.QPS = -1
	in := must(dynamic.NewForConfig(config))(s.t).
		Resource(schema.GroupVersionResource{Group: "reports.example.com", Version: "v1",
			Resource: "reports"}).Namespace("default")
	ctx, cancel := context.WithCancel(s.t.Context())
	w := &reportWriter{cancel: cancel}
	w.done.Go(func() {
		for ; ctx.Err() == nil; w.writes.Add(1) {
			patch := fmt.Appendf(nil, `{"metadata":{"labels":{"write":"%d"}}}`, w.writes.Load())
			began := time.Now()
			if _, err := in.Patch(ctx, "monthly", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil &&
				ctx.Err() == nil {
				w.failures = append(w.failures, err)
			}
			w.longest = max(w.longest, time.Since(began))
		}
	})
	return w
}

// stopWriter stops a writer after ten more writes, and checks the number of those that failed.
func (s *sandbox) stopWriter(w *reportWriter, allowed int) {
	s.t.Helper()
	before := w.writes.Load()
	s.waitFor("ten more writes", func() (bool, string) {
		return w.writes.Load() >= before+10, fmt.Sprint(w.writes.Load() - before)
	})
	w.cancel()
	w.done.Wait()
	s.t.Logf("%d of %d writes failed, the longest took %v", len(w.failures), w.writes.Load(),
		w.longest.Round(time.Millisecond))
	if len(w.failures) > allowed {
		s.t.Errorf("at most %d writes may fail: %v", allowed, errors.Join(w.failures...))
	}
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
	defer s.logSlow("the move to the "+to, time.Now())
	if output, err := command.CombinedOutput(); err != nil {
		s.t.Fatalf("move to the %s: %v\n%s", to, err, output)
	}
	if after := uid(); (after == before) != (to == "extension") {
		s.t.Errorf("the UID after the move to the %s is %s, before it was %s", to, after, before)
	}
}

// changeBindings removes the subjects of the bindings of the API servers' ServiceAccount, which the operator restores.
func (s *sandbox) changeBindings() {
	s.t.Helper()
	const label = "quorate.dev/cluster=reports"
	names := strings.Fields(s.run(s.management, "get", "clusterrolebindings,rolebindings", "-A", "-l", label, "-o",
		`go-template={{range .items}}{{.kind}}/{{.metadata.name}}{{"\n"}}{{end}}`))
	if len(names) != 3 {
		s.t.Fatalf("bindings of the API servers: %v", names)
	}
	for _, name := range names {
		s.run(s.management, "patch", "-n", "kube-system", name, "--type=merge", "-p", `{"subjects":null}`)
	}
	s.run(s.management, "annotate", "asc/reports", "example.com/reconcile=now")
	s.waitFor("the subjects of the bindings", func() (bool, string) {
		subjects := s.run(s.management, "get", "clusterrolebindings,rolebindings", "-A", "-l", label, "-o",
			`go-template={{range .items}}{{range .subjects}}{{.name}} {{end}}{{end}}`)
		return len(strings.Fields(subjects)) == 3, subjects
	})
}

// aggregated registers an extension API server, which runs outside the sandbox, in demo.
const aggregated = `{"spec":{"aggregation":{"apiServices":[{"group":"reports.example.com","version":"v1","address":"%s",
	"serviceRef":{"name":"reports","namespace":"reports"},"caBundle":{"secretRef":{"name":"reports-ca"},"key":"ca.crt"}}]}}}`

// testAggregation declares the APIService of an extension API server, with an IP address and with a host name, uses
// its group through demo, replaces the authority of its certificate, and removes it.
func (s *sandbox) testAggregation(t *testing.T) {
	address := upstream.GlobalAddress(t)
	if address == "" {
		t.Skip("this machine has only loopback addresses, which are invalid in EndpointSlices")
	}
	port, secret := s.serveReports(t, address)
	other := must(upstream.NewAuthority("other"))(t)
	secret.Data["ca.crt"] = append(bytes.Clone(secret.Data["ca.crt"]), other.PEM()...)
	must(s.pods.CoreV1().Secrets("default").Update(t.Context(), secret, metav1.UpdateOptions{}))(t)
	s.waitFor("the caBundle has both authorities", func() (bool, string) {
		bundle := s.run(s.demo, "get", "apiservice", "v1.reports.example.com", "-o",
			"go-template={{.spec.caBundle|base64decode}}")
		return strings.Count(bundle, "BEGIN CERTIFICATE") == 2, bundle
	})
	host := strings.ReplaceAll(address, ".", "-") + ".default.pod"
	s.run(s.management, "patch", "asc/demo", "--type=merge", "-p", fmt.Sprintf(aggregated, net.JoinHostPort(host, port)))
	s.waitFor("an endpoint with the host name", func() (bool, string) {
		name := s.run(s.demo, "get", "endpointslice", "-n", "reports", "-o", "jsonpath={.items[*].endpoints[0].addresses[0]}")
		return name == host, name
	})
	s.run(s.management, "wait", "asc/demo", "--for=condition=APIServicesAvailable", "--timeout=120s")
	s.waitFor("the report", func() (bool, string) {
		pages, err := s.try(s.demo, "get", "reports", "monthly", "-o", "jsonpath={.spec.pages}")
		return err == nil && pages == "12", pages
	})

	s.run(s.management, "patch", "asc/demo", "--type=merge", "-p", `{"spec":{"aggregation":null}}`)
	s.waitFor("demo has no trace of the group", func() (bool, string) {
		left := s.run(s.demo, "get", "apiservice/v1.reports.example.com", "-n", "reports", "service/reports",
			"--ignore-not-found", "-o", "name")
		return left == "", left
	})
}

// serveReports starts an extension API server outside the sandbox, which uses demo for authorization, and declares its
// APIService in demo. It returns the port of the server, and the Secret with the authority of its certificate.
func (s *sandbox) serveReports(t *testing.T, address string) (port string, secret *corev1.Secret) {
	t.Helper()
	serving, administrators := must(upstream.NewAuthority("serving"))(t), must(upstream.NewAuthority("administrators"))(t)
	directory := t.TempDir()
	authority := filepath.Join(directory, "administrators.crt")
	check(t, os.WriteFile(authority, administrators.PEM(), 0o600))
	server := must(upstream.StartExtension(t.Context(), upstream.ExtensionOptions{
		Directory: directory, Serving: serving, Names: []string{"reports.reports.svc"},
		Arguments: []string{
			"--extension-groups=reports.example.com", "--kubeconfig=" + s.demo,
			"--client-ca-file=" + authority, "--bind-address=0.0.0.0",
		},
	}))(t)
	server.StopAfter(t)
	config := rest.CopyConfig(server.Admin)
	var err error
	config.CertData, config.KeyData, err = administrators.Client("administrator", "system:masters")
	check(t, err)
	s.define(config)

	secret = &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "reports-ca"}, Data: map[string][]byte{"ca.crt": serving.PEM()},
	}
	must(s.pods.CoreV1().Secrets("default").Create(t.Context(), secret, metav1.CreateOptions{}))(t)
	port = must(url.Parse(server.Admin.Host))(t).Port()
	s.run(s.management, "patch", "asc/demo", "--type=merge", "-p",
		fmt.Sprintf(aggregated, net.JoinHostPort(address, port)))
	s.run(s.management, "wait", "asc/demo", "--for=condition=APIServicesAvailable", "--timeout=120s")
	s.apply(s.demo, report)
	if got := s.run(s.demo, "get", "reports", "monthly", "-o", "jsonpath={.spec.pages}"); got != "12" {
		t.Errorf("the report has %s pages, want 12", got)
	}
	return port, secret
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
	s.run(kubeconfig, "apply", "-f", s.file(manifest))
}

// file returns a file with a manifest.
func (s *sandbox) file(manifest string) string {
	s.t.Helper()
	file := filepath.Join(s.t.TempDir(), "manifest.yaml")
	check(s.t, os.WriteFile(file, []byte(manifest), 0o600))
	return file
}

// adminOf returns the administrator's kubeconfig of a cluster, for this machine.
func (s *sandbox) adminOf(name string) string {
	s.t.Helper()
	address := s.run(s.management, "get", "service", name, "-o", "jsonpath={.spec.clusterIP}")
	file := filepath.Join(s.t.TempDir(), name+".kubeconfig")
	content := s.run(s.management, "get", "secret", name+"-admin-kubeconfig", "-o",
		"go-template={{.data.kubeconfig|base64decode}}")
	check(s.t, os.WriteFile(file, []byte(content), 0o600))
	cluster := strings.TrimSpace(s.run(file, "config", "view", "-o", "jsonpath={.clusters[0].name}"))
	s.run(file, "config", "set-cluster", cluster, fmt.Sprintf("--server=https://%s:6443", address),
		fmt.Sprintf("--tls-server-name=%s.default.svc", name))
	return file
}
