package apiserver

import (
	"context"
	"errors"

	"quorate.dev/apiserver/serving"
)

// closedCheck is a health check that fails until its channel is closed.
type closedCheck <-chan struct{}

// check fails until the channel is closed.
func (c closedCheck) check(context.Context) error {
	if c.reached() {
		return nil
	}
	return errors.New("not finished")
}

// reached reports whether the channel is closed.
func (c closedCheck) reached() bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// addChecks adds the health checks of this replica, with kube-apiserver's names and in its order.
func (s *Server) addChecks() {
	loopback := serving.Check{Name: "loopback-serving-certificate", Run: loopbackCertificate}
	s.health.Add(serving.Healthz|serving.Livez, loopback)
	s.health.Add(serving.Healthz|serving.Livez, serving.Check{Name: "etcd", Run: s.checkEtcd, StartUp: true})
	s.health.Add(serving.Readyz, serving.Check{Name: "etcd", Run: s.checkEtcd})
	s.health.Add(serving.Readyz, serving.Check{Name: "etcd-readiness", Run: s.checkEtcdReady})
	s.addEncryptionChecks()
	s.health.Add(serving.Readyz, serving.Check{Name: "informer-sync", Run: s.mode.synced})
	s.health.Add(serving.Readyz, serving.Check{
		Name: "poststarthook/crd-informer-synced", Run: closedCheck(s.custom.Synced()).check,
	})
	s.health.Add(serving.Readyz, serving.Check{Name: "etcd-space", Run: s.checkSpace, Advisory: true})
	s.hooks.addChecks(s.health, s.mode.checks)
}

// loopbackCertificate always passes. In kube-apiserver it fails when the certificate of the loopback client has
// expired; the local client of this server (serving.Local) has no certificate.
func loopbackCertificate(context.Context) error { return nil }

// checkEtcd does a linearizable read, within --etcd-healthcheck-timeout.
func (s *Server) checkEtcd(ctx context.Context) error {
	timeout, _ := s.config.Etcd.CheckTimeouts()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	_, err := s.store.Revision(ctx)
	return err
}

// checkEtcdReady does the same within --etcd-readycheck-timeout.
func (s *Server) checkEtcdReady(ctx context.Context) error {
	_, timeout := s.config.Etcd.CheckTimeouts()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	_, err := s.store.Revision(ctx)
	return err
}

// checkSpace fails while etcd or this server rejects writes because the database is full. It is advisory, because reads
// still work and deletions are how users make space.
func (s *Server) checkSpace(context.Context) error {
	switch {
	case s.backend.space().NoSpace:
		return errors.New("alarm NOSPACE: etcd rejects all writes except deletions until its database has space")
	case s.quota.Exceeded():
		return errors.New("soft quota exceeded: objects cannot be created or grow")
	}
	return nil
}

// checkSynced fails until authorization has seen all objects that existed at the start.
func (s *Server) checkSynced(ctx context.Context) error {
	if s.auth.nodes != nil && !s.auth.nodes.Synced() {
		return errors.New("the informers of the node authorizer have not synced")
	}
	return closedCheck(s.hooks.done[hookRBACInformers]).check(ctx)
}
