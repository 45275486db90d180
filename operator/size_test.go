package operator

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/test/upstream"
)

// clustersPerNamespace is the number of clusters in each namespace of TestOperatorSize.
const clustersPerNamespace = 50

// quietPeriod is the time over which CPU time is measured.
const quietPeriod = 5 * time.Minute

// TestOperatorSize measures the memory and the CPU time of an operator process with many clusters of three replicas,
// and compares them with sizeLimit, over five minutes, the resync interval, in which nothing changes. Pods are stubs:
// they respond to the operator's requests to members and API servers.
func TestOperatorSize(t *testing.T) {
	count, err := strconv.Atoi(os.Getenv("QUORATE_OPERATOR_SIZE"))
	if err != nil {
		t.Skip("takes minutes; set QUORATE_OPERATOR_SIZE=200 (make operator-size)")
	}
	upstream.NeedsProcesses(t)
	e := startAPI(t, "../config/crd", "default")
	e.install("../manifests/install.yaml")
	binary, err := upstream.Quorate(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), binary, append([]string{"operator"}, e.operatorArguments()...)...)
	command.Args = append(command.Args, strings.Fields(os.Getenv("QUORATE_OPERATOR_ARGS"))...)
	command.Stderr, command.Env = os.Stderr, append(os.Environ(), "GOGC=50") // as in config/manager/deployment.yaml
	command.Cancel = func() error { return command.Process.Signal(os.Interrupt) }
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = command.Wait() })
	stubs := newStubs(t, e.client)

	begin := time.Now()
	for i := range count {
		namespace := fmt.Sprintf("clusters-%d", i/clustersPerNamespace)
		if i%clustersPerNamespace == 0 {
			if err := e.client.Create(
				t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
			); err != nil {
				t.Fatal(err)
			}
		}
		cluster := &v1alpha1.ApiServerCluster{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("cluster-%d", i)},
		}
		if err := e.client.Create(t.Context(), cluster); err != nil {
			t.Fatal(err)
		}
	}
	ready := 0
	err = wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, 15*time.Minute, true, func(
		context.Context,
	) (bool, error) {
		stubs.round()
		ready = e.readyClusters()
		return ready >= count, nil
	})
	if err != nil {
		t.Fatalf("%d of %d clusters are ready", ready, count)
	}
	t.Logf("%d clusters are ready after %s", count, time.Since(begin).Round(time.Second))
	<-time.After(time.Minute)
	processor := processorTime(t, command.Process.Pid)
	<-time.After(quietPeriod)
	processor = processorTime(t, command.Process.Pid) - processor
	got := operatorSize{
		resident: residentMemory(t, command.Process.Pid, "VmRSS"), peak: residentMemory(t, command.Process.Pid, "VmHWM"),
		processor: processor.Seconds() / quietPeriod.Seconds(),
	}
	t.Logf("operator: %s; %d MiB are pages of the binary", got, residentMemory(t, command.Process.Pid, "RssFile")>>20)
	for _, problem := range got.exceeded(count) {
		t.Error(problem)
	}
}

// operatorSize is what an operator process uses.
type operatorSize struct {
	resident, peak int64   // bytes
	processor      float64 // share of a core while nothing changes
}

// sizeLimit is the size of an operator with sizeLimitClusters clusters that docs/install.md promises.
var sizeLimit = operatorSize{resident: 180 << 20, peak: 260 << 20, processor: 0.03}

const sizeLimitClusters = 200

func (s operatorSize) String() string {
	return fmt.Sprintf("%d MiB resident, at most %d MiB, %.1f %% of a core", s.resident>>20, s.peak>>20, 100*s.processor)
}

