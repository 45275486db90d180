package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/transport"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"

	"quorate.dev/apiserver/config"
	"quorate.dev/apiserver/controllers/bootstrap"
	"quorate.dev/apiserver/crd"
	"quorate.dev/apiserver/peers"
	"quorate.dev/apiserver/registry/follow"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/startup"
	"quorate.dev/apiserver/storage"
	"quorate.dev/apiserver/watchcache"
)

// peersEnabled reports whether replicas publish their addresses for other replicas.
func peersEnabled() bool {
	return utilfeature.DefaultFeatureGate.Enabled(features.UnknownVersionInteroperabilityProxy)
}

// checkPeers returns kube-apiserver's error for flags that require the feature gate, if it is disabled.
func checkPeers(c config.Peers) error {
	if peersEnabled() {
		return nil
	}
	var errs []error
	for _, flag := range []struct{ name, value string }{
		{"peer-ca-file", c.CAFile}, {"peer-advertise-ip", c.AdvertiseIP}, {"peer-advertise-port", c.AdvertisePort},
	} {
		if flag.value != "" {
			errs = append(errs, fmt.Errorf("--%s requires %s feature to be turned on",
				flag.name, features.UnknownVersionInteroperabilityProxy))
		}
	}
	return errors.Join(errs...)
}

// peerAddress returns the address at which other replicas reach this one.
func (s *cluster) peerAddress() (ip, port string) {
	if c := s.config.Peers; c.AdvertiseIP != "" && c.AdvertisePort != "" {
		return c.AdvertiseIP, c.AdvertisePort
	}
	return advertised(s.config.Serving).String(), strconv.Itoa(s.config.Serving.Port)
}

// composePeers composes the publisher of this replica's address and, with --peer-ca-file, the forwarding of requests to
// other replicas.
func (s *cluster) composePeers() error {
	if !peersEnabled() {
		return nil
	}
	leases, err := peers.NewLeases(storage.New(s.stores.Default.Client, s.config.Etcd.Prefix))
	if err != nil {
		return err
	}
	logger := s.logger.WithName("peers")
	ip, port := s.peerAddress()
	number, err := strconv.ParseInt(port, 10, 32)
	if err != nil {
		return fmt.Errorf("--peer-advertise-port: %w", err)
	}
	s.publisher = &peers.Publisher{
		Leases: leases, ID: serverID(), IP: ip, Port: int32(number), Clock: s.clock, Logger: logger,
		Ready: func(ctx context.Context) bool { return s.health.Passes(ctx, "readyz") },
	}
	if s.config.Peers.CAFile == "" {
		return nil
	}
	connections, err := s.peerTransport()
	if err != nil {
		return err
	}
	s.peers = peers.New(peers.Options{
		ID: serverID(), Leases: leases, Transport: connections,
		Identities: bootstrap.New(s.objects, s.clock, logger).Identities,
		Serves: func(of schema.GroupVersionResource) bool {
			_, found := s.catalog.Current().Lookup(of.Group, of.Version, of.Resource)
			return found
		},
		Clock: s.clock, Logger: logger, Registerer: s.metrics,
	})
	return nil
}

// peerServerName is a name in the serving certificates of all replicas.
const peerServerName = "kubernetes.default.svc"

// peerTransport returns a transport that connects to other replicas as their front proxy. It reloads its files when
// they change.
func (s *cluster) peerTransport() (http.RoundTripper, error) {
	c := s.config.API
	switch {
	case c.ProxyClientCertFile == "":
		return nil, errors.New("error building peer proxy handler, proxy-cert-file not specified")
	case c.ProxyClientKeyFile == "":
		return nil, errors.New("error building peer proxy handler, proxy-key-file not specified")
	}
	settings := &transport.Config{TLS: transport.TLSConfig{
		CertFile: c.ProxyClientCertFile, KeyFile: c.ProxyClientKeyFile, CAFile: s.config.Peers.CAFile,
		ServerName: peerServerName,
	}}
	if dial := s.egress.ControlPlane; dial != nil {
		settings.DialHolder = &transport.DialHolder{Dial: dial}
	}
	made, err := transport.New(settings)
	if err != nil {
		return nil, fmt.Errorf("failed to create proxy transport: %w", err)
	}
	return made, nil
}

// peerHooks returns kube-apiserver's hooks for peers.
func (s *cluster) peerHooks() startup.Sequence {
	if s.publisher == nil {
		return nil
	}
	list := startup.Sequence{{
		Name: "peer-endpoint-reconciler-controller", After: []string{hookStorage}, Leases: true, Run: s.publisher.Run,
	}}
	if s.peers == nil {
		return list
	}
	after := []string{hookStorage, hookComplete}
	return append(list,
		startup.Hook{Name: "mixed-version-proxy-handler", After: after, Run: s.followPeers},
		startup.Hook{Name: "local-discovery-cache-sync", Run: startup.Await(s.complete)},
		startup.Hook{Name: "peer-discovery-workers", After: after, Run: startup.Begin(func(context.Context) {})})
}

// followPeers keeps the other replicas and their resources up to date until ctx ends.
func (s *cluster) followPeers(ctx context.Context, done func()) error {
	return startup.Together(ctx, func(ctx context.Context) error {
		return s.peers.Run(ctx, done)
	}, func(ctx context.Context) error {
		return s.objects.Follow(ctx, resource.Key{
			GroupResource: bootstrap.Leases,
		}, follow.Options{Entries: func(before, after *watchcache.Entry) {
			for _, entry := range []*watchcache.Entry{before, after} {
				if entry != nil && bootstrap.IsIdentity(entry.Namespace(), entry.Labels()) {
					s.peers.Changed()
				}
			}
		}})
	})
}

// excludeDefinition prevents requests for custom resources from being forwarded to other replicas.
func (s *cluster) excludeDefinition(name string, object runtime.Object) {
	if s.peers == nil {
		return
	}
	var versions []schema.GroupVersion
	if definition, ok := object.(*apiextensions.CustomResourceDefinition); ok {
		for _, version := range definition.Spec.Versions {
			versions = append(versions, schema.GroupVersion{Group: definition.Spec.Group, Version: version.Name})
		}
	}
	s.peers.SetGroupVersions(crd.Resource.Resource+"/"+name, versions)
}

// excludeAPIService prevents requests for extension API servers from being forwarded to other replicas.
func (s *cluster) excludeAPIService(name string, object runtime.Object) {
	if s.peers == nil {
		return
	}
	var versions []schema.GroupVersion
	if service, ok := object.(*apiregistration.APIService); ok && service.Spec.Service != nil {
		versions = []schema.GroupVersion{{Group: service.Spec.Group, Version: service.Spec.Version}}
	}
	s.peers.SetGroupVersions("apiservices/"+name, versions)
}
