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
	s.health.Add(serving.AllEndpoints, serving.Check{Name: "log", Run: s.verbosity.Blocked})
	loopback := serving.Check{Name: "loopback-serving-certificate", Run: loopbackCertificate}
	s.health.Add(serving.Healthz|serving.Livez, loopback)
	s.addEtcdChecks()
	s.addEncryptionChecks()
	s.health.Add(serving.Readyz, serving.Check{Name: "informer-sync", Run: s.mode.synced})
	s.health.Add(serving.Readyz, serving.Check{Name: "etcd-space", Run: s.checkSpace, Advisory: true})
	s.hooks.addChecks(s.health, s.mode.checks)
}

// loopbackCertificate always passes. In kube-apiserver it fails when the certificate of the loopback client has
// expired; the local client of this server (serving.Local) has no certificate.
func loopbackCertificate(context.Context) error { return nil }

// checkSynced fails until authorization has seen all objects that existed at the start.
func (s *Server) checkSynced(ctx context.Context) error {
	if s.auth.nodes != nil && !s.auth.nodes.Synced() {
		return errors.New("the informers of the node authorizer have not synced")
	}
	return closedCheck(s.hooks.done[hookRBACInformers]).check(ctx)
}