// exceeded returns the promises that an operator with count clusters breaks. Nothing is promised for more clusters.
func (s operatorSize) exceeded(count int) (problems []string) {
	if count > sizeLimitClusters {
		return nil
	}
	if s.resident > sizeLimit.resident {
		problems = append(problems,
			fmt.Sprintf("%d MiB are resident, promised are %d MiB", s.resident>>20, sizeLimit.resident>>20))
	}
	if s.peak > sizeLimit.peak {
		problems = append(problems,
			fmt.Sprintf("at most %d MiB were resident, promised are %d MiB", s.peak>>20, sizeLimit.peak>>20))
	}
	if s.processor > sizeLimit.processor {
		problems = append(problems,
			fmt.Sprintf("%.1f %% of a core, promised are %.0f %%", 100*s.processor, 100*sizeLimit.processor))
	}
	return problems
}

// TestOperatorSizeLimits checks that each exceeded limit is reported, and that docs/install.md has the limits.
func TestOperatorSizeLimits(t *testing.T) {
	for what, size := range map[string]operatorSize{
		"resident": {sizeLimit.resident + 1, sizeLimit.peak, sizeLimit.processor},
		"peak":     {sizeLimit.resident, sizeLimit.peak + 1, sizeLimit.processor},
		"CPU time": {sizeLimit.resident, sizeLimit.peak, sizeLimit.processor + 0.001},
	} {
		if problems := size.exceeded(sizeLimitClusters); len(problems) != 1 {
			t.Errorf("%s: %q", what, problems)
		}
	}
	if problems := sizeLimit.exceeded(sizeLimitClusters); len(problems) != 0 {
		t.Errorf("the limits themselves: %q", problems)
	}
	text, err := os.ReadFile("../docs/install.md")
	if err != nil {
		t.Fatal(err)
	}
	sentence := fmt.Sprintf("With %d clusters of three replicas, an idle operator uses at most %d MiB of resident "+
		"memory and %.0f %% of a core,\nand at most %d MiB while it creates them.", sizeLimitClusters, sizeLimit.resident>>20,
		100*sizeLimit.processor, sizeLimit.peak>>20)
	if !strings.Contains(string(text), sentence) {
		t.Errorf("docs/install.md does not say: %s", sentence)
	}
}

func (e *environment) readyClusters() int {
	list := &v1alpha1.ApiServerClusterList{}
	if err := e.client.List(e.t.Context(), list); err != nil {
		e.t.Fatal(err)
	}
	ready := 0
	for _, cluster := range list.Items {
		if cluster.Status.Ready == "3/3" && meta.IsStatusConditionFalse(cluster.Status.Conditions, v1alpha1.Progressing) &&
			meta.IsStatusConditionTrue(cluster.Status.Conditions, v1alpha1.EtcdQuorum) {
			ready++
		}
	}
	return ready
}

// residentMemory returns a figure of /proc/PID/status in bytes.
func residentMemory(t *testing.T, pid int, figure string) int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == figure+":" {
			size, err := strconv.ParseInt(fields[1], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return size << 10
		}
	}
	t.Fatalf("no %s", figure)
	return 0
}

// processorTime returns the CPU time that a process has used.
func processorTime(t *testing.T, pid int) time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(text[strings.LastIndex(string(text), ")")+1:]))
	user, userErr := strconv.ParseInt(fields[11], 10, 64)
	system, systemErr := strconv.ParseInt(fields[12], 10, 64)
	if userErr != nil || systemErr != nil {
		t.Fatal(userErr, systemErr)
	}
	return time.Duration(user+system) * 10 * time.Millisecond // clock ticks
}

// stubs respond for the members and API servers of all pods.
type stubs struct {
	t       *testing.T
	client  client.Client
	servers map[string]bool // pods that are served
}

func newStubs(t *testing.T, c client.Client) *stubs {
	return &stubs{t: t, client: c, servers: map[string]bool{}}
}

