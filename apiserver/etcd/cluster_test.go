package etcd

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"quorate.dev/apiserver/config"
)

// authority issues certificates into a directory.
type authority struct {
	directory   string
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	a := &authority{directory: t.TempDir()}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	a.certificate, a.key = template, newKey(t)
	a.write(t, "ca", template, newKey(t), a.key)
	return a
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (a *authority) file(name string) string { return filepath.Join(a.directory, name) }

// issue writes a certificate for 127.0.0.1, for clients and servers.
func (a *authority) issue(t *testing.T, name string) {
	t.Helper()
	a.write(t, name, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, newKey(t), a.key)
}

func (a *authority) write(t *testing.T, name string, template *x509.Certificate, key, signer *ecdsa.PrivateKey) {
	t.Helper()
	if template.IsCA {
		key = signer
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{
		name + ".crt": {Type: "CERTIFICATE", Bytes: der}, name + ".key": {Type: "PRIVATE KEY", Bytes: private},
	} {
		if err := os.WriteFile(a.file(file), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func (a *authority) clientTLS(t *testing.T, name string) *tls.Config {
	t.Helper()
	pool := x509.NewCertPool()
	bundle, err := os.ReadFile(a.file("ca.crt"))
	if err != nil || !pool.AppendCertsFromPEM(bundle) {
		t.Fatal("no authority", err)
	}
	configuration := &tls.Config{RootCAs: pool}
	if name != "" {
		certificate, err := tls.LoadX509KeyPair(a.file(name+".crt"), a.file(name+".key"))
		if err != nil {
			t.Fatal(err)
		}
		configuration.Certificates = []tls.Certificate{certificate}
	}
	return configuration
}

// freeURL returns a URL with a free port. Peers must know each other's URLs before they start.
func freeURL(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return "https://" + listener.Addr().String()
}

// secured returns the flags of a member that requires certificates of its peers.
func secured(t *testing.T, name string, peers *authority) config.Member {
	t.Helper()
	peers.issue(t, name)
	member := single(t)
	member.Name = name
	member.ListenPeerURLs = []string{freeURL(t)}
	member.PeerCertFile, member.PeerKeyFile = peers.file(name+".crt"), peers.file(name+".key")
	member.PeerTrustedCAFile = peers.file("ca.crt")
	return member
}

// grow adds a member to the cluster as a learner, starts it, and promotes it when it has caught up.
func grow(t *testing.T, seed *Member, cluster string, member config.Member) *Member {
	t.Helper()
	var (
		added *clientv3.MemberAddResponse
		err   error
	)
	eventually(t, "etcd accepts a learner once it has been connected to all voters for a while", func() (done bool) {
		added, err = seed.Client().MemberAddAsLearner(t.Context(), member.ListenPeerURLs)
		return err == nil
	})
	member.InitialCluster = cluster + "," + member.Name + "=" + member.ListenPeerURLs[0]
	member.InitialClusterState = "existing"
	m := start(t, member)
	if err := m.Check(t.Context()); err == nil {
		t.Error("Check succeeded on a learner")
	}
	if status, err := m.Status(t.Context()); err != nil || !status.Learner { // known after the read of Check
		t.Errorf("a member that has been added as a learner: %+v, %v", status, err)
	}
	select {
	case <-m.Ready():
		t.Error("a learner is ready")
	default:
	}
	deadline, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for {
		if _, err = seed.Client().MemberPromote(deadline, added.Member.ID); err == nil {
			break
		}
		select {
		case <-time.After(20 * time.Millisecond): // etcd has no notification that a learner has caught up
		case <-deadline.Done():
			t.Fatal("promotion: ", err)
		}
	}
	await(t, "ready after promotion", m.Ready())
	return m
}

func TestClusterGrows(t *testing.T) {
	t.Parallel()
	peers := newAuthority(t, "peers")
	flags := secured(t, "m0", peers)
	first := start(t, flags)
	await(t, "ready", first.Ready())
	second := grow(t, first, "m0="+flags.ListenPeerURLs[0], secured(t, "m1", peers))
	if _, err := second.Client().Put(t.Context(), "key", "value"); err != nil {
		t.Fatal(err)
	}
	list, err := second.MemberList(t.Context())
	if err != nil || len(list) != 2 || list[0].Learner || list[1].Learner {
		t.Fatalf("members %+v, %v", list, err)
	}
}

func TestLeadershipMoves(t *testing.T) {
	t.Parallel()
	peers := newAuthority(t, "peers")
	var flags []config.Member
	var cluster []string
	for i := range 3 {
		flags = append(flags, secured(t, fmt.Sprintf("m%d", i), peers))
		flags[i].HeartbeatInterval, flags[i].ElectionTimeout = 20*time.Millisecond, 500*time.Millisecond
		cluster = append(cluster, flags[i].Name+"="+flags[i].ListenPeerURLs[0])
	}
	members := make([]*Member, 3)
	for i := range members {
		flags[i].InitialCluster = strings.Join(cluster, ",")
		members[i] = start(t, flags[i])
	}
	for _, m := range members {
		await(t, "ready", m.Ready())
	}
	leader := leaderOf(t, members)
	if err := leader.MoveLeadership(t.Context()); err != nil {
		t.Fatal(err)
	}
	next := leaderOf(t, members)
	if next == leader {
		t.Fatal("the leader is the same")
	}
	if err := leader.MoveLeadership(t.Context()); err != nil {
		t.Errorf("MoveLeadership on a follower: %v", err)
	}
	if err := next.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if _, err := leader.Client().Put(t.Context(), "key", "value"); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took > 400*time.Millisecond {
		t.Errorf("the first write after the leader stopped took %v: leadership was not transferred", took)
	}
	leader = leaderOf(t, []*Member{leader, members[0], members[1], members[2]})
	begin = time.Now()
	if err := leader.Stop(t.Context()); err != nil { // one of the other two has stopped
		t.Fatal(err)
	}
	if took := time.Since(begin); took > 3*time.Second {
		t.Errorf("stopping took %v", took)
	}
}

// leaderOf returns the leader according to the first member.
func leaderOf(t *testing.T, members []*Member) *Member {
	t.Helper()
	status, err := members[0].Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range members {
		if uint64(m.server.MemberID()) == status.LeaderID {
			return m
		}
	}
	t.Fatalf("no leader: %+v", status)
	return nil
}

func TestStrangersAreRefused(t *testing.T) {
	t.Parallel()
	peers, clients, strangers := newAuthority(t, "peers"), newAuthority(t, "clients"), newAuthority(t, "strangers")
	member := secured(t, "m0", peers)
	for _, name := range []string{"server", "client"} {
		clients.issue(t, name)
	}
	member.ListenClientURLs = []string{freeURL(t)}
	member.ServerCertFile, member.ServerKeyFile = clients.file("server.crt"), clients.file("server.key")
	member.ServerTrustedCAFile = clients.file("ca.crt")
	m := start(t, member)
	await(t, "ready", m.Ready())

	put := func(configuration *tls.Config) error {
		client, err := clientv3.New(clientv3.Config{
			Endpoints: member.ListenClientURLs, TLS: configuration, Logger: zap.NewNop(),
		})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = client.Put(ctx, "key", "value")
		return err
	}
	if err := put(clients.clientTLS(t, "client")); err != nil {
		t.Errorf("a client with a certificate: %v", err)
	}
	if put(clients.clientTLS(t, "")) == nil {
		t.Error("a client without a certificate can write")
	}

	stranger := secured(t, "m1", strangers)
	if _, err := m.Client().MemberAddAsLearner(t.Context(), stranger.ListenPeerURLs); err != nil {
		t.Fatal(err)
	}
	stranger.InitialCluster = "m0=" + member.ListenPeerURLs[0] + ",m1=" + stranger.ListenPeerURLs[0]
	stranger.InitialClusterState = "existing"
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := Start(ctx, stranger); err == nil || !strings.Contains(err.Error(), noPeerAnswers) {
		t.Errorf("a member with a certificate of another authority: %v", err)
	}
}
