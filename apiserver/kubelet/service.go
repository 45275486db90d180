package kubelet

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strconv"

	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/util/proxy"
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
	if namespace == "" {
		return nil, apierrors.NewBadRequest("missing required namespace")
	}
	found, err := k.slices.GetEndpointSlices(namespace, name)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	if len(found) == 0 {
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("no endpoints available for service %q", name))
	}
	host, err := proxy.RandomEndpoint(name, found, port, k.family, func(endpoint *discoveryv1.Endpoint) bool {
		return k.isPod(ctx, namespace, endpoint)
	})
	if err != nil {
		return nil, err
	}
	return &url.URL{Scheme: scheme, Host: host}, nil
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

// isPod reports whether the address of an endpoint belongs to a pod in the namespace. Users can write EndpointSlices,
// so that requests must not be proxied to other addresses.
func (k *Kubelets) isPod(ctx context.Context, namespace string, endpoint *discoveryv1.Endpoint) bool {
	if endpoint.TargetRef == nil || endpoint.TargetRef.Namespace != namespace {
		return false
	}
	found, err := k.getter(pods, namespace).Get(ctx, endpoint.TargetRef.Name, nil)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(found.(*api.Pod).Status.PodIPs, func(ip api.PodIP) bool {
		return ip.IP == endpoint.Addresses[0]
	})
}
