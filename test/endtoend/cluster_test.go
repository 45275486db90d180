package endtoend

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/clientcmd"

	"quorate.dev/test/upstream"
)

// TestCluster asserts the budgets in docs/availability.md on a Kubernetes cluster that has the operator, and whose
// default StorageClass can provide 8 volumes. It runs as root on the only node, and sends its load to the cluster IP
// of a Service. QUORATE_CLUSTER is the kubeconfig of an administrator, QUORATE_CLUSTER_IMAGE a second name of the
// image, for upgrades. The namespace default must have no ApiServerCluster named demo. -run 'TestCluster$/evict'
// selects events.
func TestCluster(t *testing.T) {
	kubeconfig := os.Getenv("QUORATE_CLUSTER")
	if kubeconfig == "" {
		t.Skip("QUORATE_CLUSTER is not set")
	}
	s := &sandbox{t: t, management: kubeconfig, kubectl: must(upstream.Binary(t.Context(), "kubectl"))(t), onCluster: true}
	s.connect()
	s.run(s.management, "apply", "-n", "default", "-f", "../../config/samples/demo.yaml")
	s.settled(3, 3)
	s.followService()
	h := record(t, s.following())
	l := h.addLoad(s.following())
	for _, event := range s.clusterEvents(h) {
		t.Run(event.name, func(t *testing.T) { s.during(t, h, l, event) })
	}
	h.verify()
	l.verify(s)
	s.run(s.management, "delete", "-n", "default", "apiservercluster/demo", "--timeout=120s")
}

// followService writes the kubeconfig of demo with the cluster IP of its Service, because the node's resolver does not
// know its name, and writes it again whenever its Secret changes, as the kubelet does in a pod.
func (s *sandbox) followService() {
	s.t.Helper()
	s.demo = filepath.Join(s.t.TempDir(), "demo.kubeconfig")
	address := s.run(s.management, "get", "-n", "default", "service/demo", "-o", "jsonpath={.spec.clusterIP}")
	check(s.t, s.writeKubeconfig(s.t.Context(), address))
	ctx, stop := context.WithCancel(s.t.Context())
	var done sync.WaitGroup
	done.Go(func() {
		wait.UntilWithContext(ctx, func(ctx context.Context) {
			if err := s.writeKubeconfig(ctx, address); err != nil && ctx.Err() == nil && !apierrors.IsNotFound(err) {
				fmt.Fprintln(os.Stderr, "write the kubeconfig of demo:", err)
			}
		}, time.Second)
	})
	s.t.Cleanup(func() { stop(); done.Wait() })
}

// writeKubeconfig replaces the file atomically.
func (s *sandbox) writeKubeconfig(ctx context.Context, address string) error {
	secret, err := s.pods.CoreV1().Secrets("default").Get(ctx, "demo-admin-kubeconfig", metav1.GetOptions{})
	if err != nil {
		return err
	}
	kubeconfig, err := clientcmd.Load(secret.Data["kubeconfig"])
	if err != nil {
		return err
	}
	for _, cluster := range kubeconfig.Clusters {
		cluster.Server = "https://" + address + ":6443"
	}
	if err := clientcmd.WriteToFile(*kubeconfig, s.demo+".new"); err != nil {
		return err
	}
	return os.Rename(s.demo+".new", s.demo)
}

// clusterEvents returns the events in order. Events in which a replica becomes unreachable come first, while
// connections are spread over all replicas. Later, most connections are to the replica that has run longest.
func (s *sandbox) clusterEvents(h *history) []event {
	events := []event{
		{"freeze the leader", silence, s.freezeLeader},
		{"cut off the leader", silence, s.cutOffLeader},
		{"scale to five", planned, func() { s.scale(5) }},
		{"scale to three", planned, func() { s.scale(3) }},
		{"kill the leader", killLeader, s.killLeader},
		{"kill a follower", kill, s.killFollower},
		{"lose a volume", planned, s.loseVolume},
		{"stop the operator", planned, func() {
			s.run(s.management, "scale", "-n", "quorate-system", "deployment/quorate-operator", "--replicas=0")
			h.awaitWrites(200)
			s.run(s.management, "scale", "-n", "quorate-system", "deployment/quorate-operator", "--replicas=2")
			s.run(s.management, "rollout", "status", "-n", "quorate-system", "deployment/quorate-operator", "--timeout=120s")
		}},
		{"defragment", planned, s.defragment},
		{"back up", planned, s.backUp},
	}
	return append(events, s.longEvents()...)
}

// cutOffLeader drops all packets of the leader's pod, in the network namespace of the pod, until another member leads.
// For clients, peers and probes this is like a network partition of its node.
func (s *sandbox) cutOffLeader() {
	s.t.Helper()
	leader, _ := s.leader()
	id := must(s.process(leader))(s.t)
	for _, chain := range []string{"INPUT", "OUTPUT"} {
		s.filter(id, "-I", chain)
		defer s.filter(id, "-D", chain)
	}
	s.awaitOtherLeader(leader)
}

// filter inserts or deletes the rule that drops the packets of a chain in a process's network namespace.
func (s *sandbox) filter(process int, operation, chain string) {
	s.t.Helper()
	space := fmt.Sprintf("/proc/%d/ns/net", process)
	if must(os.Readlink(space))(s.t) == must(os.Readlink("/proc/self/ns/net"))(s.t) {
		s.t.Fatalf("process %d has no network namespace of its own", process)
	}
	command := exec.CommandContext(s.t.Context(), "nsenter", "--net="+space, "iptables", "-w", operation, chain,
		"-j", "DROP")
	if output, err := command.CombinedOutput(); err != nil {
		s.t.Fatalf("%v: %v\n%s", command.Args, err, output)
	}
}
