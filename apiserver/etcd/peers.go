package etcd

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/etcdhttp"
	"go.etcd.io/etcd/server/v3/etcdserver/api/rafthttp"
	"go.uber.org/zap"
)

const (
	// termsPath and hashPath are the paths on the peer URLs that respond with a termReport and a hashReport.
	termsPath = "/quorate/terms"
	hashPath  = "/quorate/hash"
	// peerTimeout bounds a request for a termReport or hashReport.
	peerTimeout = 3 * time.Second
	// peerReadTimeout is etcd's limit for reading a request of a peer.
	peerReadTimeout = 5 * time.Minute
	// peerResponseLimit bounds the response of a peer, in bytes.
	peerResponseLimit = 16 << 20
)

// peers serves the peer URLs and has a client for requests to other members. etcd cannot serve additional paths on its
// own peer listeners; therefore this server calls etcd's handler for etcd's paths.
type peers struct {
	security  *transport.TLSInfo
	listeners []net.Listener
	server    *http.Server
	client    *http.Client
}

// listenPeers listens on the peer URLs of a configuration. It removes the URLs from the configuration, so that etcd
// does not listen on them.
func listenPeers(configuration *embed.Config) (*peers, error) {
	p := &peers{security: &configuration.PeerTLSInfo}
	connections, err := transport.NewTransport(configuration.PeerTLSInfo, peerTimeout)
	if err != nil {
		return nil, fmt.Errorf("read the peer certificates of etcd: %w", err)
	}
	p.client = &http.Client{Transport: connections}
	for _, u := range configuration.ListenPeerUrls {
		listener, err := transport.NewListenerWithOpts(u.Host, u.Scheme, transport.WithTLSInfo(p.security),
			transport.WithTimeout(rafthttp.ConnReadTimeout, rafthttp.ConnWriteTimeout))
		if err != nil {
			p.close()
			return nil, fmt.Errorf("listen on the peer URL %s: %w", u.String(), err)
		}
		p.listeners = append(p.listeners, listener)
	}
	configuration.ListenPeerUrls = nil
	return p, nil
}

// serve serves etcd's peer paths, termsPath and hashPath.
func (p *peers) serve(m *Member, logger *zap.Logger) {
	mux := http.NewServeMux()
	mux.Handle("/", etcdhttp.NewPeerHandler(logger, m.server))
	mux.Handle("POST "+rafthttp.RaftSnapshotPrefix, m.guardSnapshots(m.server.RaftHandler()))
	mux.HandleFunc("GET "+termsPath, m.serveTerms)
	mux.HandleFunc("GET "+hashPath, m.serveHash)
	p.server = &http.Server{
		Handler: mux, ReadTimeout: peerReadTimeout, ErrorLog: log.New(io.Discard, "", 0),
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){}, // raft's streams need HTTP/1.1
	}
	for _, listener := range p.listeners {
		m.running.Go(func() { _ = p.server.Serve(listener) })
	}
}

// close closes all listeners and connections.
func (p *peers) close() {
	p.client.CloseIdleConnections()
	for _, listener := range p.listeners {
		_ = listener.Close()
	}
	if p.server != nil {
		_ = p.server.Close()
	}
}

// errNotOffered is returned for a path that the other member does not have, because it runs an earlier release.
var errNotOffered = errors.New("the other member runs an earlier release")

// errUnavailable is returned if the other member responds with 503. A later request may succeed.
var errUnavailable = errors.New("the other member cannot answer yet")

// get requests a path from the first of a member's peer URLs that responds, and decodes the response.
func (p *peers) get(ctx context.Context, urls []string, path string, into any) error {
	err := errors.New("the member has no peer URL")
	for _, base := range urls {
		if err = p.getFrom(ctx, base, path, into); err == nil || errors.Is(err, errNotOffered) {
			return err
		}
	}
	return err
}

func (p *peers) getFrom(ctx context.Context, base, path string, into any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(base, "/")+path, nil) //nolint:gosec // a peer URL in etcd's member list
	if err != nil {
		return err
	}
	response, err := p.client.Do(request) //nolint:gosec // as above
	if err != nil {
		return withoutURL(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, peerResponseLimit))
	switch {
	case err != nil:
		return withoutURL(err)
	case response.StatusCode == http.StatusNotFound:
		return errNotOffered
	case response.StatusCode == http.StatusServiceUnavailable:
		return fmt.Errorf("%w: %s", errUnavailable, strings.TrimSpace(string(body)))
	case response.StatusCode != http.StatusOK:
		return fmt.Errorf("%s: %s", response.Status, strings.TrimSpace(string(body)))
	}
	return json.Unmarshal(body, into)
}

// withoutURL removes the method and URL from an error of net/http, because the caller's message contains them.
func withoutURL(err error) error {
	if detailed := (*url.Error)(nil); errors.As(err, &detailed) {
		return detailed.Err
	}
	return err
}

// respond writes a value as JSON.
func respond(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(value)
}

// peerURLs returns the peer URLs of a member, or nil if it is not in the member list.
func (m *Member) peerURLs(id types.ID) []string {
	if member := m.server.Cluster().Member(id); member != nil {
		return member.PeerURLs
	}
	return nil
}
