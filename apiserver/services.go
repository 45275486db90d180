package apiserver

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"quorate.dev/apiserver/controllers/kubernetesservice"
	"quorate.dev/apiserver/serviceip"
	"quorate.dev/apiserver/storage"
)

const (
	// repairInterval is how often the addresses and ports of Services are checked as a whole.
	repairInterval = 3 * time.Minute
	// repairRetry is how soon the first check is done again when it fails: nobody is ready before.
	repairRetry = time.Second
	// leavePatience bounds how long this replica tries to take its address out of the kubernetes Service.
	leavePatience = 3 * time.Second
)

// serviceNetwork gives Services their addresses and ports, keeps those right, and keeps the kubernetes Service.
type serviceNetwork struct {
	server     *Server
	ranges     *serviceip.Ranges
	allocator  *serviceip.Allocator
	cidr       *serviceip.DefaultCIDR
	addresses  *serviceip.AddressRepair
	ports      *serviceip.PortRepair
	events     *serviceip.Events // of the repairs
	kubernetes *kubernetesservice.Controller
	primary    netip.Prefix // the range of which the kubernetes Service has the first address

	synced  chan struct{} // one for each resource followed, when all of it is known
	repairs atomic.Int32  // that have not succeeded yet
	left    chan struct{} // closed: this replica is not in the kubernetes Service any more
}

// serviceFeeds is how many resources the network follows, serviceRepairs how many things it repairs.
const (
	serviceFeeds   = 3
	serviceRepairs = 2
)

func (s *Server) composeServices() (*serviceNetwork, error) {
	ranges, err := s.config.API.ServiceRanges()
	if err != nil {
		return nil, err
	}
	ports, err := s.config.API.NodePorts()
	if err != nil {
		return nil, err
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("replicas are told apart by their host's name: %w", err)
	}
	cidrs := make([]string, len(ranges))
	for i, prefix := range ranges {
		cidrs[i] = prefix.String()
	}
	logger := s.logger.WithName("services")
	n := &serviceNetwork{
		server: s, primary: ranges[0], ranges: serviceip.NewRanges(), synced: make(chan struct{}, serviceFeeds), left: make(chan struct{}),
		cidr: &serviceip.DefaultCIDR{CIDRs: cidrs, Objects: s.registry, Clock: s.clock, Logger: logger},
	}
	n.repairs.Store(serviceRepairs)
	n.allocator, err = serviceip.New(serviceip.Options{
		CIDRs: cidrs, Ranges: n.ranges, Ports: ports, Store: s.store, Clock: s.clock, Logger: logger, Registerer: s.metrics,
	})
	if err != nil {
		return nil, err
	}
	n.events = &serviceip.Events{Objects: s.registry, Clock: s.clock, Logger: logger, Instance: host}
	all := func(ctx context.Context) ([]runtime.Object, error) {
		return s.registry.Latest(ctx, schema.GroupResource{Resource: "services"}, "")
	}
	n.ports = serviceip.NewPortRepair(n.allocator, all, n.events, logger, s.metrics)
	n.addresses = serviceip.NewAddressRepair(serviceip.AddressRepairOptions{
		Objects: s.registry, Ranges: n.ranges, Events: n.events, Clock: s.clock, Logger: logger, Registerer: s.metrics,
	})
	n.kubernetes, err = s.composeKubernetesService(ranges[0])
	return n, err
}

// serviceFamily is the family of Services that do not name one.
func (s *Server) serviceFamily() corev1.IPFamily {
	if ranges, err := s.config.API.ServiceRanges(); err == nil && ranges[0].Addr().Is6() {
		return corev1.IPv6Protocol
	}
	return corev1.IPv4Protocol
}

// composeKubernetesService makes what keeps the kubernetes Service, which has the first address of the range.
func (s *Server) composeKubernetesService(addresses netip.Prefix) (*kubernetesservice.Controller, error) {
	public := s.advertised()
	options := kubernetesservice.Options{
		Objects: s.registry, ServiceIP: addresses.Addr().Next().String(), PublicIP: public.String(), PublicPort: s.config.Serving.Port,
		NodePort: s.config.API.KubernetesNodePort, Clock: s.clock, Logger: s.logger.WithName("kubernetes-service"),
		Ready: func(ctx context.Context) bool { return s.health.Passes(ctx, "readyz") },
	}
	switch s.config.API.EndpointReconcilerType {
	case "lease":
		options.Addresses = kubernetesservice.NewLeases(storage.New(s.backend.client, s.config.Etcd.Prefix))
	case "master-count":
		options.Addresses = kubernetesservice.Count(s.config.API.ServerCount)
	}
	if options.Addresses != nil && (public.To4() != nil) != addresses.Addr().Is4() {
		return nil, fmt.Errorf("service IP family %q must match public address family %q", addresses, public)
	}
	return kubernetesservice.New(options), nil
}

