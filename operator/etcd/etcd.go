// Package etcd is a client for the embedded etcd members of a cluster. It reads the linearizable member list with the
// status of each member, and executes single membership changes. It decides nothing: package membership plans the
// changes.
//
// A request is sent to one chosen member and never retried at another one by gRPC: a status belongs to the member that
// reports it, and whether a change was executed must stay observable. All requests have timeouts of at most a few
// seconds, except for defragmentations, which run in goroutines of the Pool.
package etcd

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// readTimeout bounds one read, and changeTimeout one membership change.
const (
	readTimeout   = time.Second
	changeTimeout = 5 * time.Second
)

// ErrUnreachable is returned if no member has responded to a linearizable read. Such a read needs a quorum.
var ErrUnreachable = errors.New("no etcd member responded to a linearizable read")

// Credentials authenticate the client to the members and the members to the client. All files are PEM.
type Credentials struct {
	Authority   []byte // certificates of the authorities that sign the members' certificates
	Certificate []byte
	Key         []byte
	ServerName  string // in the members' certificates; connections use IP addresses, because DNS may be stale
}

// Endpoint is a member's pod, by name, and its IP address.
type Endpoint struct {
	Name    string
	Address string
}

// Client is a client for all members of one etcd cluster. It is not safe for concurrent use. Its owner must call Close.
type Client struct {
	endpoints []endpoint
	leader    *clientv3.Client   // the client of the leader that the last call of Members has found, or nil
	followers []*clientv3.Client // the clients of the other voters that responded to the last call of Members
}

// endpoint is the connection to one member. Each has its own etcd client, so that no request is retried at another
// member.
type endpoint struct {
	name   string
	client *clientv3.Client
}

// NewClient returns a client for the members at endpoints, whose client URLs have the given port. It does not connect
// yet.
func NewClient(endpoints []Endpoint, port string, credentials Credentials) (*Client, error) {
	config, err := credentials.config()
	if err != nil {
		return nil, err
	}
	c := &Client{}
	for _, e := range endpoints {
		client, err := newClient(e, port, credentials.ServerName, config, readTimeout)
		if err != nil {
			c.Close()
			return nil, err
		}
		c.endpoints = append(c.endpoints, endpoint{e.Name, client})
	}
	return c, nil
}

// newClient returns an etcd client for one member. It closes a connection on which a keepalive ping gets no response
// within keepAliveTimeout.
func newClient(
	e Endpoint, port, serverName string, config *tls.Config, keepAliveTimeout time.Duration,
) (*clientv3.Client, error) {
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{"https://" + net.JoinHostPort(e.Address, port)}, TLS: config, Logger: zap.NewNop(),
		// gRPC verifies the certificate for the authority of the connection, and ignores the ServerName of the TLS
		// configuration.
		DialOptions:     []grpc.DialOption{grpc.WithAuthority(serverName)},
		MaxUnaryRetries: 1, DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: keepAliveTimeout,
	})
	if err != nil {
		return nil, fmt.Errorf("create a client for etcd member %s: %w", e.Name, err)
	}
	return client, nil
}

// config returns the TLS configuration of a client with the credentials.
func (c Credentials) config() (*tls.Config, error) {
	pair, err := tls.X509KeyPair(c.Certificate, c.Key)
	if err != nil {
		return nil, errors.New("the etcd client certificate does not match its key")
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(c.Authority) {
		return nil, errors.New("the etcd certificate authority is not a PEM certificate")
	}
	return &tls.Config{
		Certificates: []tls.Certificate{pair}, RootCAs: roots, ServerName: c.ServerName, MinVersion: tls.VersionTLS12,
	}, nil
}

// Close closes the connections to all members.
func (c *Client) Close() {
	for _, e := range c.endpoints {
		_ = e.client.Close()
	}
}

// clientOf returns the etcd client of the member with a name, or nil.
func (c *Client) clientOf(name string) *clientv3.Client {
	for _, e := range c.endpoints {
		if e.name == name {
			return e.client
		}
	}
	return nil
}
