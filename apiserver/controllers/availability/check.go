package availability

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"

	"quorate.dev/apiserver/aggregator"
	"quorate.dev/panics"
)

const (
	// probes is the number of concurrent probes, as in kube-aggregator. One successful probe is sufficient.
	probes = 5
	// probesTimeout bounds the time of all probes of one check, as in kube-aggregator.
	probesTimeout = 6 * time.Second
)

// check returns the condition of an APIService, with kube-aggregator's reasons and messages, or nil if the APIService
// has no extension API server. After an error, the check should be repeated soon.
func (c *Controller) check(
	ctx context.Context, service *apiregistration.APIService, backend *aggregator.Backend,
) (*apiregistration.APIServiceCondition, error) {
	reference := service.Spec.Service
	target, err := c.Services.Services(reference.Namespace).Get(reference.Name)
	switch {
	case apierrors.IsNotFound(err):
		return unavailable("ServiceNotFound", "service/%s in %q is not present", reference.Name, reference.Namespace), nil
	case err != nil:
		return unknown("ServiceAccessError", reference, err), nil
	}
	if target.Spec.Type == corev1.ServiceTypeClusterIP {
		if condition := c.checkEndpoints(target, reference); condition != nil {
			return condition, nil
		}
	}
	if err := backend.Err(); err != nil {
		return nil, err
	}
	if err := probe(ctx, backend); err != nil {
		return unavailable("FailedDiscoveryCheck", "%s", err.Error()), err
	}
	return &apiregistration.APIServiceCondition{
		Type: apiregistration.Available, Status: apiregistration.ConditionTrue, Reason: "Passed",
		Message: "all checks passed",
	}, nil
}

// checkEndpoints returns the condition for a Service that lacks the port or has no endpoints; otherwise nil.
func (c *Controller) checkEndpoints(
	target *corev1.Service, reference *apiregistration.ServiceReference,
) *apiregistration.APIServiceCondition {
	at := slices.IndexFunc(target.Spec.Ports, func(p corev1.ServicePort) bool { return p.Port == reference.Port })
	if at < 0 {
		return unavailable("ServicePortError", "service/%s in %q is not listening on port %d",
			reference.Name, reference.Namespace, reference.Port)
	}
	found, err := c.slices.get(c.EndpointSlices, reference.Namespace, reference.Name)
	port := target.Spec.Ports[at].Name
	switch {
	case err != nil:
		return unknown("EndpointsAccessError", reference, err)
	case len(found) == 0:
		return unavailable("EndpointsNotFound", "cannot find endpointslices for service/%s in %q",
			reference.Name, reference.Namespace)
	case !slices.ContainsFunc(found, func(s *discoveryv1.EndpointSlice) bool { return hasEndpoint(s, port) }):
		return unavailable("MissingEndpoints", "endpointslices for service/%s in %q have no addresses with port name %q",
			reference.Name, reference.Namespace, port)
	}
	return nil
}

// hasEndpoint reports whether a slice has a ready endpoint and the port.
func hasEndpoint(slice *discoveryv1.EndpointSlice, port string) bool {
	return slices.ContainsFunc(slice.Endpoints, func(e discoveryv1.Endpoint) bool {
		return e.Conditions.Ready == nil || *e.Conditions.Ready
	}) && slices.ContainsFunc(slice.Ports, func(p discoveryv1.EndpointPort) bool {
		return p.Name != nil && *p.Name == port && p.Port != nil
	})
}

// probe sends concurrent probes. It returns nil after the first success, or the last error if all probes fail.
func probe(ctx context.Context, backend *aggregator.Backend) error {
	ctx, cancel := context.WithTimeout(ctx, probesTimeout)
	results := make(chan error, probes)
	var running sync.WaitGroup
	for range probes {
		running.Go(func() { results <- panics.Catch(func() error { return backend.Probe(ctx) }) })
	}
	go func() { // after a success, the other probes are not canceled, so that their connections can be reused
		defer cancel()
		running.Wait()
	}()
	var last error
	for range probes {
		if last = <-results; last == nil {
			return nil
		}
	}
	return last
}

func unavailable(reason, format string, args ...any) *apiregistration.APIServiceCondition {
	return &apiregistration.APIServiceCondition{
		Type: apiregistration.Available, Status: apiregistration.ConditionFalse, Reason: reason,
		Message: fmt.Sprintf(format, args...),
	}
}

func unknown(
	reason string, reference *apiregistration.ServiceReference, err error,
) *apiregistration.APIServiceCondition {
	return &apiregistration.APIServiceCondition{
		Type: apiregistration.Available, Status: apiregistration.ConditionUnknown, Reason: reason,
		Message: fmt.Sprintf("service/%s in %q cannot be checked due to: %v", reference.Name, reference.Namespace, err),
	}
}

// clientAddress matches the client's address of a connection in an error of package net: "read tcp
// 10.0.0.1:40000->10.0.0.2:443".
var clientAddress = regexp.MustCompile(`\S+:\d+->`)

// withoutClient removes the client's addresses from a message. They differ in each connection, so that otherwise each
// check would change the message.
func withoutClient(message string) string { return clientAddress.ReplaceAllString(message, "") }