// run brings the network to life and keeps it until ctx ends.
func (n *serviceNetwork) run(ctx context.Context) error {
	work, ctx := errgroup.WithContext(ctx)
	follow := func(group, resource string, set func(key string, object runtime.Object)) {
		name := schema.GroupResource{Group: group, Resource: resource}
		work.Go(func() error { return n.server.registry.Follow(ctx, name, set, func() { n.synced <- struct{}{} }) })
	}
	follow("networking.k8s.io", "servicecidrs", n.ranges.Set)
	follow("networking.k8s.io", "ipaddresses", n.addresses.SetIPAddress)
	follow("", "services", n.addresses.SetService)
	work.Go(func() error { return n.cidr.Run(ctx, func() { close(n.server.hooks.serviceCIDR.done) }) })
	work.Go(func() error { return n.keepAddresses(ctx) })
	work.Go(func() error { return n.keepPorts(ctx) })
	work.Go(func() error {
		n.events.Run(ctx)
		return nil
	})
	work.Go(func() error { return n.begin(ctx) })
	return work.Wait()
}

// keepAddresses checks the addresses of Services: first all, then each when it changes, and all now and then.
func (n *serviceNetwork) keepAddresses(ctx context.Context) error {
	if err := n.awaitKnown(ctx); err != nil {
		return err
	}
	if err := n.succeed(ctx, n.addresses.Once); err != nil {
		return err
	}
	n.repaired()
	n.addresses.Run(ctx, repairInterval)
	return ctx.Err()
}

// repaired notes that one of the repairs has succeeded for the first time.
func (n *serviceNetwork) repaired() {
	if n.repairs.Add(-1) == 0 {
		close(n.server.hooks.serviceRepair.done)
	}
}

// awaitKnown waits until there is something to compare: all that is followed, and addresses to give.
func (n *serviceNetwork) awaitKnown(ctx context.Context) error {
	for range serviceFeeds {
		select {
		case <-n.synced:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	select {
	case <-n.server.hooks.serviceCIDR.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (n *serviceNetwork) keepPorts(ctx context.Context) error {
	if err := n.succeed(ctx, n.ports.Once); err != nil {
		return err
	}
	n.repaired()
	ticker := n.server.clock.NewTicker(repairInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C():
			if err := n.ports.Once(ctx); err != nil && ctx.Err() == nil {
				n.server.logger.Error(err, "The ports of Services could not be checked; trying again", "interval", repairInterval)
			}
		}
	}
}

func (n *serviceNetwork) begin(ctx context.Context) error {
	if err := n.kubernetes.Begin(ctx); err != nil && ctx.Err() == nil {
		n.server.logger.Error(err, "The kubernetes Service may still have an address of this replica from before")
	}
	close(n.server.hooks.kubernetesService.done)
	return nil
}

// serveKubernetes keeps the kubernetes Service until ctx ends; then this replica leaves it.
func (n *serviceNetwork) serveKubernetes(ctx context.Context) error {
	defer close(n.left)
	select {
	case <-ctx.Done():
		return nil
	case <-n.server.hooks.kubernetesService.done:
	}
	n.kubernetes.Run(ctx)
	leaving, cancel := context.WithTimeout(context.WithoutCancel(ctx), leavePatience)
	defer cancel()
	n.kubernetes.End(leaving)
	return nil
}

// succeed does something until it succeeds once.
func (n *serviceNetwork) succeed(ctx context.Context, once func(context.Context) error) error {
	for {
		err := once(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			n.server.logger.Error(err, "The addresses and ports of Services could not be checked; trying again", "interval", repairRetry)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-n.server.clock.After(repairRetry):
		}
	}
}

// advertised is the address other parts of the cluster reach this server at: what the flag says, else that it is
// bound to, else, as when that is the host's own or any, that of the host's default interface.
func (s *Server) advertised() net.IP {
	c := s.config.Serving
	if ip := net.ParseIP(c.AdvertiseAddress); ip != nil && !ip.IsUnspecified() {
		return ip
	}
	bound := net.ParseIP(c.BindAddress)
	if ip, err := utilnet.ResolveBindAddress(bound); err == nil {
		return ip
	}
	if bound != nil && !bound.IsUnspecified() {
		return bound
	}
	return net.IPv4(127, 0, 0, 1)
}
