package endtoend

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/yaml"

	"quorate.dev/operator/api/v1alpha1"
)

// expectations are the contents of testdata/alerts.yaml.
type expectations struct {
	Faults      []expectation     `json:"faults"`
	NotCaused   map[string]string `json:"notCaused"` // reasons, by alert
	EmptyPanels []emptyPanel      `json:"emptyPanels"`
}

// expectation lists the alerts that a fault raises.
type expectation struct {
	Fault        string   `json:"fault"`
	Alerts       []string `json:"alerts"`       // all of these fire
	Consequences []string `json:"consequences"` // these may fire, too
}

func readExpectations(t *testing.T) (e expectations) {
	t.Helper()
	check(t, yaml.UnmarshalStrict(must(os.ReadFile("testdata/alerts.yaml"))(t), &e))
	return e
}

// TestFaultsRaiseAllAlerts checks that TestPrometheus causes each alert, or that testdata/alerts.yaml has the reason
// why it does not.
func TestFaultsRaiseAllAlerts(t *testing.T) {
	e := readExpectations(t)
	raised := map[string]bool{}
	for _, fault := range e.Faults {
		if faults[fault.Fault] == nil {
			t.Errorf("nothing causes %q", fault.Fault)
		}
		for _, alert := range fault.Alerts {
			raised[alert] = true
		}
	}
	var file struct {
		Groups []struct{ Rules []struct{ Alert string } }
	}
	check(t, yaml.Unmarshal(must(os.ReadFile(monitoring+"rules.yaml"))(t), &file))
	known := map[string]bool{"": true}
	for _, group := range file.Groups {
		for _, rule := range group.Rules {
			known[rule.Alert] = true
			if rule.Alert != "" && raised[rule.Alert] == (e.NotCaused[rule.Alert] != "") {
				t.Errorf("%s: caused by a fault: %t, a reason why not: %q", rule.Alert, raised[rule.Alert], e.NotCaused[rule.Alert])
			}
		}
	}
	for _, fault := range e.Faults {
		for _, alert := range slices.Concat(fault.Alerts, fault.Consequences) {
			if !known[alert] {
				t.Errorf("%q expects %s, which does not exist", fault.Fault, alert)
			}
		}
	}
}

// TestPrometheus scrapes a sandbox with the Prometheus in $QUORATE_PROMETHEUS. Without a fault no alert fires for ten
// minutes, each fault in testdata/alerts.yaml raises its alerts and no others, and the queries of all dashboards have
// results. $QUORATE_SPEED divides the durations in the rules and the scrape interval, so that a minute takes seconds.
func TestPrometheus(t *testing.T) {
	binary := os.Getenv("QUORATE_PROMETHEUS")
	if binary == "" {
		t.Skip("takes a quarter of an hour; set QUORATE_PROMETHEUS to the binary")
	}
	s := startSandbox(t)
	s.settled(3, 3)
	p := s.startPrometheus(binary)
	p.prepare()
	p.await("all targets to be scraped", func() (bool, string) {
		up := p.query(`up == 1`)
		return len(up) == 4, fmt.Sprint(up)
	})
	p.await("ratios of requests", func() (bool, string) {
		return len(p.query("namespace_cluster:apiserver_request_slow:ratio_rate3d")) == 1, ""
	})
	p.step("peace", func() { p.noAlerts(10 * time.Minute / p.speed) })
	for _, count := range []string{
		`count by (cluster) ({__name__=~"quorate_.+",job="quorate-operator-metrics"})`, "scrape_samples_scraped",
	} {
		t.Logf("%s: %s", count, p.query(count))
	}
	p.queryDashboards()
	e := readExpectations(t)
	caused := 0
	for i, fault := range e.Faults {
		p.step(fault.Fault, func() {
			caused++
			repair := faults[fault.Fault](p)
			defer repair()
			p.raises(fault)
			p.queryDashboards()
		})
		if i+1 < len(e.Faults) {
			p.step("repaired", func() { p.settles(fault) })
		}
	}
	if caused == len(e.Faults) { // false if -run selects some of the faults
		p.checkDashboards(e.EmptyPanels)
	}
}

const monitoring = "../../config/monitoring/"

