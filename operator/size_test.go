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
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/test/upstream"
)

// clustersPerNamespace is the number of clusters in each namespace of TestOperatorSize.
const clustersPerNamespace = 50

// quietPeriod is the time over which CPU time is measured.
const quietPeriod = 5 * time.Minute

// size is what an operator process uses.
type size struct {
	resident, peak, binary int64 // MiB; binary is the part of resident that consists of pages of the executable
	processor              float64
}

// documentedSize is the size with 200 clusters in docs/install.md. TestOperatorSizeIsDocumented compares the two.
var documentedSize = size{resident: 143, peak: 197, binary: 81, processor: 1.4}

// documentedClusters is the number of clusters of documentedSize.
const documentedClusters = 200

// limits returns the largest size with a number of clusters that does not contradict the documentation. Half of the memory of
// the documented process, without the pages of the binary, is taken as independent of the number of clusters. Memory may be half
// as large again, because the garbage collector's pace depends on the load of the machine. CPU time may be twice as much,
// because it depends on the processor and on the other load of the machine.
func (s size) limits(clusters int) size {
	share := 0.5 + 0.5*float64(clusters)/documentedClusters
	grown := func(documented int64, factor float64) int64 {
		return s.binary + int64(share*factor*float64(documented-s.binary))
	}
	const memoryFactor, processorFactor = 1.5, 2
	return size{
		binary: s.binary * 5 / 4, resident: grown(s.resident, memoryFactor), peak: grown(s.peak, memoryFactor),
		processor: share * processorFactor * s.processor,
	}
}

// check reports what is larger than its limit.
func (s size) check(limit size) []string {
	var problems []string
	for _, figure := range []struct {
		name       string
		got, limit float64
		unit       string
	}{
		{"resident memory", float64(s.resident), float64(limit.resident), "MiB"},
		{"peak of resident memory", float64(s.peak), float64(limit.peak), "MiB"},
		{"resident pages of the binary", float64(s.binary), float64(limit.binary), "MiB"},
		{"CPU time", s.processor, limit.processor, "% of a core"},
	} {
		if figure.got > figure.limit {
			problems = append(problems, fmt.Sprintf("%s: %.1f %s, want at most %.1f", figure.name, figure.got, figure.unit, figure.limit))
		}
	}
	return problems
}

// TestOperatorSizeIsDocumented checks that the documentation has the figures that TestOperatorSize enforces, that a process which
// uses them passes, and that one which uses twice the memory or three times the CPU time fails.
func TestOperatorSizeIsDocumented(t *testing.T) {
	text, err := os.ReadFile("../docs/install.md")
	if err != nil {
		t.Fatal(err)
	}
	d, guide := documentedSize, strings.Join(strings.Fields(string(text)), " ")
	for _, want := range []string{
		fmt.Sprintf("With %d clusters of three replicas", documentedClusters),
		fmt.Sprintf("uses %d MiB of resident memory, including %d MiB of pages of its binary, and %.1f %% of a core", d.resident, d.binary, d.processor),
		fmt.Sprintf("it used up to %d MiB", d.peak),
	} {
		if !strings.Contains(guide, want) {
			t.Errorf("docs/install.md does not have %q", want)
		}
	}
	limit := d.limits(documentedClusters)
	if problems := d.check(limit); len(problems) > 0 {
		t.Errorf("the documented size is too large: %q", problems)
	}
	large := size{resident: 2 * d.resident, peak: 2 * d.peak, binary: 2 * d.binary, processor: 3 * d.processor}
	if problems := large.check(limit); len(problems) != 4 {
		t.Errorf("only these are too large: %q", problems)
	}
	if few := d.limits(1); few.resident >= limit.resident || few.processor >= limit.processor {
		t.Errorf("the limits do not depend on the number of clusters: %+v, %+v", few, limit)
	}
}

// TestOperatorSize measures the memory and the CPU time of an operator process with many clusters of three replicas, over five
// minutes, the resync interval, in which nothing changes. It fails if they contradict docs/install.md. Pods are stubs:
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
			if err := e.client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); err != nil {
				t.Fatal(err)
			}
		}
		cluster := &v1alpha1.ApiServerCluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("cluster-%d", i)}}
		if err := e.client.Create(t.Context(), cluster); err != nil {
			t.Fatal(err)
		}
	}
	for ready := 0; ready < count; ready = e.readyClusters() {
		if time.Since(begin) > 15*time.Minute {
			t.Fatalf("%d of %d clusters are ready", ready, count)
		}
		stubs.round()
		time.Sleep(100 * time.Millisecond) // polling interval
	}
	t.Logf("%d clusters are ready after %s", count, time.Since(begin).Round(time.Second))
	time.Sleep(time.Minute)
	processor := processorTime(t, command.Process.Pid)
	time.Sleep(quietPeriod)
	processor = processorTime(t, command.Process.Pid) - processor
	got := size{
		resident: residentMemory(t, command.Process.Pid, "VmRSS") >> 20, binary: residentMemory(t, command.Process.Pid, "RssFile") >> 20,
		peak: residentMemory(t, command.Process.Pid, "VmHWM") >> 20, processor: 100 * processor.Seconds() / quietPeriod.Seconds(),
	}
	t.Logf("operator: %d MiB resident, of which %d MiB are pages of the binary; at most %d MiB; %.1f %% of a core",
		got.resident, got.binary, got.peak, got.processor)
	for _, problem := range got.check(documentedSize.limits(count)) {
		t.Error(problem)
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
		after.Status.Phase, after.Status.PodIP, after.Status.PodIPs = corev1.PodRunning, address, []corev1.PodIP{{IP: address}}
		after.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
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
	listener, err := tls.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(desired.SecurePort)), s.certificate(pod, desired.ServingSecret))
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
	return &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12, ClientAuth: tls.RequestClientCert}
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
func (m *stubMember) MemberList(context.Context, *etcdserverpb.MemberListRequest) (*etcdserverpb.MemberListResponse, error) {
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
