package config

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	netutils "k8s.io/utils/net"
)

const (
	// defaultServiceRange is kube-apiserver's default.
	defaultServiceRange = "10.0.0.0/24"
	// minServiceAddresses is the minimum number of addresses in a range.
	minServiceAddresses = 8
)

// ServiceRanges returns the ranges of cluster IPs: one range, or two ranges of different families.
func (a *API) ServiceRanges() ([]netip.Prefix, error) {
	text := a.ServiceClusterIPRange
	if text == "" {
		text = defaultServiceRange
	}
	parts := strings.Split(text, ",")
	if len(parts) > 2 {
		return nil, errors.New("--service-cluster-ip-range must not contain more than two entries")
	}
	var ranges []netip.Prefix
	for i, part := range parts {
		prefix, ok := parseRange(part)
		if !ok {
			return nil, fmt.Errorf("service-cluster-ip-range[%d] is not a valid cidr", i)
		}
		ranges = append(ranges, prefix)
	}
	first := ranges[0].Addr()
	if first.BitLen()-ranges[0].Bits() < 3 {
		return nil, fmt.Errorf("the service cluster IP range must be at least %d IP addresses", minServiceAddresses)
	}
	if len(ranges) == 2 && first.Is4() == ranges[1].Addr().Is4() {
		return nil, errors.New("--service-cluster-ip-range[0] and --service-cluster-ip-range[1] must be of different IP " +
			"family")
	}
	return ranges, nil
}

// parseRange parses a range as kube-apiserver does; IPv4 addresses may have leading zeros.
func parseRange(text string) (netip.Prefix, bool) {
	_, network, err := netutils.ParseCIDRSloppy(text)
	if err != nil {
		return netip.Prefix{}, false
	}
	address, ok := netip.AddrFromSlice(network.IP)
	bits, _ := network.Mask.Size()
	return netip.PrefixFrom(address, bits), ok
}

// NodePorts returns the range of node ports.
func (a *API) NodePorts() (utilnet.PortRange, error) {
	var ports utilnet.PortRange
	if err := ports.Set(a.ServiceNodePortRange); err != nil {
		return ports, fmt.Errorf("--service-node-port-range: %w", err)
	}
	return ports, nil
}

// reconcilerTypes are the values of --endpoint-reconciler-type.
var reconcilerTypes = []string{"master-count", "lease", "none"}

func (a *API) validateServices() []error {
	var errs []error
	if _, err := a.ServiceRanges(); err != nil {
		errs = append(errs, err)
	}
	ports, err := a.NodePorts()
	if err != nil {
		errs = append(errs, err)
	}
	if !slices.Contains(reconcilerTypes, a.EndpointReconcilerType) {
		errs = append(errs,
			fmt.Errorf("--endpoint-reconciler-type %q must be one of %s", a.EndpointReconcilerType,
				strings.Join(reconcilerTypes, ", ")))
	}
	if a.ServerCount <= 0 {
		errs = append(errs,
			fmt.Errorf("--apiserver-count should be a positive number, but value '%d' provided", a.ServerCount))
	}
	switch port := a.KubernetesNodePort; {
	case port < 0 || port > 65535:
		errs = append(errs, fmt.Errorf("--kubernetes-service-node-port %v must be between 0 and 65535, inclusive. If 0, "+
			"the Kubernetes master service will be of type ClusterIP", port))
	case port > 0 && err == nil && !ports.Contains(port):
		errs = append(errs, fmt.Errorf("kubernetes service node port range %v doesn't contain %v", ports, port))
	}
	return errs
}
