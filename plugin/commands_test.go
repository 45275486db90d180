package plugin

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/plugin/overview"
)

// TestCommandsOfAHostingCluster executes commands on an API server. A user sees what to change, and a script gets the
// documented exit codes.
func TestCommandsOfAHostingCluster(t *testing.T) {
	h := startHosting(t)
	h.check(step{"status", ExitError, []string{"has no Quorate operator: select the hosting cluster with --context"}})
	h.install()
	h.check(
		step{"status", ExitError, []string{
			"namespace default has no ApiServerCluster; select another one with --namespace",
		}},
		step{"wait", ExitError, []string{"namespace default has no ApiServerCluster"}},
		step{"kubeconfig demo", ExitError, []string{`"demo" not found in namespace default; select another one`}},
		step{"status -A", 0, []string{"NAMESPACE"}},
	)
	h.create(newDemo())
	h.check(
		step{"status", ExitNegative, []string{"default/demo  Unavailable, 0/3 ready", "Error: cluster demo is Unavailable"}},
		step{"status nope", ExitError, []string{`"nope" not found; namespace default has demo`}},
		step{"status apiservercluster.quorate.dev/demo -o json", ExitNegative, []string{`"name": "demo"`}},
		step{"status -n kube-system", ExitError, []string{"namespace kube-system has no ApiServerCluster"}},
		step{"status -A", ExitNegative, []string{"default    demo  Unavailable  0/3"}},
		step{"status -A -o yaml", ExitNegative, []string{"  name: demo\n"}},
		step{"top", ExitNegative, []string{"no metrics of demo could be read"}},
		step{"forward", ExitError, []string{"no API server of cluster demo in namespace default is ready"}},
		step{"logs --replicas", ExitError, []string{"cluster demo has no pods"}},
		step{"logs --operator", ExitError, []string{"the hosting cluster has no pod of the operator"}},
		step{"__complete status ", 0, []string{"demo\n"}},
		step{"__complete wait de", 0, []string{"demo\n"}},
		step{"__complete status --context ", 0, []string{"context\n"}},
	)
	another := newDemo()
	another.Name = "another"
	h.create(another)
	h.check(step{"wait", ExitError, []string{"name one of the ApiServerClusters of namespace default: another, demo"}})
	stranger := rest.AnonymousClientConfig(h.admin)
	stranger.BearerToken = "wrong"
	h.check(step{
		"status --kubeconfig=" + h.kubeconfig(stranger), ExitError,
		[]string{h.admin.Host + " does not accept the credentials of the kubeconfig"},
	})
	t.Run("wait", func(t *testing.T) { h.in(t).testWait() })
	t.Run("changes", func(t *testing.T) { h.in(t).testChanges() })
	t.Run("backups", func(t *testing.T) { h.in(t).testBackups() })
	t.Run("connections", func(t *testing.T) { h.in(t).testConnections() })
	t.Run("deletion", func(t *testing.T) { h.in(t).testDeletion() })
}

// in returns the hosting cluster for a part of the test.
func (h *hosting) in(t *testing.T) *hosting {
	t.Helper()
	return &hosting{t: t, admin: h.admin, client: h.client}
}

// testWait waits for conditions that the operator sets while the command runs.
func (h *hosting) testWait() {
	h.check(step{"wait demo --for=rotated --timeout=1s", ExitTimeout, []string{
		"demo: 0/3 ready", "cluster demo is not rotated after 1s",
	}})
	w := h.begin("", "wait demo --for=available")
	w.await("demo: 0/3 ready")
	h.condition(v1alpha1.Progressing, "True", "RollingOut", "Waiting for demo-1")
	w.await("demo: 0/3 ready, Waiting for demo-1")
	h.condition(v1alpha1.Available, "True", "Ready", "An API server is ready")
	w.ends(0, "demo is available after ")
	w = h.begin("", "wait demo --timeout=0")
	w.await("ready, Waiting for demo-1")
	w.cancel()
	w.ends(ExitError, "context canceled")
}

