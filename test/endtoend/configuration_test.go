package endtoend

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/test/upstream"
)

const (
	auditPolicy = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: %s\n  resources: [{group: '', resources: " +
		"[secrets]}]\n"

	noIssuer  = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n"
	oneIssuer = noIssuer +
		"jwt:\n- issuer: {url: 'https://issuer.invalid', audiences: [demo]}\n  claimMappings: {username: {claim: sub, " +
		"prefix: ''}}\n"
)

// reloaded matches the metric of a replica that has loaded a changed AuthenticationConfiguration.
var reloaded = regexp.MustCompile(
	`apiserver_authentication_config_controller_automatic_reloads_total\{[^}]*status="success"\} [1-9]`,
)

// TestConfiguration configures audit, encryption and authentication of a running cluster and changes their
// configuration. It checks that an invalid configuration is reported and changes nothing.
func TestConfiguration(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	t.Parallel() // after TestSandbox, which asserts gaps
	s := startSandbox(t)
	s.settled(3, 3)
	s.run(s.demo, "create", "secret", "generic", "before", "--from-literal=password=plain-before")
	h := record(t, s.demoConfig())
	s.putFile("demo-audit", fmt.Sprintf(auditPolicy, "Metadata"))
	s.putFile("demo-authentication", oneIssuer)
	s.patchSpec(`{"audit":{"configMapRef":{"name":"demo-audit"}},"authentication":{"configMapRef":{"name":"demo-authentication"}},"encryption":{}}`)
	s.waitFor("the audit log has requests", func() (bool, string) { return s.logged(`"level":"Metadata"`), "" })
	s.encrypted()
	s.settled(3, 3)
	s.run(s.demo, "create", "secret", "generic", "after", "--from-literal=password=plain-after")
	for name, want := range map[string]string{"before": "plain-before", "after": "plain-after"} {
		secret := s.run(s.demo, "get", "secret", name, "-o", "go-template={{.data.password | base64decode}}")
		if secret != want {
			t.Errorf("Secret %s has %q, want %q", name, secret, want)
		}
	}

	pods := s.podUIDs()
	s.putFile("demo-authentication", noIssuer)
	s.waitFor("the issuer is reloaded", func() (bool, string) {
		return reloaded.MatchString(s.run(s.demo, "get", "--raw", "/metrics")), ""
	})
	s.putFile("demo-audit", fmt.Sprintf(auditPolicy, "Everything"))
	s.degraded("InvalidConfiguration", `"Everything"`)
	s.patchSpec(`{"extraArgs":{"max-requests-inflight":"-1"}}`)
	s.degraded("InvalidSpec", "--max-requests-inflight")
	s.patchSpec(`{"extraArgs":null}`)
	s.degraded("InvalidConfiguration", `"Everything"`)
	if after := s.podUIDs(); fmt.Sprint(after) != fmt.Sprint(pods) {
		t.Errorf("a reload or an invalid value restarted pods: %v, before %v", after, pods)
	}

	s.putFile("demo-audit", fmt.Sprintf(auditPolicy, "Request"))
	s.waitFor("the audit log follows the policy", func() (bool, string) { return s.logged(`"level":"Request"`), "" })
	s.settled(3, 3)
	h.verify()
	s.checkPermissions()
}

// putFile creates or replaces a ConfigMap with config.yaml.
func (s *sandbox) putFile(name, content string) {
	s.t.Helper()
	configMaps := s.pods.CoreV1().ConfigMaps("default")
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"config.yaml": content}}
	patch := must(json.Marshal(object))(s.t)
	if _, err := configMaps.Patch(s.t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}); err == nil {
		return
	}
	must(configMaps.Create(s.t.Context(), object, metav1.CreateOptions{}))(s.t)
}

// patchSpec merges a patch into the spec of demo.
func (s *sandbox) patchSpec(patch string) {
	s.t.Helper()
	s.run(s.management, "patch", "apiservercluster/demo", "--type=merge", "-p", `{"spec":`+patch+`}`)
}

