// Package etcd reaches the members of one embedded etcd: it reads the member list linearizably and asks each member about
// itself, and it makes the one membership change it is told to make. It decides nothing.
package etcd

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
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
	readTimeout   = 2 * time.Second
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

// Client talks to the members at the given addresses. Close it.
type Client struct {
	members []*clientv3.Client // one each: a question must not end at another member
}

// Dial makes a client; it does not connect yet. Addresses are IPs; port is that of the client URLs.
func Dial(addresses []string, port string, credentials Credentials) (*Client, error) {
	config, err := credentials.config()
	if err != nil {
		return nil, err
	}
	c := &Client{}
	for _, address := range addresses {
		member, err := clientv3.New(clientv3.Config{
			Endpoints: []string{"https://" + net.JoinHostPort(address, port)}, TLS: config, Logger: zap.NewNop(),
			// gRPC checks the certificate against the authority, whatever the TLS configuration names.
			DialOptions:     []grpc.DialOption{grpc.WithAuthority(credentials.ServerName)},
			MaxUnaryRetries: 1, DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: readTimeout,
		})
		if err != nil {
			c.Close()
			return nil, fmt.Errorf("making a client of etcd at %s: %w", address, err)
		}
		c.members = append(c.members, member)
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
	for _, member := range c.members {
		_ = member.Close()
	}
}

// answer is what one member said about itself.
type answer struct {
	client *clientv3.Client
	status *clientv3.StatusResponse
}

// Read returns the members, or ErrUnreachable.
func (c *Client) Read(ctx context.Context) ([]Member, error) {
	answers := c.ask(ctx)
	list, err := list(ctx, answers)
	if err != nil {
		return nil, err
	}
	members := make([]Member, 0, len(list))
	for _, entry := range list {
		members = append(members, join(entry, answers))
	}
	return members, nil
}

// ask puts the question to all members at once; those that do not answer are left out.
func (c *Client) ask(ctx context.Context) []answer {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	answers := make([]answer, len(c.members))
	var group sync.WaitGroup
	for i, member := range c.members {
		group.Go(func() {
			status, err := member.Status(ctx, member.Endpoints()[0])
			if err == nil {
				answers[i] = answer{client: member, status: status}
			}
		})
	}
	group.Wait()
	return slices.DeleteFunc(answers, func(a answer) bool { return a.status == nil })
}

// list reads the member list through a voter, the leader first.
func list(ctx context.Context, answers []answer) ([]*etcdserverpb.Member, error) {
	var reasons []error
	for _, a := range voters(answers) {
		reply, err := func() (*clientv3.MemberListResponse, error) {
			ctx, cancel := context.WithTimeout(ctx, readTimeout)
			defer cancel()
			return a.client.MemberList(ctx)
		}()
		if err == nil {
			return reply.Members, nil
		}
		reasons = append(reasons, err)
	}
	return nil, errors.Join(append([]error{ErrUnreachable}, reasons...)...)
}

// voters that know a leader, the leader first.
func voters(answers []answer) []answer {
	able := slices.DeleteFunc(slices.Clone(answers), func(a answer) bool { return a.status.IsLearner || a.status.Leader == 0 })
	slices.SortStableFunc(able, func(a, b answer) int { return cmp.Compare(leads(b), leads(a)) })
	return able
}

func leads(a answer) int {
	if a.status.Leader == a.status.Header.MemberId {
		return 1
	}
	return 0
}

func join(entry *etcdserverpb.Member, answers []answer) Member {
	m := Member{ID: entry.ID, Learner: entry.IsLearner, Started: len(entry.ClientURLs) > 0}
	if len(entry.PeerURLs) > 0 {
		m.PeerURL = entry.PeerURLs[0]
		m.Name = nameOf(m.PeerURL)
	}
	for _, a := range answers {
		if a.status.Header.MemberId != entry.ID {
			continue
		}
		m.Healthy, m.Leader = a.status.Leader != 0, leads(a) == 1
		m.Applied, m.Version, m.DBSize, m.Alarms = a.status.RaftAppliedIndex, a.status.Version, a.status.DbSize, a.status.Errors
	}
	return m
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

// change asks the leader, which alone can move its leadership and need not forward the rest. It asks once: whether a change
// that was not answered has happened is for the next Read to say.
func (c *Client) change(ctx context.Context, what string, do func(context.Context, *clientv3.Client) error) error {
	able := voters(c.ask(ctx))
	if len(able) == 0 || leads(able[0]) == 0 {
		return fmt.Errorf("%s: the leader does not answer", what)
	}
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	if err := do(ctx, able[0].client); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
