// Package metrics compares the exported metrics with the stable and beta metrics of Kubernetes.
package metrics

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"math"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"

	"quorate.dev/test/upstream"
)

// exceptions are metrics that this server does not export, by prefix, with the reason.
var exceptions = map[string]string{
	"apiserver_admission_webhook_":                "measured with the webhooks of admission",
	"apiserver_authentication_config_controller_": "measured with --authentication-config",
	"apiserver_authorization_config_controller_":  "measured with --authorization-config",
	"apiserver_flowcontrol_rejected_":             "exists when a priority level is full",
	"apiserver_request_terminations_":             "exists when a request has been terminated",
	"apiserver_storage_objects":                   "hidden since 1.37",
	"apiserver_validating_admission_policy_":      "measured with the policies of admission",
	"etcd_network_peer_":                          "exists with several members",
}

func TestStableMetrics(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	directory := t.TempDir()
	pki, err := upstream.NewPKI(filepath.Join(directory, "pki"))
	if err != nil {
		t.Fatal(err)
	}
	server, err := upstream.StartQuorate(t.Context(), upstream.Options{PKI: pki, Directory: directory})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	use(t, server.Admin)
	exported := scrape(t, server.Admin)
	for _, p := range promised(t) {
		reason := exception(p.name)
		family := exported[p.name]
		switch {
		case family == nil && reason == "":
			t.Errorf("%s is missing", p.name)
		case family != nil:
			compare(t, p, family)
		}
	}
	for _, name := range []string{
		"etcd_request_duration_seconds", "etcd_requests_total", "apiserver_resource_objects",
		"apiserver_request_sli_duration_seconds", "apiserver_client_certificate_expiration_seconds", "go_goroutines",
		"process_cpu_seconds_total", "process_resident_memory_bytes", "etcd_server_has_leader",
		"etcd_server_leader_changes_seen_total", "etcd_server_proposals_failed_total", "etcd_disk_wal_fsync_duration_seconds",
		"etcd_disk_backend_commit_duration_seconds", "etcd_mvcc_db_total_size_in_bytes",
		"etcd_network_client_grpc_received_bytes_total", "grpc_server_handled_total",
	} {
		if exported[name] == nil {
			t.Errorf("%s, which dashboards rely on, is missing", name)
		}
	}
	for _, name := range named(t) {
		if exported[name] == nil && exported[histogram(name)] == nil && exception(name) == "" {
			t.Errorf("%s, which rules or dashboards of release/monitoring query, is missing", name)
		}
	}
	checkMixins(t, exported)
	if got := quantiles(
		exported["apiserver_admission_step_admission_duration_seconds_summary"],
	); !slices.Equal(got, []float64{0.5, 0.9, 0.99}) {
		t.Errorf("the summary of admission has quantiles %v", got)
	}
	if value(exported["apiserver_resource_objects"], "resource", "namespaces") < 4 {
		t.Error("namespaces are not counted")
	}
	if value(exported["apiserver_storage_size_bytes"], "storage_cluster_id", "etcd-0") <= 0 {
		t.Error("the database has no size")
	}
	if value(exported["kubernetes_feature_enabled"], "name", "APIServerIdentity") != 1 ||
		value(exported["kubernetes_feature_enabled"], "name", "AllAlpha") != 0 {
		t.Error("features are not told of")
	}
	if value(exported["apiserver_requested_deprecated_apis"], "resource", "endpoints") != 1 {
		t.Error("the use of a deprecated API is not noted")
	}
	useStrangeNames(t, server.Admin)
	useCertificates(t, server.Admin)
	useSecurePods(t, server.Admin)
	awaitGraph(t, server.Admin)
	forget(t, server.Admin)
}

