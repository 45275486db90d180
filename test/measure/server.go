// Package measure starts the servers that programs compare, kube-apiserver with its etcd and Quorate, and reads the
// processor time and the memory of their processes.
package measure

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
	Peer = "kube-apiserver"
	Ours = "quorate"
)

// Stopper is a process of a server.
type Stopper interface{ Stop() error }

// Server is a running server: kube-apiserver with its etcd, or Quorate.
type Server struct {
	Name  string
	Admin *rest.Config
	PKI   *upstream.PKI
	// Ready is the time from exec to the first success of /readyz, the sum for etcd and kube-apiserver.
	Ready time.Duration
	API   *upstream.Process // the process of the API server
	PIDs  []int
	// Processes are the processes of the server, in the order in which they are stopped; the first one is the API server.
	Processes []Stopper
	Launch    func(context.Context) (*upstream.APIServer, error) // starts the API server again
}

// Options are the options of a server.
type Options struct {
	Directory string   // directory of data, certificates and logs
	Flags     []string // additional flags of the API server
	// Wrapper is a command line that is put before the command line of the API server and runs it.
	Wrapper []string
}

// StartPeer starts kube-apiserver and its etcd.
func StartPeer(ctx context.Context, o Options) (*Server, error) {
	pki, err := upstream.NewPKI(filepath.Join(o.Directory, "pki"))
	if err != nil {
		return nil, err
	}
	etcd, err := upstream.StartEtcd(ctx, o.Directory)
	if err != nil {
		return nil, err
	}
	s := &Server{Name: Peer, PKI: pki, Ready: time.Since(etcd.Started)}
	s.Launch = func(ctx context.Context) (*upstream.APIServer, error) {
		options := o.upstream(pki)
		options.Etcd = etcd.Endpoint
		return upstream.StartKubernetes(ctx, options)
	}
	if err := s.start(ctx, etcd.Process); err != nil {
		return nil, errors.Join(err, etcd.Stop())
	}
	return s, nil
}

// StartOurs starts Quorate with an embedded member.
func StartOurs(ctx context.Context, o Options) (*Server, error) {
	pki, err := upstream.NewPKI(filepath.Join(o.Directory, "pki"))
	if err != nil {
		return nil, err
	}
	s := &Server{Name: Ours, PKI: pki}
	s.Launch = func(ctx context.Context) (*upstream.APIServer, error) {
		return upstream.StartQuorate(ctx, o.upstream(pki))
	}
	return s, s.start(ctx)
}

func (o Options) upstream(pki *upstream.PKI) upstream.Options {
	return upstream.Options{Directory: o.Directory, PKI: pki, Arguments: o.Flags, Wrapper: o.Wrapper}
}

// start launches the API server. others are the other processes of the server, which are running.
func (s *Server) start(ctx context.Context, others ...*upstream.Process) error {
	api, err := s.Launch(ctx)
	if err != nil {
		return err
	}
	s.Admin, s.Ready = api.Admin, s.Ready+api.Ready.Sub(api.Started)
	s.API = api.Process
	for _, process := range append([]*upstream.Process{api.Process}, others...) {
		s.Processes, s.PIDs = append(s.Processes, process), append(s.PIDs, process.PID)
	}
	return nil
}

// Stop stops the processes of the server.
func (s *Server) Stop() error {
	var errs []error
	for _, process := range s.Processes {
		errs = append(errs, process.Stop())
	}
	return errors.Join(errs...)
}

// Relaunch starts the API server again, whose process has ended. It has another port then.
func (s *Server) Relaunch(ctx context.Context) error {
	api, err := s.Launch(ctx)
	if err != nil {
		return err
	}
	s.Admin, s.API, s.Processes[0], s.PIDs[0] = api.Admin, api.Process, api.Process, api.PID
	return nil
}
