package kubelet

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"slices"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	api "k8s.io/kubernetes/pkg/apis/core"
)

// serviceLocation returns the URL of a random endpoint of a Service. asked is "name", "name:port" or
// "scheme:name:port", where port is the name or the number of a Service port.
func (k *Kubelets) serviceLocation(ctx context.Context, namespace, asked string) (*url.URL, error) {
	scheme, name, port, ok := utilnet.SplitSchemeNamePort(asked)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid service request %q", asked))
	}
	if number, err := strconv.ParseInt(port, 10, 64); err == nil {
		if port, err = k.portName(ctx, namespace, name, number); err != nil {
			return nil, err
		}
	}
	found, err := k.getter(endpoints, namespace).Get(ctx, name, nil)
	if err != nil {
		return nil, err
	}
	subsets := found.(*api.Endpoints).Subsets
	if len(subsets) == 0 {
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("no endpoints available for service %q", name))
	}
	for _, subset := range rotated(subsets) {
		for _, candidate := range subset.Ports {
			if candidate.Name != port {
				continue
			}
			for _, address := range rotated(subset.Addresses) {
				if k.isPod(ctx, namespace, address) {
					return &url.URL{Scheme: scheme, Host: net.JoinHostPort(address.IP, strconv.Itoa(int(candidate.Port)))}, nil
				}
			}
		}
	}
	return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("no endpoints available for service %q", asked))
}

// portName returns the name of the Service port with the given number.
func (k *Kubelets) portName(ctx context.Context, namespace, name string, number int64) (string, error) {
	found, err := k.getter(services, namespace).Get(ctx, name, nil)
	if err != nil {
		return "", err
	}
	for _, port := range found.(*api.Service).Spec.Ports {
		if int64(port.Port) == number {
			return port.Name, nil
		}
	}
	return "", apierrors.NewServiceUnavailable(fmt.Sprintf("no service port %d found for service %q", number, name))
}

// rotated returns the elements, rotated by a random number of positions.
func rotated[T any](all []T) []T {
	if len(all) < 2 {
		return all
	}
	start := rand.IntN(len(all))
	return slices.Concat(all[start:], all[:start])
}

// isPod reports whether an address belongs to a pod in the namespace. Users can write Endpoints, so that requests must
// not be proxied to other addresses.
func (k *Kubelets) isPod(ctx context.Context, namespace string, address api.EndpointAddress) bool {
	if address.TargetRef == nil || address.TargetRef.Namespace != namespace {
		return false
	}
	found, err := k.getter(pods, namespace).Get(ctx, address.TargetRef.Name, nil)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(found.(*api.Pod).Status.PodIPs, func(ip api.PodIP) bool { return ip.IP == address.IP })
}