// useStrangeNames sends requests with a name of the client's choice in each part, and checks that no series has it.
func useStrangeNames(t *testing.T, config *rest.Config) {
	t.Helper()
	const strange = "strange"
	strangeConfig := rest.CopyConfig(config)
	strangeConfig.UserAgent = strange
	for _, path := range []string{
		"/strange", "/healthz/strange", "/apis/strange", "/apis/strange/v1", "/apis/strange/v1/strange",
		"/apis/apps/strange/deployments", "/api/v1/strange", "/api/v1/namespaces/strange", "/api/v1/namespaces/strange/pods",
		"/api/v1/namespaces/strange/pods/strange", "/api/v1/namespaces/default/pods/strange/strange",
		"/api/v1/namespaces/default/configmaps?dryRun=strange",
		"/api/v1/namespaces/default/configmaps/a?fieldValidation=strange&fieldManager=strange", "/api/strange/configmaps",
		"/api/v1/configmaps?labelSelector=strange&fieldSelector=metadata.name=strange",
	} {
		for _, method := range []string{"GET", "POST", "PUT", "PATCH", "DELETE", "STRANGE", "OPTIONS"} {
			send(t, strangeConfig, method, path, `{"kind":"strange","apiVersion":"strange","metadata":{"name":"strange"}}`)
		}
	}
	impersonating := rest.CopyConfig(strangeConfig)
	impersonating.Impersonate = rest.ImpersonationConfig{UserName: strange, Groups: []string{strange}}
	send(t, impersonating, http.MethodGet, "/api/v1/namespaces", "")
	for name, family := range scrape(t, config) {
		for _, metric := range family.Metric {
			for _, label := range metric.Label {
				if strings.Contains(strings.ToLower(label.GetValue()), strange) {
					t.Errorf("%s has the label %s=%q of a request", name, label.GetName(), label.GetValue())
				}
			}
		}
	}
}

// useSecurePods creates pods that pod security allows, denies and warns about.
func useSecurePods(t *testing.T, config *rest.Config) {
	t.Helper()
	do(t, config, http.MethodPost, "/api/v1/namespaces", `{"metadata":{"name":"restricted","labels":{
		"pod-security.kubernetes.io/enforce":"restricted","pod-security.kubernetes.io/warn":"baseline"}}}`)
	const pod = `{"metadata":{"name":"a"},"spec":{"containers":[{"name":"a","image":"b"}]}}`
	do(t, config, http.MethodPost, "/api/v1/namespaces/default/pods", pod)
	code, answer := send(t, config, http.MethodPost, "/api/v1/namespaces/restricted/pods", pod)
	if code != http.StatusForbidden {
		t.Errorf("a pod that pod security refuses: %d %s", code, answer)
	}
	exported := scrape(t, config)
	for decision, want := range map[string]float64{
		"mode=enforce decision=allow policy_level=privileged resource=pod request_operation=create": 1,
		"mode=enforce decision=deny policy_level=restricted resource=pod request_operation=create":  1,
	} {
		if got := counted(exported["pod_security_evaluations_total"], decision); got != want {
			t.Errorf("pod security evaluated %v pods with %s, want %v", got, decision, want)
		}
	}
	if exported["pod_security_exemptions_total"] == nil {
		t.Error("pod security counts no exemptions")
	}
}

// useCertificates issues certificates and checks that they are counted.
func useCertificates(t *testing.T, config *rest.Config) {
	t.Helper()
	issueCertificates(t, config)
	exported := scrape(t, config)
	for label, want := range map[string][2]float64{
		"signerName=kubernetes.io/kube-apiserver-client": {2, 1}, "signerName=other": {2, 1},
	} {
		requested := counted(exported["apiserver_certificates_registry_csr_requested_duration_total"], label)
		honored := counted(exported["apiserver_certificates_registry_csr_honored_duration_total"], label)
		if got := [2]float64{requested, honored}; got != want {
			t.Errorf("certificates with a duration of %s: requested and honored %v, want %v", label, got, want)
		}
	}
}

