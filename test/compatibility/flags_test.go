package compatibility

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"quorate.dev/test/upstream"
)

// values are flags with values that one of the servers or both might reject.
var values = []string{
	"--storage-backend=etcd3", "--storage-backend=etcd2", "--storage-media-type=application/yaml",
	"--storage-media-type=text/plain", "--etcd-prefix=registry", "--etcd-healthcheck-timeout=0s",
	"--watch-cache-sizes=pods#10", "--watch-cache-sizes=pods", "--watch-cache-sizes=pods#-1,secrets#3",
	"--default-watch-cache-size=-1", "--lease-reuse-duration-seconds=-1", "--etcd-servers-overrides=/events",
	"--etcd-servers-overrides=events#http://x:1", "--etcd-servers-overrides=/events#http://x:1;",
	"--etcd-servers-overrides=/events#http://x:1", "--storage-initialization-timeout=-1s", "--kubelet-read-only-port=-1",
	"--kubelet-read-only-port=10", "--log-flush-frequency=1", "--log-json-info-buffer-size=1Ki",
	"--log-json-info-buffer-size=0", "--log-json-info-buffer-size=many", "--vmodule=a=1",
	"--vmodule=a", "--disabled-metrics=a,b", "--logging-format=xml", "--logging-format=",
	"--allow-metric-labels=number_count_metric,odd_number=1", "--allow-metric-labels=a",
	"--show-hidden-metrics-for-version=1.36", "--show-hidden-metrics-for-version=1.35",
	"--show-hidden-metrics-for-version=x", "--log-text-split-stream=true", "--coordinated-leadership-lease-duration=1s",
	"--coordinated-leadership-renew-deadline=1s", "--enable-logs-handler=perhaps", "--enable-garbage-collector=2",
	"--contention-profiling", "--debug-socket-path=/tmp/x", "--aggregator-reject-forwarding-redirect=false",
	"--peer-advertise-port=x", "--max-requests-inflight=-1", "--livez-grace-period=-1s", "--goaway-chance=0.03",
	"--feature-gates=ContextualLogging=true", "--feature-gates=LoggingBetaOptions=false",
	"--feature-gates=NoSuchGate=true", "--feature-gates=AllAlpha=perhaps", "--enable-priority-and-fairness=false",
	"--enable-priority-and-fairness=no", "--runtime-config=flowcontrol.apiserver.k8s.io/v1=false",
	"--runtime-config=api/ga=false", "--runtime-config=flowcontrol.apiserver.k8s.io/v1=true",
	"--service-account-max-token-expiration=1m", "", "--audit-log-path=- --audit-log-mode=sometimes",
	"--audit-log-mode=sometimes", "--audit-log-path=- --audit-log-format=xml",
	"--audit-log-path=- --audit-log-version=audit.k8s.io/v1beta1", "--audit-log-path=- --audit-log-version=a/b/c",
	"--audit-log-path=- --audit-log-maxsize=-1", "--audit-log-path=- --audit-log-mode=batch --audit-log-batch-max-size=0",
	"--audit-log-path=- --audit-log-truncate-max-event-size=0", "--audit-webhook-batch-throttle-qps=0",
	"--audit-webhook-config-file=/none --audit-webhook-batch-throttle-qps=0", "--audit-webhook-batch-initial-backoff=1",
	"--audit-webhook-config-file=/none --audit-webhook-truncate-max-batch-size=1",
	"--audit-log-path=- --audit-log-compress", "--authorization-mode=AlwaysAllow,AlwaysAllow", "--audit-log-maxage=soon",
	"--authorization-webhook-cache-authorized-ttl=1",
}

// TestValuesOfFlags checks that both servers accept and reject the same values of flags.
func TestValuesOfFlags(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	kubernetes, err := upstream.Binary(t.Context(), "kube-apiserver")
	if err != nil {
		t.Fatal(err)
	}
	quorate, err := upstream.Quorate(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pki, err := upstream.NewPKI(filepath.Join(t.TempDir(), "pki"))
	if err != nil {
		t.Fatal(err)
	}
	directory := "--etcd-data-dir=" + filepath.Join(os.DevNull, "etcd") // cannot be created
	refused := func(t *testing.T, value ...string) (theirs, ours string) {
		arguments := append(pki.Flags(), value...)
		return complaint(t, kubernetes, arguments...), complaint(t, quorate,
			append([]string{"apiserver", directory}, arguments...)...)
	}
	theirsAlways, oursAlways := refused(t) // because there is no storage
	for _, value := range values {
		t.Run(value, func(t *testing.T) {
			theirs, ours := refused(t, strings.Split(value, " ")...)
			if (theirs == theirsAlways) != (ours == oursAlways) {
				t.Errorf("kube-apiserver: %s\nours: %s", theirs, ours)
			}
		})
	}
}

// complaint runs a server that cannot start, and returns its last error.
func complaint(t *testing.T, binary string, arguments ...string) string {
	t.Helper()
	output, err := exec.CommandContext(t.Context(), binary, arguments...).CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		t.Fatalf("%s %v: %v\n%s", binary, arguments, err, output)
	}
	_, failure, found := strings.Cut(strings.ReplaceAll(string(output), "err=", "Error: "), "Error: ")
	if !found {
		t.Fatalf("%s %v ended without an error:\n%s", binary, arguments, output)
	}
	return failure
}

// TestGatesAreKnown starts this server with every feature gate that kube-apiserver lists, at its default.
func TestGatesAreKnown(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	binary, err := upstream.Binary(t.Context(), "kube-apiserver")
	if err != nil {
		t.Fatal(err)
	}
	help, err := exec.CommandContext(t.Context(), binary, "--help").Output()
	if err != nil {
		t.Fatal(err)
	}
	var gates []string
	for _, gate := range regexp.MustCompile(
		`kube:(\w+)=true\|false \(\w+ - default=(\w+)\)`,
	).FindAllStringSubmatch(string(help), -1) {
		gates = append(gates, gate[1]+"="+gate[2])
	}
	if len(gates) < 100 {
		t.Fatalf("only %d gates are listed", len(gates))
	}
	directory := t.TempDir()
	pki, err := upstream.NewPKI(filepath.Join(directory, "pki"))
	if err != nil {
		t.Fatal(err)
	}
	server, err := upstream.StartQuorate(t.Context(), upstream.Options{
		Directory: directory, PKI: pki, Arguments: []string{"--feature-gates=" + strings.Join(gates, ",")},
	})
	if err != nil {
		t.Fatal(err)
	}
	server.StopAfter(t)
}