// round serves new pods and reports them ready.
func (s *stubs) round() {
	var pods corev1.PodList
	if err := s.client.List(s.t.Context(), &pods); err != nil {
		s.t.Fatal(err)
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		key := client.ObjectKeyFromObject(pod).String()
		if s.servers[key] {
			continue
		}
		n := len(s.servers)
		s.servers[key] = true
		address := fmt.Sprintf("127.125.%d.%d", n/250, 1+n%250)
		s.serve(pod, address)
		after := pod.DeepCopy()
		after.Status.Phase, after.Status.PodIP, after.Status.PodIPs =
			corev1.PodRunning, address, []corev1.PodIP{{IP: address}}
		after.Status.Conditions = []corev1.PodCondition{{
			Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now(),
		}}
		if err := s.client.Status().Patch(s.t.Context(), after, client.MergeFrom(pod)); err != nil {
			s.t.Fatal(err)
		}
	}
}

// serve responds as the etcd member and the API server of a pod.
func (s *stubs) serve(pod *corev1.Pod, address string) {
	member := &stubMember{name: pod.Name}
	for _, arg := range pod.Spec.Containers[0].Args {
		if list, ok := strings.CutPrefix(arg, "--etcd-initial-cluster="); ok {
			for entry := range strings.SplitSeq(list, ",") {
				name, url, _ := strings.Cut(entry, "=")
				member.names, member.urls = append(member.names, name), append(member.urls, url)
			}
		}
	}
	slices.Sort(member.names)
	slices.Sort(member.urls)
	etcdServer := grpc.NewServer(grpc.Creds(credentials.NewTLS(s.certificate(pod, desired.EtcdServerSecret))))
	etcdserverpb.RegisterClusterServer(etcdServer, member)
	etcdserverpb.RegisterMaintenanceServer(etcdServer, member)
	etcdListener, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(desired.ClientPort)))
	if err != nil {
		s.t.Fatal(err)
	}
	go func() { _ = etcdServer.Serve(etcdListener) }()
	version := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"major":"1","minor":"36","gitVersion":"v1.36.3"}`))
	})}
	listener, err := tls.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(desired.SecurePort)),
		s.certificate(pod, desired.ServingSecret))
	if err != nil {
		s.t.Fatal(err)
	}
	go func() { _ = version.Serve(listener) }()
	s.t.Cleanup(sync.OnceFunc(func() {
		etcdServer.Stop()
		_ = version.Close()
	}))
}

func (s *stubs) certificate(pod *corev1.Pod, suffix string) *tls.Config {
	secret := &corev1.Secret{}
	key := client.ObjectKey{Namespace: pod.Namespace, Name: pod.Labels[desired.ClusterLabel] + "-" + suffix}
	if err := s.client.Get(s.t.Context(), key, secret); err != nil {
		s.t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		s.t.Fatal(err)
	}
	return &tls.Config{
		Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12, ClientAuth: tls.RequestClientCert,
	}
}

// stubMember is a member of an etcd whose first member is the leader.
type stubMember struct {
	name  string
	names []string
	urls  []string
	etcdserverpb.UnimplementedClusterServer
	etcdserverpb.UnimplementedMaintenanceServer
}

// MemberList implements etcdserverpb.ClusterServer.
func (m *stubMember) MemberList(
	context.Context, *etcdserverpb.MemberListRequest,
) (*etcdserverpb.MemberListResponse, error) {
	response := &etcdserverpb.MemberListResponse{Header: &etcdserverpb.ResponseHeader{}}
	for i, name := range m.names {
		response.Members = append(response.Members, &etcdserverpb.Member{
			ID: uint64(i + 1), Name: name, PeerURLs: []string{m.urls[i]}, ClientURLs: []string{"https://" + name},
		})
	}
	return response, nil
}

// Status implements etcdserverpb.MaintenanceServer.
func (m *stubMember) Status(context.Context, *etcdserverpb.StatusRequest) (*etcdserverpb.StatusResponse, error) {
	return &etcdserverpb.StatusResponse{
		Header: &etcdserverpb.ResponseHeader{MemberId: uint64(slices.Index(m.names, m.name) + 1), Revision: 100},
		Leader: 1, Version: "3.6.0", DbSize: 1 << 20, RaftIndex: 100, RaftAppliedIndex: 100,
	}, nil
}