// logged reports whether a replica has logged a text after a request.
func (s *sandbox) logged(text string) bool {
	s.t.Helper()
	s.run(s.demo, "get", "secrets", "-A", "-o", "name")
	pods := must(s.pods.CoreV1().Pods("default").List(s.t.Context(),
		metav1.ListOptions{LabelSelector: "quorate.dev/cluster=demo"}))(s.t)
	for i := range pods.Items {
		raw, err := s.pods.CoreV1().Pods("default").GetLogs(pods.Items[i].Name, &corev1.PodLogOptions{}).DoRaw(s.t.Context())
		if err == nil && strings.Contains(string(raw), text) {
			return true
		}
	}
	return false
}

// encrypted waits until the encryption is in use, and checks that the operator has rewritten a Secret.
func (s *sandbox) encrypted() {
	s.t.Helper()
	var stages []string
	s.waitFor("objects are encrypted", func() (bool, string) {
		c := s.cluster()
		if r := c.Status.Rotations; r != nil && r.EncryptionKeys != nil {
			if n := len(stages); n == 0 || stages[n-1] != r.EncryptionKeys.Stage {
				stages = append(stages, r.EncryptionKeys.Stage)
			}
			return false, fmt.Sprint(stages, c.Status.Conditions)
		}
		return len(stages) > 0, fmt.Sprint(stages, c.Status.Conditions)
	})
	if stages[0] == v1alpha1.StageDropOld { // the test may miss the end of a rotation, but not all earlier stages
		s.t.Errorf("the first stage was %s", stages[0])
	}
	if value := s.stored("/registry/secrets/default/before"); !strings.HasPrefix(value, "k8s:enc:secretbox:v1:key") {
		s.t.Errorf("the stored Secret begins with %.20q", value)
	}
}

// degraded waits for the condition Degraded with a reason and a message.
func (s *sandbox) degraded(reason, message string) {
	s.t.Helper()
	s.waitFor("Degraded with "+reason, func() (bool, string) {
		c := meta.FindStatusCondition(s.cluster().Status.Conditions, v1alpha1.Degraded)
		return c != nil && c.Reason == reason && strings.Contains(c.Message, message), fmt.Sprint(c)
	})
}

func (s *sandbox) podUIDs() map[string]types.UID {
	s.t.Helper()
	pods := must(s.pods.CoreV1().Pods("default").List(s.t.Context(),
		metav1.ListOptions{LabelSelector: "quorate.dev/cluster=demo"}))(s.t)
	ids := map[string]types.UID{}
	for i := range pods.Items {
		ids[pods.Items[i].Name] = pods.Items[i].UID
	}
	return ids
}

// stored returns the value of a key in the etcd of demo.
func (s *sandbox) stored(key string) string {
	s.t.Helper()
	secret := must(s.pods.CoreV1().Secrets("default").Get(s.t.Context(), "demo-etcd-client", metav1.GetOptions{}))(s.t)
	pair := must(tls.X509KeyPair(secret.Data["tls.crt"], secret.Data["tls.key"]))(s.t)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(secret.Data["ca.crt"])
	leader, _ := s.leader()
	pod := must(s.pods.CoreV1().Pods("default").Get(s.t.Context(), leader, metav1.GetOptions{}))(s.t)
	client := must(clientv3.New(clientv3.Config{
		Endpoints: []string{"https://demo-members.default.svc:2379"}, Context: s.t.Context(), DialTimeout: 10 * time.Second,
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(pod.Status.PodIP, "2379"))
		})},
		TLS: &tls.Config{
			Certificates: []tls.Certificate{pair}, RootCAs: roots, ServerName: "demo-members.default.svc",
			MinVersion: tls.VersionTLS12,
		},
	}))(s.t)
	defer func() { _ = client.Close() }()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	response := must(client.Get(ctx, key))(s.t)
	if len(response.Kvs) != 1 {
		s.t.Fatalf("etcd has %d values of %s", len(response.Kvs), key)
	}
	return string(response.Kvs[0].Value)
}