// issueCertificates issues certificates for a duration that is honored, and for one that is not.
func issueCertificates(t *testing.T, config *rest.Config) {
	t.Helper()
	const path = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
	request, certificate := newCertificate(t, time.Hour)
	for i, seconds := range []int{3600, 86400} {
		for _, signer := range []string{"kubernetes.io/kube-apiserver-client", "example.com/one"} {
			name := fmt.Sprintf("request-%d-%s", i, strings.ReplaceAll(signer, "/", "-"))
			body := fmt.Sprintf(`{"apiVersion":"certificates.k8s.io/v1","kind":"CertificateSigningRequest",
				"metadata":{"name":%q},"spec":{"signerName":%q,"expirationSeconds":%d,"usages":["client auth"],"request":%q}}`,
				name, signer, seconds, request)
			do(t, config, http.MethodPost, path, body)
			patch := func(subresource, body string) {
				do(t, config, http.MethodPatch, path+"/"+name+"/"+subresource, body)
			}
			patch("approval", `{"status":{"conditions":[{"type":"Approved","status":"True","reason":"Test"}]}}`)
			patch("status", fmt.Sprintf(`{"status":{"certificate":%q}}`, certificate))
			const seen = `{"type":"Seen","status":"True"}`
			patch("status", `[{"op":"add","path":"/status/conditions/-","value":`+seen+`}]`) // the certificate exists by now
		}
	}
}

// newCertificate returns a request and a certificate in the encoding of the API.
func newCertificate(t *testing.T, life time.Duration) (request, certificate string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	subject := pkix.Name{CommonName: "a"}
	asked, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: subject}, key)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: subject, NotBefore: time.Now(), NotAfter: time.Now().Add(life),
	}
	issued, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	encode := func(kind string, der []byte) string {
		return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	return encode("CERTIFICATE REQUEST", asked), encode("CERTIFICATE", issued)
}

// counted adds up the counters of a family that have the labels given, as "name=value name=value".
func counted(family *dto.MetricFamily, labels string) (sum float64) {
	for _, metric := range family.GetMetric() {
		has := map[string]string{}
		for _, pair := range metric.Label {
			has[pair.GetName()] = pair.GetValue()
		}
		matches := true
		for _, label := range strings.Fields(labels) {
			name, value, _ := strings.Cut(label, "=")
			matches = matches && has[name] == value
		}
		if matches {
			sum += metric.GetCounter().GetValue()
		}
	}
	return sum
}

// awaitGraph binds a pod to a node, and waits until the Node authorizer has measured the update of its graph.
func awaitGraph(t *testing.T, config *rest.Config) {
	t.Helper()
	do(t, config, http.MethodPost, "/api/v1/namespaces/default/pods",
		`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"bound"},"spec":{"nodeName":"n","containers":[{"name":"c","image":"i"}]}}`)
	const name = "node_authorizer_graph_actions_duration_seconds"
	noted := func(context.Context) (bool, error) {
		family := scrape(t, config)[name]
		return family != nil && slices.ContainsFunc(family.Metric, func(m *dto.Metric) bool {
			return m.Label[0].GetValue() == "AddPod" && m.Histogram.GetSampleCount() > 0 && len(m.Histogram.Bucket) > 10
		}), nil
	}
	if err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, 20*time.Second, true, noted); err != nil {
		t.Errorf("%s: %v", name, err)
	}
}

// forget resets the metrics and checks that they are counted again.
func forget(t *testing.T, config *rest.Config) {
	t.Helper()
	do(t, config, http.MethodDelete, "/metrics", "")
	if value(scrape(t, config)["apiserver_requested_deprecated_apis"], "resource", "endpoints") == 1 {
		t.Error("the use of a deprecated API is not forgotten")
	}
	use(t, config)
	exported := scrape(t, config)
	for _, name := range []string{
		"apiserver_request_total", "apiserver_request_duration_seconds", "apiserver_response_sizes",
		"apiserver_admission_step_admission_duration_seconds",
	} {
		if exported[name] == nil {
			t.Errorf("%s is not measured any more", name)
		}
	}
	if attempts := exported["authentication_attempts"]; attempts == nil || counted(attempts, "") == 0 {
		t.Error("authentication is not measured any more")
	}
}

// named returns the metrics of API servers that the rules and dashboards query.
func named(t *testing.T) (names []string) {
	t.Helper()
	text, err := os.ReadFile("../../release/monitoring/metrics.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if name, found := strings.CutPrefix(strings.TrimSpace(line), "apiserver "); found {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		t.Fatal("no metrics of API servers are queried")
	}
	return names
}

