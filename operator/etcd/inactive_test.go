package etcd

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/rafthttp"

	"quorate.dev/test/upstream"
)

// peerProxy forwards the connections of peers to a member. It can refuse their streams, and hold their single messages.
type peerProxy struct {
	server  *httptest.Server
	forward http.Handler

	mu      sync.Mutex
	refuses bool
	streams int           // accepted since streams were refused
	holds   chan struct{} // if not nil, single messages wait until it is closed, and then fail
	held    int
}

func newPeerProxy(t *testing.T, member url.URL) *peerProxy {
	p := &peerProxy{forward: &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(&member) },
		FlushInterval: -1,
		ErrorHandler:  func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}}
	p.server = httptest.NewServer(p)
	t.Cleanup(p.server.Close)
	return p
}

func (p *peerProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	stream := strings.HasPrefix(r.URL.Path, rafthttp.RaftStreamPrefix)
	refused, holds := p.refuses && stream, p.holds
	if stream && !refused {
		p.streams++
	}
	if r.URL.Path != rafthttp.RaftPrefix {
		holds = nil
	} else if holds != nil {
		p.held++
	}
	p.mu.Unlock()
	if holds != nil {
		<-holds
	}
	if refused || holds != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	p.forward.ServeHTTP(w, r)
}

// interrupt ends the streams through the proxy, and refuses other streams until resume.
func (p *peerProxy) interrupt() {
	p.mu.Lock()
	p.refuses, p.streams = true, 0
	p.mu.Unlock()
	p.server.CloseClientConnections()
}

func (p *peerProxy) resume() {
	p.mu.Lock()
	p.refuses = false
	p.mu.Unlock()
}

// hold delays single messages until the returned function is called, which lets them fail.
func (p *peerProxy) hold() (fail func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	holds := make(chan struct{})
	p.holds = holds
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.holds = nil
		close(holds)
	}
}

func (p *peerProxy) heldMessages() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held
}

func (p *peerProxy) acceptedStreams() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.streams
}

// TestLeaderWithInactivePeer checks that AddLearner succeeds through a follower while the leader marks a connected
// follower as inactive. The test interrupts the streams, delays a single message, resumes the streams, and lets the
// message fail.
func TestLeaderWithInactivePeer(t *testing.T) {
	upstream.NeedsTime(t)
	keys := issueCredentials(t)
	addresses := [2]string{"127.0.0.1", "127.0.0.2"} // clients use the same port for all members
	peers := [2]url.URL{freeURL(t, "http"), freeURL(t, "http")}
	proxies := [2]*peerProxy{newPeerProxy(t, peers[0]), newPeerProxy(t, peers[1])}
	urls := [2]string{
		proxies[0].server.URL, strings.Replace(proxies[1].server.URL, "127.0.0.1", "localhost", 1), // names of members
	}
	client := freeURL(t, "https")
	run := func(i int, name, cluster string) *embed.Etcd {
		return startEmbedded(t, keys, func(c *embed.Config) {
			clients, advertised := client, must(url.Parse(urls[i]))(t)
			clients.Host = addresses[i] + ":" + client.Port()
			c.Name, c.InitialCluster, c.ElectionMs = name, cluster, 10_000
			c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{clients}, []url.URL{clients}
			c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{peers[i]}, []url.URL{*advertised}
			if i > 0 {
				c.ClusterState = embed.ClusterStateFlagExisting
			}
		})
	}
	leader := run(0, "a", "a="+urls[0])
	<-leader.Server.ReadyNotify()
	c := must(NewClient([]Endpoint{{Name: "127", Address: addresses[0]}, {Name: "localhost", Address: addresses[1]}},
		client.Port(), keys.credentials))(t)
	defer c.Close()
	read(t, c)
	if err := c.AddLearner(t.Context(), urls[1]); err != nil {
		t.Fatal(err)
	}
	follower := run(1, "b", "a="+urls[0]+",b="+urls[1])
	<-follower.Server.ReadyNotify()
	eventually(t, "the learner is a voter", func() bool {
		members, err := c.Members(t.Context())
		return err == nil && c.Promote(t.Context(), find(t, members, "localhost").ID) == nil
	})

	fail := proxies[1].hold()
	proxies[0].interrupt()
	eventually(t, "the leader sends a single message", func() bool { return proxies[1].heldMessages() > 0 })
	proxies[0].resume()
	local, remote := leader.Server.MemberID().String(), follower.Server.MemberID().String()
	eventually(t, "the streams are connected", func() bool {
		return proxies[0].acceptedStreams() >= 2 && activePeers(t, local, remote) == 1
	})
	fail()
	eventually(t, "the leader takes the follower for inactive", func() bool { return activePeers(t, local, remote) == 0 })

	const third = "http://demo-2.demo-members.ns.svc:2380"
	eventually(t, "a learner is added", func() bool {
		members, err := c.Members(t.Context())
		if err != nil || c.leader == nil {
			return false
		}
		if find(t, members, "localhost").Leader {
			t.Fatal("the leader has changed")
		}
		if _, err := c.leader.MemberAddAsLearner(t.Context(), []string{third}); !errors.Is(err, rpctypes.ErrUnhealthy) {
			t.Fatalf("the leader responded %v", err)
		}
		return c.AddLearner(t.Context(), third) == nil
	})
}

// activePeers returns etcd's metric of active peers: 1 if the local member marks the remote peer as active.
func activePeers(t *testing.T, local, remote string) float64 {
	t.Helper()
	families, err := prometheus.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != "etcd_network_active_peers" {
			continue
		}
		for _, metric := range family.GetMetric() {
			labels := map[string]string{}
			for _, label := range metric.GetLabel() {
				labels[label.GetName()] = label.GetValue()
			}
			if labels["Local"] == local && labels["Remote"] == remote {
				return metric.GetGauge().GetValue()
			}
		}
	}
	t.Fatalf("member %s has no peer %s", local, remote)
	return 0
}

// eventually waits until a condition is satisfied. A member checks that its connections have existed for five seconds.
func eventually(t *testing.T, what string, met func() bool) {
	t.Helper()
	limit := time.After(time.Minute)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !met() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("timed out waiting: %s", what)
		}
	}
}

func must[T any](value T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}