// prometheus is a running Prometheus that scrapes the operator and the API servers of demo.
type prometheus struct {
	s         *sandbox
	directory string
	url       string
	speed     time.Duration // divisor of durations
	answered  map[string]bool
}

// defaultSpeed shortens a minute to two seconds. With a higher speed, scrapes are late on a machine under load.
const defaultSpeed = 30

// startPrometheus starts Prometheus with the rules and the scrape configuration of the repository.
func (s *sandbox) startPrometheus(binary string) *prometheus {
	s.t.Helper()
	p := &prometheus{s: s, directory: s.t.TempDir(), speed: defaultSpeed, answered: map[string]bool{}}
	if speed, err := strconv.Atoi(os.Getenv("QUORATE_SPEED")); err == nil {
		p.speed = time.Duration(speed)
	}
	p.grantAccess()
	p.refresh()
	file := filepath.Join(p.directory, "prometheus.yml")
	check(s.t, os.WriteFile(file, must(yaml.Marshal(p.configuration()))(s.t), 0o600))
	generator := exec.CommandContext(s.t.Context(), "go", "run", "../../release/monitoring",
		"-rules", filepath.Join(p.directory, "rules.yaml"), "-speed", strconv.Itoa(int(p.speed)))
	if output, err := generator.CombinedOutput(); err != nil {
		s.t.Fatalf("generating the rules: %v\n%s", err, output)
	}
	listener := must(net.Listen("tcp", "127.0.0.1:0"))(s.t)
	address := listener.Addr().String()
	check(s.t, listener.Close())
	p.url = "http://" + address
	command := exec.Command(binary, "--config.file="+file, "--storage.tsdb.path="+filepath.Join(p.directory, "data"),
		"--web.listen-address="+address)
	log := must(os.Create(filepath.Join(p.directory, "log")))(s.t)
	command.Stdout, command.Stderr = log, log
	check(s.t, command.Start())
	s.t.Cleanup(func() {
		check(s.t, command.Process.Signal(syscall.SIGTERM))
		if err := command.Wait(); err != nil || s.t.Failed() {
			text, _ := os.ReadFile(log.Name())
			s.t.Logf("Prometheus: %v\n%s", err, text)
		}
	})
	p.await("Prometheus to be ready", func() (bool, string) {
		response, err := http.Get(p.url + "/-/ready")
		if err != nil {
			return false, err.Error()
		}
		return response.StatusCode == http.StatusOK, response.Status + fmt.Sprint(response.Body.Close())
	})
	return p
}

// interval is the scrape and evaluation interval.
func (p *prometheus) interval() time.Duration { return time.Minute / p.speed }

// grantAccess creates Prometheus' credentials: a client certificate for demo and a token for the operator.
func (p *prometheus) grantAccess() {
	s := p.s
	s.t.Helper()
	sample, _, _ := strings.Cut(string(must(os.ReadFile("../../config/samples/monitoring.yaml"))(s.t)), "\n---\n")
	file := filepath.Join(p.directory, "kubeconfig.yaml")
	check(s.t, os.WriteFile(file, []byte(sample), 0o600))
	s.run(s.management, "apply", "-n", "default", "-f", file)
	s.run(s.management, "wait", "--for=condition=Ready", "apiserverkubeconfig/demo-metrics", "--timeout=60s")
	s.run(s.management, "create", "serviceaccount", "prometheus")
	s.run(s.management, "create", "clusterrole", "prometheus", "--verb=get", "--non-resource-url=/metrics")
	s.run(s.management, "create", "clusterrolebinding", "prometheus", "--clusterrole=prometheus",
		"--serviceaccount=default:prometheus")
	token := s.run(s.management, "create", "token", "prometheus", "--duration=24h")
	check(s.t, os.WriteFile(filepath.Join(p.directory, "token"), []byte(strings.TrimSpace(token)), 0o600))
}

