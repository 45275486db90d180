package apiserver

import (
	"context"
	"errors"
	"sync/atomic"

	"quorate.dev/apiserver/serving"
)

// milestone is something start-up waits for, perhaps several times over.
type pendingCheck struct{ missing atomic.Int32 }

// Done counts one of the things awaited.
func (m *pendingCheck) Done() { m.missing.Add(-1) }

// check fails until everything awaited is done.
func (m *pendingCheck) check(context.Context) error {
	if m.missing.Load() > 0 {
		return errors.New("not finished")
	}
	return nil
}

// rbacResources is how many resources the RBAC policy is made of.
const rbacResources = 4

// moment is reached when its channel is closed.
type closedCheck <-chan struct{}

// check fails until the moment is reached.
func (m closedCheck) check(context.Context) error {
	if m.reached() {
		return nil
	}
	return errors.New("not finished")
}

// reached reports whether the channel is closed.
func (m closedCheck) reached() bool {
	select {
	case <-m:
		return true
	default:
		return false
	}
}

// addChecks adds what makes this replica healthy, under kube-apiserver's names where it has one.
func (s *Server) addChecks() {
	loopback := serving.Check{Name: "loopback-serving-certificate", Run: loopbackCertificate}
	s.health.Add(serving.Healthz|serving.Livez, loopback)
	s.health.Add(serving.Healthz|serving.Livez, serving.Check{Name: "etcd", Run: s.checkEtcd, StartUp: true})
	s.health.Add(serving.Readyz, serving.Check{Name: "etcd", Run: s.checkEtcd})
	s.health.Add(serving.Readyz, serving.Check{Name: "etcd-readiness", Run: s.checkEtcdReady})
	s.health.Add(serving.Readyz, serving.Check{Name: "informer-sync", Run: s.checkSynced})
	s.health.Add(serving.Readyz, serving.Check{Name: "poststarthook/crd-informer-synced", Run: closedCheck(s.custom.Synced()).check})
	s.health.Add(serving.Readyz, serving.Check{Name: "etcd-space", Run: s.checkSpace, Advisory: true})
	s.hooks.addTo(s.health)
	s.addAPIServiceChecks()
}

// loopbackCertificate fails in kube-apiserver when the certificate has expired by which it calls itself, so that a
// probe restarts it. This server calls itself without a network (serving.Local): there is nothing that could expire.
func loopbackCertificate(context.Context) error { return nil }

// checkEtcd does a linearizable read.
func (s *Server) checkEtcd(ctx context.Context) error {
	timeout, _ := s.config.Etcd.CheckTimeouts()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	_, err := s.store.Revision(ctx)
	return err
}

func (s *Server) checkEtcdReady(ctx context.Context) error {
	_, timeout := s.config.Etcd.CheckTimeouts()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	_, err := s.store.Revision(ctx)
	return err
}

// checkSpace fails while etcd, or this server, refuses writes because the database is full. Reads and deletions go on,
// and deletions are needed.
func (s *Server) checkSpace(context.Context) error {
	switch {
	case s.backend.space().NoSpace:
		return errors.New("alarm NOSPACE: etcd refuses all writes but deletions until its database has room")
	case s.quota.Exceeded():
		return errors.New("the soft quota of storage is exceeded: objects cannot be created or grow")
	}
	return nil
}

// checkSynced fails until those who decide about requests know what was there at the start.
func (s *Server) checkSynced(ctx context.Context) error {
	if s.security.nodes != nil && !s.security.nodes.Synced() {
		return errors.New("the nodes' objects are not all read")
	}
	return s.policyRead.check(ctx)
}
