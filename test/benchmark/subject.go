package main

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"

	"quorate.dev/test/upstream"
)

// Names of the servers.
const (
	peer = "kube-apiserver"
	ours = "quorate"
)

// subject is a running server: kube-apiserver with its etcd, or Quorate.
type subject struct {
	name    string
	results *Results
	admin   *rest.Config
	client  *client
	// tokenClient authenticates with a token of an OpenID Connect provider instead of a certificate.
	tokenClient *client
	pids        []int
	// processes are the processes of the server, in the order in which they are stopped; the first one is the API server.
	processes []*upstream.Process
	launch    func(context.Context) (*upstream.APIServer, error) // starts the API server again
	profiles  string                                             // directory for profiles; "": no profiles are taken
}

// startPeer starts kube-apiserver and its etcd.
func startPeer(ctx context.Context, directory string, flags []string) (*subject, error) {
	pki, err := upstream.NewPKI(filepath.Join(directory, "pki"))
	if err != nil {
		return nil, err
	}
	etcd, err := upstream.StartEtcd(ctx, directory)
	if err != nil {
		return nil, err
	}
	etcdReady := time.Since(etcd.Started)
	launch := func(ctx context.Context) (*upstream.APIServer, error) {
		return upstream.StartKubernetes(ctx, upstream.Options{
			Directory: directory, PKI: pki, Etcd: etcd.Endpoint, Arguments: flags,
		})
	}
	server, err := launch(ctx)
	if err != nil {
		return nil, errors.Join(err, etcd.Stop())
	}
	s, err := newSubject(peer, server, etcdReady+server.Ready.Sub(server.Started), server.Process, etcd.Process)
	s.launch = launch
	return s, err
}

// startOurs starts Quorate with an embedded member.
func startOurs(ctx context.Context, directory string, flags []string) (*subject, error) {
	pki, err := upstream.NewPKI(filepath.Join(directory, "pki"))
	if err != nil {
		return nil, err
	}
	launch := func(ctx context.Context) (*upstream.APIServer, error) {
		return upstream.StartQuorate(ctx, upstream.Options{Directory: directory, PKI: pki, Arguments: flags})
	}
	server, err := launch(ctx)
	if err != nil {
		return nil, err
	}
	s, err := newSubject(ours, server, server.Ready.Sub(server.Started), server.Process)
	s.launch = launch
	return s, err
}

// newSubject returns a subject whose server has started. ready is the time from exec to the first success of /readyz,
// the sum for etcd and kube-apiserver.
func newSubject(
	name string, server *upstream.APIServer, ready time.Duration, processes ...*upstream.Process,
) (*subject, error) {
	client, err := newClient(server.Admin)
	results := &Results{Ready: ready, Work: map[string]Measurement{}}
	s := &subject{name: name, results: results, admin: server.Admin, client: client, processes: processes}
	for _, process := range processes {
		s.pids = append(s.pids, process.PID)
	}
	return s, err
}

func (s *subject) stop() error {
	s.client.close()
	if s.tokenClient != nil {
		s.tokenClient.close()
	}
	var errs []error
	for _, process := range s.processes {
		errs = append(errs, process.Stop())
	}
	return errors.Join(errs...)
}

// settle waits, at most ten seconds, until the server is idle: it uses at most 2% of one processor during a second.
func (s *subject) settle(ctx context.Context) error {
	for range 10 {
		used, err := s.timed(func() error { return pause(ctx, time.Second) })
		if err != nil {
			return err
		}
		if used <= 20*time.Millisecond {
			return nil
		}
	}
	return nil // after ten seconds, the server will not become more idle
}

func pause(ctx context.Context, duration time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(duration):
		return nil
	}
}
