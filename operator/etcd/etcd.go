// Package etcd reaches the members of one embedded etcd: it reads the member list linearizably and asks each member about
// itself, and it makes the one membership change it is told to make. It decides nothing.
package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// Timeout of one question, and of one change.
const (
	readTimeout   = time.Second
	changeTimeout = 5 * time.Second
)

// ErrUnreachable says that no quorum answered.
var ErrUnreachable = errors.New("no etcd member answers with a quorum behind it")

// Credentials authenticate both sides.
type Credentials struct {
	Authority   []byte // PEM; signed the members' certificates
	Certificate []byte
	Key         []byte
	ServerName  string // in the members' certificates; they are called by address, which no stale DNS answer delays
}

// Member is one entry of the list, with what the member says itself.
type Member struct {
	ID      uint64
	Name    string // the first label of the peer URL's host: known before the member starts
	PeerURL string
	Learner bool
	Started bool
	Healthy bool // it answers and knows a leader
	Leader  bool
	Applied uint64
	Version string
	DBSize  int64 // bytes
	Alarms  []string
}

// Endpoint of a member: the name of its pod and the IP it is called at.
type Endpoint struct {
	Name    string
	Address string
}

// Client talks to members. Close it. It is for one caller at a time.
type Client struct {
	endpoints []endpoint
	leader    *clientv3.Client // as of the last Read
}

// endpoint has a client of its own: a question must not end at another member.
type endpoint struct {
	name   string
	client *clientv3.Client
}

// Dial makes a client; it does not connect yet. Port is that of the client URLs.
func Dial(endpoints []Endpoint, port string, credentials Credentials) (*Client, error) {
	config, err := credentials.config()
	if err != nil {
		return nil, err
	}
	c := &Client{}
	for _, e := range endpoints {
		client, err := clientv3.New(clientv3.Config{
			Endpoints: []string{"https://" + net.JoinHostPort(e.Address, port)}, TLS: config, Logger: zap.NewNop(),
			// gRPC checks the certificate against the authority, whatever the TLS configuration names.
			DialOptions:     []grpc.DialOption{grpc.WithAuthority(credentials.ServerName)},
			MaxUnaryRetries: 1, DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: readTimeout,
		})
		if err != nil {
			c.Close()
			return nil, fmt.Errorf("making a client of etcd member %s: %w", e.Name, err)
		}
		c.endpoints = append(c.endpoints, endpoint{e.Name, client})
	}
	return c, nil
}

func (c Credentials) config() (*tls.Config, error) {
	pair, err := tls.X509KeyPair(c.Certificate, c.Key)
	if err != nil {
		return nil, errors.New("the certificate for etcd and its key do not fit")
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(c.Authority) {
		return nil, errors.New("the authority of etcd's certificates is unreadable")
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: roots, ServerName: c.ServerName, MinVersion: tls.VersionTLS12}, nil
}

// Close ends all connections.
func (c *Client) Close() {
	for _, e := range c.endpoints {
		_ = e.client.Close()
	}
}

// Read returns the members, or ErrUnreachable. It asks the leader it knows for the list, and everybody only if that fails. It asks members about themselves only after it has seen them in the list:
// etcd panics when it is asked for the status of a member that has just been removed.
func (c *Client) Read(ctx context.Context) ([]Member, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*readTimeout)
	defer cancel()
	entries, err := c.list(ctx)
	if err != nil {
		return nil, err
	}
	c.leader = nil
	members := make([]Member, len(entries))
	var group sync.WaitGroup
	for i, entry := range entries {
		members[i] = memberOf(entry)
		if client := c.of(members[i].Name); client != nil {
			group.Go(func() { members[i].ask(ctx, client) })
		}
	}
	group.Wait()
	for _, m := range members {
		if m.Leader {
			c.leader = c.of(m.Name)
		}
	}
	return members, nil
}

func (c *Client) of(name string) *clientv3.Client {
	for _, e := range c.endpoints {
		if e.name == name {
			return e.client
		}
	}
	return nil
}

// list reads the member list linearizably from the leader or else from whoever is first to answer.
func (c *Client) list(ctx context.Context) ([]*etcdserverpb.Member, error) {
	if c.leader != nil {
		short, cancel := context.WithTimeout(ctx, readTimeout)
		reply, err := c.leader.MemberList(short)
		cancel()
		if err == nil {
			return reply.Members, nil
		}
		c.leader = nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		name  string
		reply *clientv3.MemberListResponse
		err   error
	}
	answers := make(chan answer, len(c.endpoints))
	for _, e := range c.endpoints {
		go func() {
			reply, err := e.client.MemberList(ctx)
			answers <- answer{e.name, reply, err}
		}()
	}
	reasons := []error{ErrUnreachable}
	for range c.endpoints {
		a := <-answers
		if a.err == nil {
			return a.reply.Members, nil
		}
		reasons = append(reasons, fmt.Errorf("%s: %w", a.name, a.err))
	}
	return nil, errors.Join(reasons...)
}

func memberOf(entry *etcdserverpb.Member) Member {
	m := Member{ID: entry.ID, Learner: entry.IsLearner, Started: len(entry.ClientURLs) > 0}
	if len(entry.PeerURLs) > 0 {
		m.PeerURL = entry.PeerURLs[0]
		m.Name = nameOf(m.PeerURL)
	}
	return m
}

// ask completes a member with what it says itself.
func (m *Member) ask(ctx context.Context, client *clientv3.Client) {
	status, err := client.Status(ctx, client.Endpoints()[0])
	if err != nil || status.Header.MemberId != m.ID {
		return
	}
	m.Healthy, m.Leader = status.Leader != 0, status.Leader == m.ID
	m.Applied, m.Version, m.DBSize, m.Alarms = status.RaftAppliedIndex, status.Version, status.DbSize, status.Errors
}

func nameOf(peerURL string) string {
	parsed, err := url.Parse(peerURL)
	if err != nil {
		return ""
	}
	name, _, _ := strings.Cut(parsed.Hostname(), ".")
	return name
}

// AddLearner adds a member that does not vote.
func (c *Client) AddLearner(ctx context.Context, peerURL string) error {
	return c.change(ctx, "adding learner "+peerURL, func(ctx context.Context, client *clientv3.Client) error {
		_, err := client.MemberAddAsLearner(ctx, []string{peerURL})
		return err
	})
}

// Promote makes a learner a voter.
func (c *Client) Promote(ctx context.Context, id uint64) error {
	return c.change(ctx, fmt.Sprintf("promoting member %x", id), func(ctx context.Context, client *clientv3.Client) error {
		_, err := client.MemberPromote(ctx, id)
		return err
	})
}

// Remove removes a member.
func (c *Client) Remove(ctx context.Context, id uint64) error {
	return c.change(ctx, fmt.Sprintf("removing member %x", id), func(ctx context.Context, client *clientv3.Client) error {
		_, err := client.MemberRemove(ctx, id)
		return err
	})
}

// MoveLeader makes another voter lead.
func (c *Client) MoveLeader(ctx context.Context, to uint64) error {
	return c.change(ctx, fmt.Sprintf("moving leadership to member %x", to), func(ctx context.Context, client *clientv3.Client) error {
		_, err := client.MoveLeader(ctx, to)
		return err
	})
}

// change asks the leader of the last Read, which alone can move its leadership and need not forward the rest. It asks once:
// whether a change that was not answered has happened is for the next Read to say.
func (c *Client) change(ctx context.Context, what string, do func(context.Context, *clientv3.Client) error) error {
	if c.leader == nil {
		return fmt.Errorf("%s: the leader does not answer", what)
	}
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	if err := do(ctx, c.leader); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
