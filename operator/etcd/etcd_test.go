package etcd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"quorate.dev/operator/pki"
)

const serverName = "demo-members.ns.svc"

// testMember is an etcd member with TLS in this process.
type testMember struct {
	endpoint    Endpoint
	port        string
	credentials Credentials
}

// keys has the credentials of clients and the TLS files of members.
type keys struct {
	credentials Credentials
	files       transport.TLSInfo
}

func issueCredentials(t *testing.T) keys {
	t.Helper()
	now := time.Now()
	authority, err := pki.NewAuthority("etcd-client-ca", pki.AuthorityLifetime, now)
	if err != nil {
		t.Fatal(err)
	}
	issue := func(leaf pki.Leaf) pki.Pair {
		pair, err := authority.Issue(leaf, now)
		if err != nil {
			t.Fatal(err)
		}
		return pair
	}
	server := issue(pki.Leaf{CommonName: "etcd-server", DNSNames: []string{serverName}, Server: true, Client: true})
	client := issue(pki.Leaf{CommonName: "operator", Client: true})
	folder := t.TempDir()
	write := func(name string, data []byte) string {
		file := filepath.Join(folder, name)
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	return keys{
		credentials: Credentials{
			Authority: authority.Certificate, Certificate: client.Certificate, Key: client.Key, ServerName: serverName,
		},
		files: transport.TLSInfo{
			CertFile: write("server.crt", server.Certificate), KeyFile: write("server.key", server.Key),
			TrustedCAFile: write("ca.crt", authority.Certificate), ClientCertAuth: true,
		},
	}
}

// startEmbedded starts a member in this process, without fsync.
func startEmbedded(t *testing.T, k keys, configure func(*embed.Config)) *embed.Etcd {
	t.Helper()
	c := embed.NewConfig()
	c.Dir, c.UnsafeNoFsync, c.ClientTLSInfo = filepath.Join(t.TempDir(), "data"), true, k.files
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	configure(c)
	member, err := embed.StartEtcd(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(member.Close)
	return member
}

// startMember starts a single member named demo-0, whose peer URL has the host name 127.0.0.1.
func startMember(t *testing.T) testMember {
	t.Helper()
	k, clientURL, peerURL := issueCredentials(t), freeURL(t, "https"), freeURL(t, "http")
	member := startEmbedded(t, k, func(c *embed.Config) {
		c.Name = "demo-0"
		c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{clientURL}, []url.URL{clientURL}
		c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{peerURL}, []url.URL{peerURL}
		c.InitialCluster = c.InitialClusterFromName(c.Name)
	})
	<-member.Server.ReadyNotify()
	return testMember{
		endpoint: Endpoint{Name: "127", Address: "127.0.0.1"}, port: clientURL.Port(), credentials: k.credentials,
	}
}

func freeURL(t *testing.T, scheme string) url.URL {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return url.URL{Scheme: scheme, Host: listener.Addr().String()}
}

// TestMembershipChanges adds and removes a learner of a real member, and reads the list after each change.
func TestMembershipChanges(t *testing.T) {
	m := startMember(t)
	client, err := NewClient([]Endpoint{m.endpoint}, m.port, m.credentials)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := client.AddLearner(t.Context(), "http://demo-1.demo-members.ns.svc:2380"); err == nil {
		t.Error("AddLearner() before the first Members(): no error")
	}
	members := read(t, client)
	if len(members) != 1 {
		t.Fatalf("Members(): %+v, want one", members)
	}
	leader := members[0]
	if !leader.Leader || !leader.Healthy || !leader.Started || leader.Learner ||
		leader.Version == "" || leader.DBSize == 0 {
		t.Errorf("Members(): %+v, want a healthy leader", leader)
	}
	if err := client.AddLearner(t.Context(), "http://demo-1.demo-members.ns.svc:2380"); err != nil {
		t.Fatal(err)
	}
	learner := find(t, read(t, client), "demo-1")
	if !learner.Learner || learner.Started || learner.Healthy {
		t.Errorf("Members() after AddLearner(): %+v, want a learner that has not started", learner)
	}
	if err := client.Promote(t.Context(), learner.ID); err == nil {
		t.Error("Promote() of a learner that has not started: no error")
	}
	if err := client.Remove(t.Context(), learner.ID); err != nil {
		t.Fatal(err)
	}
	if members := read(t, client); len(members) != 1 {
		t.Errorf("Members() after Remove(): %+v, want one", members)
	}
}

func read(t *testing.T, client *Client) []Member {
	t.Helper()
	members, err := client.Members(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return members
}

func find(t *testing.T, members []Member, name string) Member {
	t.Helper()
	for _, m := range members {
		if m.Name == name {
			return m
		}
	}
	t.Fatalf("no member %s in %+v", name, members)
	return Member{}
}

// Without a quorum, members still report their revisions.
func TestSurvivors(t *testing.T) {
	m := startMember(t)
	client, err := NewClient([]Endpoint{m.endpoint}, m.port, m.credentials)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	member := client.clientOf(m.endpoint.Name)
	if _, err := member.Put(t.Context(), "key", "value"); err != nil {
		t.Fatal(err)
	}
	if _, err := member.MemberAdd(t.Context(), []string{"http://127.0.0.1:1"}); err != nil { // it never starts
		t.Fatal(err)
	}
	if _, err := client.Members(t.Context()); !errors.Is(err, ErrUnreachable) {
		t.Fatalf("Members(): %v, want no quorum", err)
	}
	survivors := client.Survivors(t.Context(), []string{m.endpoint.Name, "demo-1"})
	if s := survivors[0]; !s.Reachable || s.Revision != 2 || s.Term == 0 || s.Index == 0 {
		t.Errorf("%+v, want revision 2", s)
	}
	if s := survivors[1]; s.Reachable || s.Name != "demo-1" {
		t.Errorf("%+v, want an unreachable member", s)
	}
}

func TestUnreachable(t *testing.T) {
	m := startMember(t)
	unused := freeURL(t, "https")
	other := m.credentials
	other.ServerName = "other-members.ns.svc"
	for name, c := range map[string]struct {
		port        string
		credentials Credentials
	}{
		"no listener":            {unused.Port(), m.credentials},
		"certificate of another": {m.port, other},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client, err := NewClient([]Endpoint{m.endpoint}, c.port, c.credentials)
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			if _, err := client.Members(t.Context()); !errors.Is(err, ErrUnreachable) {
				t.Errorf("Members(): error %v, want ErrUnreachable", err)
			}
		})
	}
}

func TestInvalidCredentials(t *testing.T) {
	authority, err := pki.NewAuthority("ca", pki.AuthorityLifetime, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for name, credentials := range map[string]Credentials{
		"none":         {},
		"no authority": {Certificate: authority.Certificate, Key: authority.Key},
		"no key":       {Authority: authority.Certificate, Certificate: authority.Certificate},
	} {
		if client, err := NewClient(nil, "2379", credentials); err == nil {
			client.Close()
			t.Errorf("%s: no error", name)
		}
	}
}

func TestPoolReusesClients(t *testing.T) {
	authority, err := pki.NewAuthority("ca", pki.AuthorityLifetime, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	credentials := Credentials{Authority: authority.Certificate, Certificate: authority.Certificate, Key: authority.Key}
	endpoints := []Endpoint{{Name: "demo-0", Address: "127.0.0.1"}}
	pool := NewPool()
	get := func(cluster string, endpoints []Endpoint) *Client {
		client, err := pool.Get(cluster, endpoints, "2379", credentials)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { pool.Drop(cluster) })
		return client
	}
	first := get("ns/demo", endpoints)
	if get("ns/demo", endpoints) != first {
		t.Error("Get() with the same arguments: another client")
	}
	if get("ns/other", endpoints) == first {
		t.Error("Get() of another cluster: the same client")
	}
	moved := get("ns/demo", []Endpoint{{Name: "demo-0", Address: "127.0.0.2"}})
	if moved == first {
		t.Error("Get() with another address: the same client")
	}
	pool.Drop("ns/demo")
	if get("ns/demo", endpoints) == moved {
		t.Error("Get() after Drop(): the same client")
	}
}

func TestNameOf(t *testing.T) {
	for peerURL, want := range map[string]string{
		"https://demo-3.demo-members.ns.svc:2380": "demo-3",
		"https://demo-10:2380":                    "demo-10",
		"":                                        "",
		":%":                                      "",
	} {
		if got := nameOf(peerURL); got != want {
			t.Errorf("nameOf(%q): %q, want %q", peerURL, got, want)
		}
	}
}

// TestPlainErrors checks that messages for users have none of gRPC's notation.
func TestPlainErrors(t *testing.T) {
	for want, err := range map[string]error{
		"no response":                  fmt.Errorf("wrapped: %w", context.DeadlineExceeded),
		"no response ":                 status.Error(codes.DeadlineExceeded, "context deadline exceeded"),
		"dial tcp: connection refused": status.Error(codes.Unavailable, "dial tcp: connection refused"),
		"etcdserver: no leader":        rpctypes.ErrNoLeader,
		"other":                        errors.New("other"),
	} {
		if got := plain(err).Error(); got != strings.TrimSpace(want) {
			t.Errorf("%v: got %q, want %q", err, got, want)
		}
	}
}
