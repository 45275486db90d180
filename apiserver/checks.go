package apiserver

import (
	"context"
	"errors"

	"quorate.dev/apiserver/serving"
)

// addChecks adds the health checks of this replica. They have kube-apiserver's names and order.
func (s *Server) addChecks() {
	s.health.Add(serving.AllEndpoints, serving.Check{Name: "log", Run: s.verbosity.Blocked})
	loopback := serving.Check{Name: "loopback-serving-certificate", Run: loopbackCertificate}
	s.health.Add(serving.Healthz|serving.Livez, loopback)
	s.stores.AddChecks(s.health)
	s.health.Add(serving.Readyz, serving.Check{Name: "informer-sync", Run: s.mode.synced})
	s.health.Add(serving.Readyz, serving.Check{Name: "etcd-space", Run: s.stores.CheckSpace, Advisory: true})
	s.hooks.AddChecks(s.health, s.background.checks)
}

// loopbackCertificate always passes. In kube-apiserver, the check fails when the certificate of the loopback client has
// expired; this server's local client (serving.Local) has no certificate.
func loopbackCertificate(context.Context) error { return nil }

// synced returns an error until authorization has observed all objects that existed at the start.
func (s *cluster) synced(ctx context.Context) error {
	if s.auth.nodes != nil && !s.auth.nodes.Synced() {
		return errors.New("the informers of the node authorizer have not synced")
	}
	return s.hooks.Done(hookRBACInformers).Check(ctx)
}