// testChanges requests rotations and a recovery, and checks the spec that the operator reads.
func (h *hosting) testChanges() {
	h.check(
		step{"rotate encryption-keys demo", ExitError, []string{"demo has no encryption keys that the operator manages"}},
		step{"rotate authorities demo --overlap=1h", 0, []string{
			"Requested the replacement of the certificate authorities",
			"kubectl quorate wait demo --for=rotated --timeout=0 -n default",
		}},
		step{"rotate service-account-keys demo", 0, []string{"Requested the replacement of the key that signs"}},
		step{"rotate authorities demo --overlap=-1h", ExitError, []string{"spec.certificates.authorities.overlap"}},
		step{"rotate", 0, []string{"encryption-keys", "Usage:"}},
	)
	certificates := h.cluster().Spec.Certificates
	if a, k := certificates.Authorities, certificates.ServiceAccountKeys; a.Overlap == nil ||
		a.Overlap.Duration != time.Hour || a.RotateBefore == nil || k.RotateBefore == nil || k.Overlap != nil {
		h.t.Errorf("got %+v", certificates)
	}
	h.check(step{"recover demo", ExitError, []string{"cluster demo has no embedded etcd with a known state"}})
	h.condition(v1alpha1.EtcdQuorum, "True", "MembersHealthy", "3 of 3 voters are healthy")
	h.check(step{"recover demo", ExitError, []string{
		"cluster demo has not lost its quorum: condition EtcdQuorum is True, 3 of 3 voters are healthy",
	}})
	h.condition(v1alpha1.EtcdQuorum, "False", "QuorumLost", "2 of 3 voters are unreachable")
	h.check(step{"recover demo", ExitError, []string{
		"2 of 3 voters are unreachable\n", "only the data of the reachable member with the newest revision",
		"standard input is not a terminal: confirm with --yes",
	}})
	h.begin("other\n", "recover demo --from=monday").ends(ExitError, "ApiServerBackup monday does not exist")
	h.begin("other\n", "recover demo").ends(ExitError, "not confirmed; nothing was changed")
	if recovery := h.cluster().Spec.Recovery; recovery != nil {
		h.t.Errorf("got %+v without a confirmation", recovery)
	}
	h.begin("demo\n", "recover demo --member=demo-2 --request-id=one --wait=false").ends(0,
		"only the data of member demo-2", "Type the name of the cluster to continue: ", "Requested recovery one")
	if r := h.cluster().Spec.Recovery; r == nil || r.RequestID != "one" || r.Member != "demo-2" || r.From != nil {
		h.t.Errorf("got %+v", r)
	}
}

// testBackups creates backups, and restores one of them.
func (h *hosting) testBackups() {
	update := func(name string, edit func(*v1alpha1.ApiServerBackupStatus)) {
		h.t.Helper()
		backup := &v1alpha1.ApiServerBackup{}
		must(h.t, h.client.Get(h.t.Context(), client.ObjectKey{Namespace: "default", Name: name}, backup))
		edit(&backup.Status)
		must(h.t, h.client.Status().Update(h.t.Context(), backup))
	}
	h.check(
		step{"backup demo", ExitError, []string{"cluster demo has no backup or schedule with a destination", "set --claim"}},
		step{"backup demo --claim=backups --deletion-policy=Sometimes", ExitError, []string{"deletionPolicy", "Retain"}},
		step{"backup nope --claim=backups", ExitError, []string{`"nope" not found; namespace default has another, demo`}},
	)
	b := h.begin("", "backup demo --claim=backups --name=monday")
	b.await("Created ApiServerBackup monday\nbackup monday: waiting for the operator\n")
	update("monday", func(s *v1alpha1.ApiServerBackupStatus) { s.Phase = v1alpha1.BackupRunning })
	b.await("backup monday: running\n")
	update("monday", func(s *v1alpha1.ApiServerBackupStatus) {
		s.Phase, s.SizeBytes, s.Revision = v1alpha1.BackupCompleted, 12<<20, 42
		s.Location = "volume backups, default/demo/monday"
	})
	b.ends(0, "monday: 12Mi, revision 42, volume backups, default/demo/monday\n")
	b = h.begin("", "backup demo --name=tuesday -o json") // to the destination of monday
	b.await("backup tuesday: waiting for the operator\n")
	update("tuesday", func(s *v1alpha1.ApiServerBackupStatus) {
		s.Phase = v1alpha1.BackupFailed
		s.Conditions = []metav1.Condition{{
			Type: v1alpha1.BackupComplete, Status: "False", Reason: "Failed", Message: "no space left on device",
			LastTransitionTime: metav1.Now(),
		}}
	})
	b.ends(ExitNegative, `"claimName": "backups"`, "Error: backup tuesday: failed, no space left on device")
	h.check(
		step{"restore copy --from=tuesday", ExitError, []string{"backup tuesday: failed", "only a completed backup"}},
		step{"restore copy --from=monday --spec-of=nope", ExitError, []string{`"nope" not found; namespace default has`}},
		step{"restore demo --from=monday --wait=false", ExitError, []string{"already exists"}},
		step{"restore copy --from=monday --spec-of=demo --replicas=1 --wait=false -o yaml", 0, []string{
			"Created ApiServerCluster copy", "backupName: monday", "replicas: 1", "overlap: 1h0m0s",
		}},
	)
}

// metrics is the format of the metrics of an API server that has handled a number of requests.
const metrics = `apiserver_request_total{code="200",verb="GET"} %d
process_cpu_seconds_total 12.5
process_resident_memory_bytes 1.048576e+08
etcd_debugging_mvcc_current_revision 8123
`

