package operator

import (
	"context"
	"fmt"
	"math/rand"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/apiserver/config"
	"quorate.dev/operator/desired"
)

// node simulates kubelets, cluster DNS and the API servers: it runs the etcd member of each pod with the pod's
// arguments and mounted Secrets on a separate address, and reports the pod ready once the member is a voter.
type node struct {
	t       *testing.T
	client  client.Client
	folder  string
	network string // 127.x.y.

	mutex sync.Mutex
	next  int
	pods  map[string]*runningPod
}

type runningPod struct {
	uid     string
	address string
	member  *embed.Etcd // nil for a server or before the start
	started chan *embed.Etcd
	stopped chan struct{}
}

func startNode(t *testing.T, c client.Client) *node {
	n := &node{t: t, client: c, folder: t.TempDir(), pods: map[string]*runningPod{},
		network: fmt.Sprintf("127.%d.%d.", 64+rand.Intn(60), rand.Intn(256))}
	n.serveNames()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			n.round(ctx)
			select {
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		for _, pod := range n.pods {
			pod.stop()
		}
	})
	return n
}

func (p *runningPod) stop() {
	close(p.stopped)
	if p.member == nil && p.started != nil {
		select {
		case p.member = <-p.started:
		case <-time.After(5 * time.Second): // it has not started in time
		}
	}
	if p.member != nil {
		p.member.Server.Stop() // before Close, which otherwise waits for ever for a member that has never been ready
		p.member.Close()
	}
}

// round starts and stops pods to match the API.
func (n *node) round(ctx context.Context) {
	var pods corev1.PodList
	if err := n.client.List(ctx, &pods); err != nil {
		return
	}
	n.mutex.Lock()
	defer n.mutex.Unlock()
	seen := map[string]bool{}
	for i := range pods.Items {
		pod := &pods.Items[i]
		seen[pod.Name] = true
		if running := n.pods[pod.Name]; running != nil && (running.uid != string(pod.UID) || pod.DeletionTimestamp != nil) {
			running.stop()
			delete(n.pods, pod.Name)
		}
		if pod.DeletionTimestamp != nil {
			_ = n.client.Delete(ctx, pod, client.GracePeriodSeconds(0))
			continue
		}
		if err := n.keep(ctx, pod); err != nil && ctx.Err() == nil {
			n.t.Logf("node: %s: %v", pod.Name, err)
		}
	}
	for name, running := range n.pods {
		if !seen[name] {
			running.stop()
			delete(n.pods, name)
		}
	}
}

// keep runs a pod and reports its status.
func (n *node) keep(ctx context.Context, pod *corev1.Pod) error {
	running := n.pods[pod.Name]
	if running == nil {
		n.next++
		running = &runningPod{
			uid: string(pod.UID), address: fmt.Sprintf("%s%d", n.network, n.next), stopped: make(chan struct{}),
		}
		n.pods[pod.Name] = running
	}
	member := pod.Labels[desired.RoleLabel] == desired.RoleMember
	if member && running.started == nil {
		running.started = make(chan *embed.Etcd, 1)
		go n.start(ctx, pod, running)
	}
	select {
	case running.member = <-running.started:
	default:
	}
	ready := !member
	if running.member != nil {
		select {
		case <-running.member.Server.ReadyNotify():
			server := running.member.Server
			ready = server.IsMemberExist(server.MemberID()) && !server.IsLearner()
		default:
		}
	}
	return n.report(ctx, pod, running.address, ready)
}

func (n *node) report(ctx context.Context, pod *corev1.Pod, address string, ready bool) error {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	if pod.Status.PodIP == address && len(pod.Status.Conditions) == 1 && pod.Status.Conditions[0].Status == status {
		return nil
	}
	after := pod.DeepCopy()
	after.Status.Phase, after.Status.PodIP, after.Status.PodIPs = corev1.PodRunning, address, []corev1.PodIP{{IP: address}}
	after.Status.Conditions = []corev1.PodCondition{{
		Type: corev1.PodReady, Status: status, LastTransitionTime: metav1.Now(),
	}}
	return n.client.Status().Patch(ctx, after, client.MergeFrom(pod))
}

// start starts the member of a pod, and retries errors.
func (n *node) start(ctx context.Context, pod *corev1.Pod, running *runningPod) {
	for ctx.Err() == nil {
		member, err := n.launch(ctx, pod, running.address)
		if err == nil {
			running.started <- member
			return
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-running.stopped:
			return
		}
	}
}