// histogram returns the name of the family of a series of a histogram.
func histogram(name string) string {
	for _, suffix := range []string{"_bucket", "_count", "_sum"} {
		name = strings.TrimSuffix(name, suffix)
	}
	return name
}

func exception(name string) string {
	for prefix, reason := range exceptions {
		if strings.HasPrefix(name, prefix) {
			return reason
		}
	}
	return ""
}

// compare checks type and labels.
func compare(t *testing.T, p promise, family *dto.MetricFamily) {
	t.Helper()
	if kind := family.GetType().String(); !strings.EqualFold(kind, p.kind) {
		t.Errorf("%s is a %s, want %s", p.name, kind, p.kind)
	}
	if got := labels(family); p.name != "kubernetes_build_info" && !slices.Equal(got, p.labels) {
		t.Errorf("%s has labels %v, want %v", p.name, got, p.labels)
	}
}

// quantiles are the quantiles of a summary, which upstream does not list.
func quantiles(family *dto.MetricFamily) (quantiles []float64) {
	if len(family.GetMetric()) == 0 {
		return nil
	}
	for _, quantile := range family.Metric[0].GetSummary().GetQuantile() {
		quantiles = append(quantiles, quantile.GetQuantile())
	}
	return quantiles
}

// value returns the value of the metric with the label given.
func value(family *dto.MetricFamily, name, label string) float64 {
	for _, metric := range family.GetMetric() {
		for _, pair := range metric.Label {
			if pair.GetName() == name && pair.GetValue() == label {
				return metric.GetGauge().GetValue()
			}
		}
	}
	return math.NaN()
}

// use sends requests that are counted by the metrics.
func use(t *testing.T, config *rest.Config) {
	t.Helper()
	send(t, rest.AnonymousClientConfig(config), http.MethodGet, "/version", "") // an administrator is exempt from fairness
	for _, path := range []string{
		"/readyz", "/api/v1/namespaces", "/api/v1/namespaces/default", "/api/v1/namespaces/default/endpoints",
	} {
		get(t, config, path)
	}
	get(t, config,
		"/api/v1/namespaces?watch=1&timeoutSeconds=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true")
	do(t, config, http.MethodPost, "/api/v1/namespaces/default/configmaps?dryRun=All",
		`{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a"}}`)
	limited := rest.CopyConfig(config) // the administrator is exempt from priority and fairness
	limited.Impersonate = rest.ImpersonationConfig{UserName: "jane", Groups: []string{"system:authenticated"}}
	get(t, limited, "/version")
}

func get(t *testing.T, config *rest.Config, path string) []byte {
	t.Helper()
	return do(t, config, http.MethodGet, path, "")
}

func do(t *testing.T, config *rest.Config, method, path, body string) []byte {
	t.Helper()
	code, answer := send(t, config, method, path, body)
	if code >= http.StatusMultipleChoices {
		t.Fatalf("%s: %d\n%s", path, code, answer)
	}
	return answer
}

// send sends a request and ignores the response.
func send(t *testing.T, config *rest.Config, method, path, body string) (int, []byte) {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), method, config.Host+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	switch {
	case method == http.MethodPatch && strings.HasPrefix(body, "["):
		request.Header.Set("Content-Type", "application/json-patch+json")
	case method == http.MethodPatch:
		request.Header.Set("Content-Type", "application/merge-patch+json")
	}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return response.StatusCode, answer
}

// scrape reads both pages of metrics.
func scrape(t *testing.T, config *rest.Config) map[string]*dto.MetricFamily {
	t.Helper()
	all := map[string]*dto.MetricFamily{}
	for _, path := range []string{"/metrics", "/metrics/slis"} {
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, err := parser.TextToMetricFamilies(strings.NewReader(string(get(t, config, path))))
		if err != nil {
			t.Fatal(fmt.Errorf("%s is malformed: %w", path, err))
		}
		maps.Copy(all, families)
	}
	return all
}