// testConnections connects to an API server of demo, whose pod has a loopback address, as in a sandbox.
func (h *hosting) testConnections() {
	const address = "127.93.0.1"
	var requests atomic.Int64
	h.serve(address, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/metrics" {
			fmt.Fprintf(w, metrics, requests.Add(1000))
			return
		}
		fmt.Fprint(w, "forwarded")
	})
	pod := &corev1.Pod{ObjectMeta: named("demo-0"), Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "apiserver", Image: "quorate"}},
	}}
	pod.Labels = map[string]string{desired.ClusterLabel: "demo", desired.RoleLabel: desired.RoleMember}
	pod.Status.Phase, pod.Status.PodIP = corev1.PodRunning, address
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	h.create(pod)
	h.check(
		step{"top demo --interval=100ms", 0, []string{"REQUESTS/S", "demo-0", "100Mi"}},
		step{"top demo --interval=100ms -o json", 0, []string{`"requestsPerSecond": `}},
		step{"status demo", ExitNegative, []string{"demo-0", "8123"}},
		step{"status demo --metrics=false", ExitNegative, []string{"demo-0"}},
		step{"kubeconfig demo", 0, []string{"name: default-demo\n", "token: secret\n"}},
		step{"kubeconfig demo -o json --name=prod", 0, []string{`"name": "prod"`}},
		step{"kubeconfig demo --endpoint=https://127.0.0.1:7443", 0, []string{"server: https://127.0.0.1:7443\n"}},
	)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	must(h.t, err)
	defer taken.Close()
	h.check(step{"forward demo --listen=" + taken.Addr().String(), ExitError, []string{
		"choose another address with --listen",
	}})
	f := h.begin("", "forward demo --listen=127.0.0.1:0")
	local := f.await(`Forwarding (127\.0\.0\.1:\d+) to cluster demo`)
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}
	defer transport.CloseIdleConnections()
	get := func() (string, error) {
		request, err := http.NewRequestWithContext(h.t.Context(), http.MethodGet, "https://"+local+"/", nil)
		must(h.t, err)
		response, err := transport.RoundTrip(request)
		if err != nil {
			return "", err
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		return string(text), err
	}
	if text, err := get(); err != nil || text != "forwarded" {
		h.t.Errorf("got %q, %v", text, err)
	}
	must(h.t, h.client.Delete(h.t.Context(), pod, client.GracePeriodSeconds(0)))
	transport.CloseIdleConnections()
	if _, err := get(); err == nil {
		h.t.Error("a connection was forwarded to a pod that does not exist")
	}
	f.await("no API server of cluster demo in namespace default is ready")
	f.cancel()
	f.ends(0, "kubectl quorate kubeconfig demo -n default --write --endpoint=https://"+local)
}

// serve runs an API server of demo, and creates the Secret with the administrator's kubeconfig.
func (h *hosting) serve(address string, handler http.HandlerFunc) {
	h.t.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort(address, fmt.Sprint(desired.SecurePort)))
	if err != nil {
		h.t.Skip("the loopback addresses cannot be used: ", err)
	}
	server := httptest.NewUnstartedServer(handler)
	_ = server.Listener.Close()
	server.Listener = listener
	server.StartTLS()
	h.t.Cleanup(server.Close)
	config := clientcmdapi.NewConfig()
	config.Clusters["demo"] = &clientcmdapi.Cluster{
		Server: "https://demo.default.svc:6443", TLSServerName: "example.com",
		CertificateAuthorityData: encode(server.Certificate()),
	}
	config.AuthInfos["admin"] = &clientcmdapi.AuthInfo{Token: "secret"}
	config.Contexts["demo"] = &clientcmdapi.Context{Cluster: "demo", AuthInfo: "admin"}
	config.CurrentContext = "demo"
	content, err := clientcmd.Write(*config)
	must(h.t, err)
	h.create(&corev1.Secret{
		ObjectMeta: named("demo-admin-kubeconfig"), Data: map[string][]byte{desired.KubeconfigKey: content},
	})
}

func encode(certificate *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Raw})
}

// testDeletion deletes the cluster while commands wait for it.
func (h *hosting) testDeletion() {
	deleted, available := h.begin("", "wait demo --for=deleted"), h.begin("", "wait demo --for=restored")
	deleted.await("demo: 0/3 ready")
	available.await("demo: 0/3 ready")
	must(h.t, h.client.Delete(h.t.Context(), h.cluster()))
	deleted.ends(0, "demo is deleted after ")
	available.ends(ExitError, "cluster demo: it does not exist")
	h.check(step{"wait demo --for=deleted", 0, []string{"demo is deleted after "}})
	out, err := execute(h.t, "status", "-A", "-o", "json")
	var left []overview.Overview
	must(h.t, json.Unmarshal([]byte(out), &left))
	if exitCode(err) != ExitNegative || len(left) != 2 {
		h.t.Errorf("got %v: %s", err, out)
	}
}