func (n *node) launch(ctx context.Context, pod *corev1.Pod, address string) (*embed.Etcd, error) {
	certificates := filepath.Join(n.folder, pod.Name+"-"+string(pod.UID))
	if err := n.mount(ctx, pod, certificates); err != nil {
		return nil, err
	}
	replace := strings.NewReplacer("$(POD_IP)", address, "/etc/quorate/certificates", certificates,
		"/var/lib/quorate", n.volume(pod.Name))
	args := make([]string, 0, len(pod.Spec.Containers[0].Args))
	for _, arg := range pod.Spec.Containers[0].Args[1:] {
		args = append(args, replace.Replace(arg))
	}
	parsed := config.Default()
	if err := parsed.Flags().Parse(args); err != nil {
		return nil, err
	}
	if err := parsed.Validate(); err != nil {
		return nil, err
	}
	return startMember(parsed.Member)
}

func startMember(m config.Member) (*embed.Etcd, error) {
	c := embed.NewConfig()
	c.Name, c.Dir, c.ClusterState, c.InitialClusterToken, c.InitialCluster =
		m.Name, m.DataDirectory, m.InitialClusterState, m.InitialClusterToken, m.InitialCluster
	c.ListenPeerUrls, c.AdvertisePeerUrls = urls(m.ListenPeerURLs), urls(m.AdvertisePeerURLs)
	c.ListenClientUrls, c.AdvertiseClientUrls = urls(m.ListenClientURLs), urls(m.AdvertiseClientURLs)
	c.PeerTLSInfo = transport.TLSInfo{
		CertFile: m.PeerCertFile, KeyFile: m.PeerKeyFile, TrustedCAFile: m.PeerTrustedCAFile,
		ClientCertAuth: true, SkipClientSANVerify: true,
	}
	c.ClientTLSInfo = transport.TLSInfo{
		CertFile: m.ServerCertFile, KeyFile: m.ServerKeyFile, TrustedCAFile: m.ServerTrustedCAFile, ClientCertAuth: true,
	}
	c.EnableGRPCGateway, c.UnsafeNoFsync = false, true
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	return embed.StartEtcd(c)
}

func urls(raw []string) []url.URL {
	var out []url.URL
	for _, text := range raw {
		if u, err := url.Parse(text); err == nil {
			out = append(out, *u)
		}
	}
	return out
}

// mount writes the files of a pod's projected volume.
func (n *node) mount(ctx context.Context, pod *corev1.Pod, folder string) error {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	for _, source := range pod.Spec.Volumes[0].Projected.Sources {
		var secret corev1.Secret
		if err := n.client.Get(
			ctx, client.ObjectKey{Namespace: pod.Namespace, Name: source.Secret.Name}, &secret,
		); err != nil {
			return err
		}
		for _, item := range source.Secret.Items {
			data, ok := secret.Data[item.Key]
			if !ok {
				return fmt.Errorf("secret %s has no %s", secret.Name, item.Key)
			}
			if err := os.WriteFile(filepath.Join(folder, item.Path), data, 0o600); err != nil {
				return err
			}
		}
	}
	return nil
}

// volume returns the folder of a claim.
func (n *node) volume(claim string) string { return filepath.Join(n.folder, "volume-"+claim) }

// serveNames starts a DNS server for the members' domain and makes it the resolver of this process.
func (n *node) serveNames() {
	packets, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		n.t.Fatal(err)
	}
	server := &dns.Server{PacketConn: packets, Handler: dns.HandlerFunc(n.resolve)}
	go func() { _ = server.ActivateAndServe() }()
	previous := net.DefaultResolver
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, "udp", packets.LocalAddr().String())
	}}
	n.t.Cleanup(func() {
		net.DefaultResolver = previous
		_ = server.Shutdown()
	})
}

func (n *node) resolve(w dns.ResponseWriter, query *dns.Msg) {
	response := new(dns.Msg)
	response.SetReply(query)
	name, _, _ := strings.Cut(query.Question[0].Name, ".")
	n.mutex.Lock()
	pod := n.pods[name]
	n.mutex.Unlock()
	switch {
	case pod == nil:
		response.Rcode = dns.RcodeNameError
	case query.Question[0].Qtype == dns.TypeA:
		response.Answer = []dns.RR{&dns.A{
			Hdr: dns.RR_Header{Name: query.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET},
			A:   net.ParseIP(pod.address),
		}}
	}
	_ = w.WriteMsg(response)
}
