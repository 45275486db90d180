package apiserver

import (
	"context"
	"fmt"
	"net/netip"
	"os"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"quorate.dev/apiserver/controllers/kubernetesservice"
	"quorate.dev/apiserver/registry/client"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/serviceip"
	"quorate.dev/apiserver/storage"
)

// services allocates and repairs the addresses and ports of Services, and maintains the kubernetes Service.
type services struct {
	objects   *client.Client
	ranges    *serviceip.Ranges
	allocator *serviceip.Allocator
	cidr      *serviceip.DefaultCIDR
	repairs   *serviceip.RepairLoops
	// events reports the warnings of the repairs.
	events     *serviceip.Events
	kubernetes *kubernetesservice.Controller
	// primary is the range whose first address is the address of the kubernetes Service.
	primary netip.Prefix
}

func (s *cluster) composeServices() (*services, error) {
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
		return nil, fmt.Errorf("the host name identifies the replica in events: %w", err)
	}
	cidrs := make([]string, len(ranges))
	for i, prefix := range ranges {
		cidrs[i] = prefix.String()
	}
	logger := s.logger.WithName("services")
	n := &services{
		objects: s.objects, primary: ranges[0], ranges: serviceip.NewRanges(),
		cidr: &serviceip.DefaultCIDR{
			CIDRs: cidrs, Objects: s.objects.Named("service-cidr"), Clock: s.clock, Logger: logger,
		},
		events: &serviceip.Events{
			Objects: s.objects.Named("service-ip-events"), Clock: s.clock, Logger: logger, Instance: host,
		},
	}
	n.allocator, err = serviceip.New(serviceip.Options{
		CIDRs: cidrs, Ranges: n.ranges, Ports: ports, Store: s.stores.LocationOf("services").Store,
		MediaType: s.storageMediaType(), Clock: s.clock, Logger: logger, Registerer: s.metrics,
	})
	if err != nil {
		return nil, err
	}
	all := func(ctx context.Context) ([]runtime.Object, error) {
		return s.objects.List(ctx,
			resource.Key{GroupResource: schema.GroupResource{Resource: "services"}}, resource.ReadOptions{})
	}
	n.repairs = &serviceip.RepairLoops{
		Addresses: serviceip.NewAddressRepair(serviceip.AddressRepairOptions{
			Objects: s.objects.Named("service-ip-repair"), Ranges: n.ranges, Events: n.events, Clock: s.clock,
			Logger: logger, Registerer: s.metrics,
		}),
		Ports: serviceip.NewPortRepair(n.allocator, all, n.events, logger, s.metrics),
		Clock: s.clock, Logger: logger,
	}
	n.kubernetes, err = s.composeKubernetesService(ranges[0])
	return n, err
}

// serviceFamily returns the IP family of Services that do not specify one.
func (s *cluster) serviceFamily() corev1.IPFamily {
	if ranges, err := s.config.API.ServiceRanges(); err == nil && ranges[0].Addr().Is6() {
		return corev1.IPv6Protocol
	}
	return corev1.IPv4Protocol
}

// composeKubernetesService returns the controller of the kubernetes Service, whose address is the first address of the
// range.
func (s *cluster) composeKubernetesService(addresses netip.Prefix) (*kubernetesservice.Controller, error) {
	public := advertised(s.config.Serving)
	options := kubernetesservice.Options{
		Objects: s.objects.Named("kubernetes-service"), ServiceIP: addresses.Addr().Next().String(),
		PublicIP: public.String(), PublicPort: s.config.Serving.Port, NodePort: s.config.API.KubernetesNodePort,
		Clock: s.clock, Logger: s.logger.WithName("kubernetes-service"),
		Ready: func(ctx context.Context) bool { return s.health.Passes(ctx, "readyz") },
	}
	switch s.config.API.EndpointReconcilerType {
	case "lease":
		options.Addresses = kubernetesservice.NewLeases(storage.New(s.stores.LocationOf("apiServerIPInfo").Client,
			s.config.Etcd.Prefix)).
			StoredAs(s.storageMediaType())
	case "master-count":
		options.Addresses = kubernetesservice.Count(s.config.API.ServerCount)
	}
	if err := options.ValidatePublicIP(); err != nil {
		return nil, err
	}
	if options.Addresses != nil && (public.To4() != nil) != addresses.Addr().Is4() {
		return nil, fmt.Errorf("service IP family %q must match public address family %q", addresses, public)
	}
	return kubernetesservice.New(options), nil
}

// follow keeps the ranges and the repairs up to date until ctx ends.
func (n *services) follow(ctx context.Context, done func()) error {
	feeds := []feed{
		{schema.GroupResource{Group: "networking.k8s.io", Resource: "servicecidrs"}, n.ranges.Set},
		{schema.GroupResource{Group: "networking.k8s.io", Resource: "ipaddresses"}, n.repairs.Addresses.SetIPAddress},
		{schema.GroupResource{Resource: "services"}, n.repairs.Addresses.SetService},
	}
	return followAll(ctx, n.objects, feeds, len(feeds), done)
}
