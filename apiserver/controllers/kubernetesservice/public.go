package kubernetesservice

import (
	"fmt"
	"net/netip"

	"k8s.io/kubernetes/pkg/apis/core/validation"
)

// ValidatePublicIP returns an error if the address of this replica cannot be an address of endpoints. Unlike
// kube-apiserver, the server starts with a loopback address, which the replicas of a sandbox have; its controller then
// logs the error of each reconciliation.
func (o Options) ValidatePublicIP() error {
	if ip, err := netip.ParseAddr(o.PublicIP); o.Addresses == nil || err == nil && ip.IsLoopback() {
		return nil
	}
	if err := validation.ValidateEndpointIP(o.PublicIP, nil).ToAggregate(); err != nil {
		return fmt.Errorf("cannot use public IP %s with endpoint reconciler: %w", o.PublicIP, err)
	}
	return nil
}
