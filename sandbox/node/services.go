package node

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"quorate.dev/sandbox/endpoints"
)

// updateTable updates the Table with the Services and their endpoints.
func (a *Agent) updateTable(context.Context) error {
	services, err := a.lister.services.List(labels.Everything())
	if err != nil {
		return err
	}
	pods, err := a.lister.pods.List(labels.Everything())
	if err != nil {
		return err
	}
	a.options.Table.Update(services, pods)
	return nil
}

// publishSlices creates and updates an EndpointSlice for each Service with a selector. The garbage collector deletes
// the EndpointSlices of deleted Services.
func (a *Agent) publishSlices(ctx context.Context) error {
	if err := a.updateTable(ctx); err != nil {
		return err
	}
	var failures []error
	for _, entry := range a.options.Table.Entries() {
		if len(entry.Service.Spec.Selector) > 0 && entry.Service.DeletionTimestamp == nil {
			failures = append(failures, a.publishSlice(ctx, endpoints.Slice(entry)))
		}
	}
	return errors.Join(failures...)
}

func (a *Agent) publishSlice(ctx context.Context, wanted *discoveryv1.EndpointSlice) error {
	slices := a.options.Client.DiscoveryV1().EndpointSlices(wanted.Namespace)
	current, err := a.factory.Discovery().V1().EndpointSlices().Lister().EndpointSlices(wanted.Namespace).Get(wanted.Name)
	if apierrors.IsNotFound(err) {
		_, err = slices.Create(ctx, wanted, metav1.CreateOptions{})
		return ignore(err, apierrors.IsAlreadyExists, apierrors.IsNotFound)
	}
	if err != nil || sameSlice(current, wanted) {
		return err
	}
	wanted.ResourceVersion = current.ResourceVersion
	_, err = slices.Update(ctx, wanted, metav1.UpdateOptions{})
	return ignore(err, apierrors.IsConflict, apierrors.IsNotFound)
}

func sameSlice(a, b *discoveryv1.EndpointSlice) bool {
	return equality.Semantic.DeepEqual(a.Endpoints, b.Endpoints) && equality.Semantic.DeepEqual(a.Ports, b.Ports) &&
		equality.Semantic.DeepEqual(a.OwnerReferences, b.OwnerReferences)
}

// ignore returns nil for errors that a lagging informer causes. The informer's next event repeats the step.
func ignore(err error, harmless ...func(error) bool) error {
	for _, is := range harmless {
		if is(err) {
			return nil
		}
	}
	return err
}

// publishBalancers sets the load balancer address of Services of type LoadBalancer to their cluster IP.
func (a *Agent) publishBalancers(ctx context.Context) error {
	services, err := a.lister.services.List(labels.Everything())
	if err != nil {
		return err
	}
	var failures []error
	for _, service := range services {
		if !needsLoadBalancer(service) {
			continue
		}
		updated := service.DeepCopy()
		updated.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: service.Spec.ClusterIP}}
		_, err := a.options.Client.CoreV1().Services(service.Namespace).UpdateStatus(ctx, updated, metav1.UpdateOptions{})
		failures = append(failures, ignore(err, apierrors.IsConflict, apierrors.IsNotFound))
	}
	return errors.Join(failures...)
}

// needsLoadBalancer reports whether a Service does not have a load balancer address yet.
func needsLoadBalancer(service *corev1.Service) bool {
	return service.Spec.Type == corev1.ServiceTypeLoadBalancer && service.Spec.ClusterIP != "" &&
		len(service.Status.LoadBalancer.Ingress) == 0 && service.DeletionTimestamp == nil
}
