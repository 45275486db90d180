package endtoend

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/sandbox/management"
	"quorate.dev/test/permissions"
	"quorate.dev/test/upstream"
)

// waitTimeout limits the time to wait for a state.
const waitTimeout = 2 * time.Minute

// sandbox is a running `quorate sandbox` with the cluster demo.
type sandbox struct {
	t          *testing.T
	directory  string
	kubectl    string
	management string // kubeconfig
	demo       string // kubeconfig
	page       string // URL of the status page
	onCluster  bool   // a Kubernetes cluster instead of a sandbox
	clusters   ctrl.Client
	pods       kubernetes.Interface
}

// startSandbox starts a sandbox and waits until demo is available. The test's cleanup stops it with SIGINT.
func startSandbox(t *testing.T, args ...string) *sandbox {
	t.Helper()
	ctx := t.Context()
	binary := must(upstream.Quorate(ctx))(t)
	s := &sandbox{
		t: t, directory: filepath.Join(t.TempDir(), "quorate"), kubectl: must(upstream.Binary(ctx, "kubectl"))(t),
	}
	command := exec.Command(binary, append([]string{"sandbox", "--json", "--dir", s.directory}, args...)...)
	command.Stderr = os.Stderr
	output := must(command.StdoutPipe())(t)
	check(t, command.Start())
	t.Cleanup(func() {
		s.logsOnFailure()
		check(t, command.Process.Signal(os.Interrupt))
		if err := command.Wait(); err != nil {
			t.Errorf("the sandbox did not stop cleanly: %v", err)
		}
	})
	s.awaitReady(bufio.NewScanner(output))
	s.connect()
	return s
}

// awaitReady reads events until the event ready, and continues to drain them.
func (s *sandbox) awaitReady(events *bufio.Scanner) {
	s.t.Helper()
	for events.Scan() {
		var event struct {
			Event      string            `json:"event"`
			Kubeconfig string            `json:"kubeconfig"`
			URL        string            `json:"url"`
			Clusters   map[string]string `json:"clusters"`
		}
		if err := json.Unmarshal(events.Bytes(), &event); err != nil {
			s.t.Fatalf("the sandbox printed %q: %v", events.Text(), err)
		}
		if event.Event == "page" {
			s.page = event.URL
		}
		if event.Event == "ready" {
			s.management, s.demo = event.Kubeconfig, event.Clusters["demo"]
			go func() {
				for events.Scan() {
				}
			}()
			return
		}
	}
	s.t.Fatal("the sandbox exited before it was ready")
}

// checkPermissions checks that the operator has used each permission that this test has to cover.
func (s *sandbox) checkPermissions() {
	s.t.Helper()
	permissions.Check(s.t, filepath.Join(s.directory, "management", management.AuditLog))
}

func (s *sandbox) connect() {
	s.t.Helper()
	config := must(clientcmd.BuildConfigFromFlags("", s.management))(s.t)
	s.pods = must(kubernetes.NewForConfig(config))(s.t)
	s.clusters = must(ctrl.New(config, ctrl.Options{}))(s.t)
	check(s.t, v1alpha1.AddToScheme(s.clusters.Scheme()))
}

// demoConfig returns the client configuration of demo.
func (s *sandbox) demoConfig() *rest.Config {
	s.t.Helper()
	config := must(clientcmd.BuildConfigFromFlags("", s.demo))(s.t)
	config.QPS = -1
	return config
}

// run runs kubectl.
func (s *sandbox) run(kubeconfig string, args ...string) string {
	s.t.Helper()
	output, err := s.try(kubeconfig, args...)
	if err != nil {
		s.t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, output)
	}
	return output
}

// try runs kubectl, which may fail.
func (s *sandbox) try(kubeconfig string, args ...string) (string, error) {
	command := exec.CommandContext(s.t.Context(), s.kubectl, append([]string{"--kubeconfig", kubeconfig}, args...)...)
	defer s.logSlow("kubectl "+strings.Join(args, " "), time.Now())
	output, err := command.CombinedOutput()
	return string(output), err
}

// slow is the duration from which commands and waits are logged, to find where the time of a test goes.
const slow = 10 * time.Second

func (s *sandbox) logSlow(what string, began time.Time) {
	s.t.Helper()
	if took := time.Since(began); took > slow {
		s.t.Logf("%s took %v", what, took.Round(time.Millisecond))
	}
}