// configuration returns the scrape configuration of the repository, with files in place of the API server of a hosting
// cluster and of mounted Secrets.
func (p *prometheus) configuration() map[string]any {
	p.s.t.Helper()
	text := string(must(os.ReadFile(monitoring + "scrape_configs.yaml"))(p.s.t))
	for former, file := range map[string]string{
		"/etc/prometheus/demo": p.directory, "/var/run/secrets/kubernetes.io/serviceaccount": p.directory,
		// Outside a pod, the operator's certificate exists only in memory.
		"ca_file: /etc/prometheus/quorate-operator/ca.crt": "insecure_skip_verify: true",
	} {
		text = strings.ReplaceAll(text, former, file)
	}
	var configuration struct {
		Jobs []map[string]any `json:"scrape_configs"`
	}
	check(p.s.t, yaml.Unmarshal([]byte(text), &configuration))
	for _, job := range configuration.Jobs {
		delete(job, "kubernetes_sd_configs")
		job["file_sd_configs"] = []any{map[string]any{"files": []string{filepath.Join(p.directory, "targets.json")}}}
	}
	return map[string]any{
		"global": map[string]any{
			"scrape_interval": p.interval().String(), "evaluation_interval": p.interval().String(),
		},
		"rule_files":     []string{filepath.Join(p.directory, "rules.yaml")},
		"scrape_configs": configuration.Jobs,
	}
}

// target is an entry of a target file.
type target struct {
	Targets []string          `json:"targets"`
	Labels  map[string]string `json:"labels"`
}

// refresh writes the Secret and the targets, like the kubelet and the service discovery of Prometheus in a hosting
// cluster.
func (p *prometheus) refresh() {
	s := p.s
	s.t.Helper()
	secret := must(s.pods.CoreV1().Secrets("default").Get(s.t.Context(),
		"demo-metrics-kubeconfig", metav1.GetOptions{}))(s.t)
	for _, key := range []string{"ca.crt", corev1.TLSCertKey, corev1.TLSPrivateKeyKey} {
		p.replace(key, secret.Data[key])
	}
	targets := []target{{[]string{s.operatorAddress()}, map[string]string{
		"__meta_kubernetes_service_name": "quorate-operator-metrics", "__meta_kubernetes_endpointslice_port_name": "metrics",
		"__meta_kubernetes_pod_name": "operator",
	}}}
	pods := must(s.pods.CoreV1().Pods("default").List(s.t.Context(),
		metav1.ListOptions{LabelSelector: "quorate.dev/cluster=demo"}))(s.t)
	for i := range pods.Items {
		targets = append(targets, targetsOf(&pods.Items[i])...)
	}
	p.replace("targets.json", must(json.Marshal(targets))(s.t))
}

// targetsOf returns the targets that the service discovery of Prometheus would find for a pod.
func targetsOf(pod *corev1.Pod) (all []target) {
	if pod.Status.PodIP == "" {
		return nil
	}
	for _, port := range pod.Spec.Containers[0].Ports {
		address := net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(int(port.ContainerPort)))
		all = append(all, target{[]string{address}, map[string]string{
			"__meta_kubernetes_namespace": pod.Namespace, "__meta_kubernetes_pod_name": pod.Name,
			"__meta_kubernetes_pod_label_quorate_dev_cluster": pod.Labels["quorate.dev/cluster"],
			"__meta_kubernetes_pod_container_port_name":       port.Name,
			"__meta_kubernetes_pod_phase":                     string(pod.Status.Phase),
		}})
	}
	return all
}

// replace replaces a file atomically if its content differs.
func (p *prometheus) replace(name string, content []byte) {
	file := filepath.Join(p.directory, name)
	if current, err := os.ReadFile(file); err == nil && bytes.Equal(current, content) {
		return
	}
	check(p.s.t, os.WriteFile(file+".new", content, 0o600))
	check(p.s.t, os.Rename(file+".new", file))
}

