// Package floor is a server that does only what every API server has to do for a request: it serves HTTP/2 over TLS to
// clients with certificates, sends a response of the usual size, and stores each write in one transaction of an
// embedded etcd member. Its cost is the floor below which the cost of an API server with the same libraries cannot
// fall.
//
// The server understands no request. Response sizes are set by the client with SizePath.
package floor

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"golang.org/x/net/http2"
)

// SizePath is the path of a POST request whose query has the number of bytes of all following responses and events.
const SizePath = "/size"

// Options are the files of a server, in PEM, and the data directory of its member.
type Options struct {
	Certificate, Key, Clients string
	Directory                 string
}

// Server answers requests. Its methods are safe for concurrent use.
type Server struct {
	store    *clientv3.Client
	body     atomic.Pointer[[]byte]
	watchers watchers
}

// Run serves on a free port of 127.0.0.1 until ctx ends. It calls ready with the address when it serves.
func Run(ctx context.Context, o Options, ready func(address string)) error {
	secure, err := o.tls()
	if err != nil {
		return err
	}
	member, err := start(o.Directory)
	if err != nil {
		return fmt.Errorf("start the member: %w", err)
	}
	defer member.Close()
	server := &http.Server{
		Handler: New(v3client.New(member.Server)), TLSConfig: secure, ReadHeaderTimeout: time.Minute,
	}
	if err := http2.ConfigureServer(server, &http2.Server{MaxConcurrentStreams: 250}); err != nil {
		return err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	ready(listener.Addr().String())
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.ServeTLS(listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// New returns a server that stores writes with a client.
func New(store *clientv3.Client) *Server {
	s := &Server{store: store}
	s.body.Store(new([]byte))
	return s
}

func (o Options) tls() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(o.Certificate, o.Key)
	if err != nil {
		return nil, err
	}
	authority, err := os.ReadFile(o.Clients)
	if err != nil {
		return nil, err
	}
	clients := x509.NewCertPool()
	if !clients.AppendCertsFromPEM(authority) {
		return nil, fmt.Errorf("%s has no certificate", o.Clients)
	}
	return &tls.Config{
		Certificates: []tls.Certificate{pair}, ClientCAs: clients, ClientAuth: tls.RequireAndVerifyClientCert,
		MinVersion: tls.VersionTLS12,
	}, nil
}

// start starts a member without peers, and waits until it is ready.
func start(directory string) (*embed.Etcd, error) {
	local := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	c := embed.NewConfig()
	c.Dir, c.LogLevel = directory, "panic" // below it, the member reports its own end as errors
	c.ListenPeerUrls, c.ListenClientUrls = []url.URL{local}, []url.URL{local}
	member, err := embed.StartEtcd(c)
	if err != nil {
		return nil, err
	}
	select {
	case <-member.Server.ReadyNotify():
		return member, nil
	case err := <-member.Err():
		member.Close()
		return nil, err
	}
}

// ServeHTTP answers a request: reads and watches with ready-made bytes, writes with these after one transaction.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	switch {
	case r.URL.Path == SizePath:
		s.setSize(w, query.Get("bytes"))
	case query.Get("watch") != "":
		s.watchers.serve(w, r)
	case query.Get("limit") == "1":
		_ = json.NewEncoder(w).Encode(map[string]any{"metadata": map[string]string{"resourceVersion": "1"}})
	case r.Method == http.MethodGet:
		s.answer(w)
	default:
		s.write(w, r)
	}
}

func (s *Server) setSize(w http.ResponseWriter, text string) {
	size, err := strconv.Atoi(text)
	if err != nil || size < 0 {
		http.Error(w, "bytes is not a size", http.StatusBadRequest)
		return
	}
	body := bytes.Repeat([]byte("x"), size)
	s.body.Store(&body)
}

func (s *Server) answer(w http.ResponseWriter) {
	w.Header()["Content-Type"] = []string{"application/json"}
	_, _ = w.Write(*s.body.Load())
}

// write stores a value as large as the response under the path, or deletes it, and sends an event to all watchers.
func (s *Server) write(w http.ResponseWriter, r *http.Request) {
	sent, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	key, body := r.URL.Path, *s.body.Load()
	if r.Method == http.MethodPost {
		key += "/" + strconv.FormatInt(time.Now().UnixNano(), 10)
	}
	operation := clientv3.OpPut(key, string(body))
	if r.Method == http.MethodDelete {
		operation = clientv3.OpDelete(key)
	}
	// The condition is always true. An API server's condition is the revision of the object.
	condition := clientv3.Compare(clientv3.ModRevision(key), ">", -1)
	if _, err := s.store.Txn(r.Context()).If(condition).Then(operation).Commit(); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	s.watchers.send(sent, len(body))
	s.answer(w)
}