// cluster returns demo.
func (s *sandbox) cluster() *v1alpha1.ApiServerCluster {
	s.t.Helper()
	cluster := &v1alpha1.ApiServerCluster{}
	check(s.t, s.clusters.Get(s.t.Context(), ctrl.ObjectKey{Namespace: "default", Name: "demo"}, cluster))
	return cluster
}

// settled waits until demo has the given replicas and voters, all ready, and does not progress.
func (s *sandbox) settled(replicas, voters int) {
	s.t.Helper()
	s.waitFor(fmt.Sprintf("%d replicas and %d voters", replicas, voters), s.isSettled(replicas, voters))
}

// isSettled returns the condition that settled waits for.
func (s *sandbox) isSettled(replicas, voters int) func() (bool, string) {
	return func() (bool, string) {
		c := s.cluster()
		last := fmt.Sprintf("generation %d observed %d, ready %d, members %+v, conditions %+v",
			c.Generation, c.Status.ObservedGeneration, c.Status.ReadyReplicas, c.Status.Members, c.Status.Conditions)
		return c.Status.ObservedGeneration == c.Generation && int(c.Status.ReadyReplicas) == replicas &&
			countVoters(c) == voters && condition(c, "Progressing") == metav1.ConditionFalse, last
	}
}

func countVoters(c *v1alpha1.ApiServerCluster) int {
	voters := 0
	for _, member := range c.Status.Members {
		if member.Ready && (member.Role == "leader" || member.Role == "voter") {
			voters++
		}
	}
	return voters
}

func condition(c *v1alpha1.ApiServerCluster, kind string) metav1.ConditionStatus {
	for _, condition := range c.Status.Conditions {
		if condition.Type == kind {
			return condition.Status
		}
	}
	return metav1.ConditionUnknown
}

// waitFor waits for a condition. The condition also describes the observed state.
func (s *sandbox) waitFor(what string, holds func() (bool, string)) {
	s.t.Helper()
	s.waitForUpTo(waitTimeout, what, holds)
}

func (s *sandbox) waitForUpTo(timeout time.Duration, what string, holds func() (bool, string)) {
	s.t.Helper()
	defer s.logSlow("waiting for "+what, time.Now())
	var seen string
	err := wait.PollUntilContextTimeout(s.t.Context(), 100*time.Millisecond, timeout, true, func(
		context.Context,
	) (ok bool, err error) {
		ok, seen = holds()
		return ok, nil
	})
	if err != nil {
		s.t.Fatalf("waiting for %s: %v\nlast state: %s", what, err, seen)
	}
}

// leader returns the leader and a follower.
func (s *sandbox) leader() (leader, follower string) {
	s.t.Helper()
	for _, member := range s.cluster().Status.Members {
		if member.Role == "leader" {
			leader = member.Name
		} else {
			follower = member.Name
		}
	}
	if leader == "" || follower == "" {
		s.t.Fatalf("no leader, or no follower, among %+v", s.cluster().Status.Members)
	}
	return leader, follower
}

// kill sends SIGKILL to the process of a pod.
func (s *sandbox) kill(pod string) {
	s.t.Helper()
	id, err := s.process(pod)
	check(s.t, err)
	check(s.t, syscall.Kill(id, syscall.SIGKILL))
}

// freeze stops the process of the leader until another member leads.
func (s *sandbox) freeze(leader string) {
	s.t.Helper()
	id, err := s.process(leader)
	check(s.t, err)
	check(s.t, syscall.Kill(id, syscall.SIGSTOP))
	defer func() { check(s.t, syscall.Kill(id, syscall.SIGCONT)) }()
	s.awaitOtherLeader(leader)
}

// awaitOtherLeader waits until the status has another leader.
func (s *sandbox) awaitOtherLeader(leader string) {
	s.t.Helper()
	defer func(begin time.Time) { s.t.Logf("the status had another leader after %s", time.Since(begin)) }(time.Now())
	s.waitFor("another member leads", func() (bool, string) {
		members := s.cluster().Status.Members
		return slices.ContainsFunc(members, func(m v1alpha1.MemberStatus) bool {
			return m.Role == "leader" && m.Name != leader
		}), fmt.Sprintf("%+v", members)
	})
}

// replaced waits until another member has replaced the given one.
func (s *sandbox) replaced(name string) {
	s.t.Helper()
	s.waitFor(name+" is replaced by a member of another name", func() (bool, string) {
		members := s.cluster().Status.Members
		return !slices.ContainsFunc(members, func(m v1alpha1.MemberStatus) bool { return m.Name == name }),
			fmt.Sprintf("%+v", members)
	})
	s.settled(3, 3)
}