// operatorAddress returns the address of the operator's metrics.
func (s *sandbox) operatorAddress() string {
	s.t.Helper()
	id := must(s.find("--image=quorate"))(s.t)
	line := string(must(os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", id)))(s.t))
	_, address, found := strings.Cut(line, "--metrics-bind-address=")
	if !found {
		s.t.Fatalf("the operator serves no metrics: %q", line)
	}
	address, _, _ = strings.Cut(address, "\x00")
	return address
}

// step runs a subtest. Its failure ends the test.
func (p *prometheus) step(name string, do func()) {
	outer := p.s.t
	outer.Run(name, func(t *testing.T) {
		p.s.t = t
		defer func() { p.s.t = outer }()
		do()
	})
	if outer.Failed() {
		outer.FailNow()
	}
}

// longestWait is the time after which the last alert caused by a fault fires.
const longestWait = 3 * time.Hour

// await waits until a condition holds, for longer than all alerts need to fire.
func (p *prometheus) await(what string, holds func() (bool, string)) {
	p.s.t.Helper()
	var seen string
	limit := waitTimeout + longestWait/p.speed
	err := wait.PollUntilContextTimeout(p.s.t.Context(), 300*time.Millisecond, limit, true, func(
		context.Context,
	) (ok bool, err error) {
		p.refresh()
		ok, seen = holds()
		return ok, nil
	})
	if err != nil {
		p.s.t.Fatalf("waiting for %s: %v\nlast state: %s", what, err, seen)
	}
}

// get decodes the data of a response of the API.
func (p *prometheus) get(path string, data any) {
	p.s.t.Helper()
	response := must(http.Get(p.url + path))(p.s.t)
	defer response.Body.Close()
	body := struct {
		Status, Error string
		Data          any
	}{Data: data}
	check(p.s.t, json.NewDecoder(response.Body).Decode(&body))
	if body.Status != "success" {
		p.s.t.Fatalf("%s: %s", path, body.Error)
	}
}

// query returns the result of a query.
func (p *prometheus) query(expression string) []json.RawMessage {
	p.s.t.Helper()
	var data struct{ Result []json.RawMessage }
	p.get("/api/v1/query?query="+url.QueryEscape(expression), &data)
	return data.Result
}

// firing returns the names and the descriptions of the firing alerts.
func (p *prometheus) firing() map[string]string {
	p.s.t.Helper()
	var data struct {
		Alerts []struct {
			State       string
			Labels      map[string]string
			Annotations map[string]string
		}
	}
	p.get("/api/v1/alerts", &data)
	alerts := map[string]string{}
	for _, alert := range data.Alerts {
		if alert.State == "firing" {
			alerts[alert.Labels["alertname"]] = alert.Annotations["description"]
		}
	}
	return alerts
}

// noAlerts fails if an alert fires within a duration.
func (p *prometheus) noAlerts(within time.Duration) {
	p.s.t.Helper()
	var alerts map[string]string
	err := wait.PollUntilContextTimeout(p.s.t.Context(), 300*time.Millisecond, within, true, func(
		context.Context,
	) (bool, error) {
		p.refresh()
		alerts = p.firing()
		return len(alerts) > 0, nil
	})
	if err == nil {
		p.s.t.Fatalf("without a fault alerts fire: %q", alerts)
	}
}

// raises waits until all alerts of a fault fire. Until then, no other alerts may fire except for the consequences of
// the fault.
func (p *prometheus) raises(e expectation) {
	p.s.t.Helper()
	allowed := slices.Concat(e.Alerts, e.Consequences)
	p.await(fmt.Sprintf("the alerts %q", e.Alerts), func() (bool, string) {
		firing := p.firing()
		for name, description := range firing {
			if !slices.Contains(allowed, name) {
				p.s.t.Fatalf("%s fires, which is no consequence: %s", name, description)
			}
		}
		return !slices.ContainsFunc(e.Alerts, func(name string) bool { return firing[name] == "" }), fmt.Sprint(firing)
	})
	for name, description := range p.firing() {
		p.s.t.Logf("%s: %s", name, description)
	}
}

// settles waits until demo is healthy and no alert fires after a fault is repaired.
func (p *prometheus) settles(e expectation) {
	p.s.t.Helper()
	allowed := slices.Concat(e.Alerts, e.Consequences)
	p.await("the end of all alerts", func() (bool, string) {
		firing := p.firing()
		for name, description := range firing {
			if !slices.Contains(allowed, name) {
				p.s.t.Fatalf("%s fires after the fault: %s", name, description)
			}
		}
		c := p.s.cluster()
		return len(firing) == 0 && condition(c, v1alpha1.Progressing) == metav1.ConditionFalse && c.Status.ReadyReplicas == 3,
			fmt.Sprintf("%q\n%+v", firing, c.Status)
	})
}
