// Package etcd is a client for the members of one embedded etcd: it reads the linearizable member list with the status
// of each member, and executes single membership changes. It plans nothing; that is the task of package membership.
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

// Timeouts of one read and of one membership change.
const (
	readTimeout   = time.Second
	changeTimeout = 5 * time.Second
)

// ErrUnreachable is returned when no member responded to a linearizable read, which needs a quorum.
var ErrUnreachable = errors.New("no etcd member responded to a linearizable read")

// Credentials authenticate the client and the members. All are PEM.
type Credentials struct {
	Authority   []byte // signed the members' certificates
	Certificate []byte
	Key         []byte
	ServerName  string // in the members' certificates. Members are addressed by IP, so that stale DNS answers cause no delay.
}

// Endpoint is the name of a member's pod and its IP address.
type Endpoint struct {
	Name    string
	Address string
}

// Client is a client for all members of one etcd cluster. It is not safe for concurrent use. The caller must Close it.
type Client struct {
	endpoints []endpoint
	leader    *clientv3.Client // leader as of the last Members, or nil
}

// endpoint has its own etcd client, so that a request is not retried at another member.
type endpoint struct {
	name   string
	client *clientv3.Client
}

// NewClient returns a client for endpoints at the port of the client URLs. It does not connect yet.
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

// newClient returns an etcd client that closes a connection whose keepalive pings get no response for keepAliveTimeout.
func newClient(e Endpoint, port, serverName string, config *tls.Config, keepAliveTimeout time.Duration) (*clientv3.Client, error) {
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{"https://" + net.JoinHostPort(e.Address, port)}, TLS: config, Logger: zap.NewNop(),
		// gRPC verifies the certificate for the authority and ignores the ServerName of the TLS configuration.
		DialOptions:     []grpc.DialOption{grpc.WithAuthority(serverName)},
		MaxUnaryRetries: 1, DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: keepAliveTimeout,
	})
	if err != nil {
		return nil, fmt.Errorf("creating a client for etcd member %s: %w", e.Name, err)
	}
	return client, nil
}

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

// Close closes all connections.
func (c *Client) Close() {
	for _, e := range c.endpoints {
		_ = e.client.Close()
	}
}

// clientOf returns the etcd client of a member, or nil.
func (c *Client) clientOf(name string) *clientv3.Client {
	for _, e := range c.endpoints {
		if e.name == name {
			return e.client
		}
	}
	return nil
}