// damage overwrites the beginning of a member's write-ahead log, which the member reads when it starts.
func (s *sandbox) damage(member string) {
	s.t.Helper()
	logs := must(filepath.Glob(filepath.Join(s.dataDirectory(member), "member", "wal", "*.wal")))(s.t)
	if len(logs) == 0 {
		s.t.Fatalf("%s has no write-ahead log", member)
	}
	for _, log := range logs {
		file := must(os.OpenFile(log, os.O_WRONLY, 0))(s.t)
		_, err := file.WriteAt([]byte(strings.Repeat("damaged ", 64)), 8)
		check(s.t, errors.Join(err, file.Close()))
	}
}

// dataDirectory returns the data directory of a running member.
func (s *sandbox) dataDirectory(member string) string {
	s.t.Helper()
	id := must(s.process(member))(s.t)
	line := must(os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", id)))(s.t)
	_, rest, _ := strings.Cut(string(line), "\x00--etcd-data-dir=")
	directory, _, _ := strings.Cut(rest, "\x00")
	if s.onCluster {
		return fmt.Sprintf("/proc/%d/root%s", id, directory)
	}
	return directory
}

// backUp backs the cluster up to a volume.
func (s *sandbox) backUp() {
	s.t.Helper()
	s.apply(s.management, `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: backups, namespace: default}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: quorate.dev/v1alpha1
kind: ApiServerBackup
metadata: {name: available, namespace: default}
spec: {clusterName: demo, destination: {volume: {claimName: backups}}}
`)
	s.run(s.management, "wait", "apiserverbackup/available", "-n", "default", "--for=condition=Complete", "--timeout=120s")
}

// withoutOperator stops the operator's process while do runs.
func (s *sandbox) withoutOperator(do func()) {
	s.t.Helper()
	id := must(s.find("--image=quorate"))(s.t)
	check(s.t, syscall.Kill(id, syscall.SIGSTOP))
	defer func() { check(s.t, syscall.Kill(id, syscall.SIGCONT)) }()
	do()
}

// process finds the process of a pod by its arguments. On a cluster it uses the pod's address, because other processes
// may have the same name.
func (s *sandbox) process(pod string) (int, error) {
	if !s.onCluster {
		return s.find("--etcd-name=" + pod)
	}
	p, err := s.pods.CoreV1().Pods("default").Get(s.t.Context(), pod, metav1.GetOptions{})
	if err != nil {
		return 0, err
	}
	return s.find("--advertise-address=" + p.Status.PodIP)
}

// find finds a process of the sandbox by an argument.
func (s *sandbox) find(argument string) (int, error) {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return 0, err
	}
	for _, file := range files {
		line, err := os.ReadFile(file)
		if err != nil {
			continue // it has exited
		}
		text := string(line)
		if strings.Contains(text, s.directory+"/") && strings.Contains(text, "\x00"+argument+"\x00") {
			var id int
			_, err := fmt.Sscanf(file, "/proc/%d/cmdline", &id)
			return id, err
		}
	}
	return 0, fmt.Errorf("no process has the argument %s", argument)
}

// restarted waits until a pod's container has restarted and is ready.
func (s *sandbox) restarted(pod string, before int32) {
	s.t.Helper()
	s.waitFor(pod+" runs again", func() (bool, string) {
		p, err := s.pods.CoreV1().Pods("default").Get(s.t.Context(), pod, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		return restarts(p) > before && ready(p), fmt.Sprintf("%+v", p.Status)
	})
}

func (s *sandbox) restarts(pod string) int32 {
	s.t.Helper()
	return restarts(must(s.pods.CoreV1().Pods("default").Get(s.t.Context(), pod, metav1.GetOptions{}))(s.t))
}

func restarts(p *corev1.Pod) int32 {
	if len(p.Status.ContainerStatuses) == 0 {
		return 0
	}
	return p.Status.ContainerStatuses[0].RestartCount
}

func ready(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// logsOnFailure logs the ends of the processes' logs if the test failed.
func (s *sandbox) logsOnFailure() {
	if !s.t.Failed() {
		return
	}
	_ = filepath.WalkDir(filepath.Join(s.directory, "logs"), func(file string, entry os.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			data, _ := os.ReadFile(file)
			const shown = 6000
			s.t.Logf("%s:\n%s", file, data[max(0, len(data)-shown):])
		}
		return nil
	})
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// must returns a value, or fails the test if err is not nil.
func must[T any](value T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}
