package reconcile

import (
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
)

// companion returns the configuration of a companion with an image, or nil without an image.
func companion(image string) *v1alpha1.Companion {
	if image == "" {
		return nil
	}
	return &v1alpha1.Companion{Image: image}
}

func (c *cluster) rollout(name string) {
	deployment := &appsv1.Deployment{}
	c.must(c.client.Get(c.t.Context(), client.ObjectKey{Namespace: "ns", Name: name}, deployment))
	replicas := *deployment.Spec.Replicas
	deployment.Status = appsv1.DeploymentStatus{
		ObservedGeneration: deployment.Generation, Replicas: replicas, UpdatedReplicas: replicas, AvailableReplicas: replicas,
	}
	c.must(c.client.Status().Update(c.t.Context(), deployment))
}

// crash creates a pod of a companion whose container exits with a message.
func (c *cluster) crash(companion, message string) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "demo-" + companion + "-new", Labels: desired.CompanionSelector(c.get(), companion),
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: companion, Image: "image"}}},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
			Name:  companion,
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
			LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
				ExitCode: 1, Message: "Flags:\n" + message + "\n",
			}},
		}}},
	}
	status := pod.Status
	c.must(c.client.Create(c.t.Context(), pod))
	pod.Status = status
	c.must(c.client.Status().Update(c.t.Context(), pod))
}

// loadBalancer gives the Service the addresses of a load balancer.
func (c *cluster) loadBalancer(addresses []string) {
	service := &corev1.Service{}
	c.must(c.client.Get(c.t.Context(), client.ObjectKey{Namespace: "ns", Name: "demo"}, service))
	service.Status.LoadBalancer.Ingress = nil
	for _, address := range addresses {
		service.Status.LoadBalancer.Ingress = append(service.Status.LoadBalancer.Ingress,
			corev1.LoadBalancerIngress{IP: address})
	}
	c.must(c.client.Status().Update(c.t.Context(), service))
}

func (c *cluster) nodes() {
	for _, list := range []client.ObjectList{
		&rbacv1.ClusterRoleBindingList{}, &rbacv1.RoleList{}, &rbacv1.RoleBindingList{}, &corev1.ConfigMapList{},
		&discoveryv1.EndpointSliceList{},
	} {
		c.must(c.hosted.List(c.t.Context(), list, client.MatchingLabels(desired.NodesSelector(c.get()))))
		c.must(meta.EachListItem(list, func(item runtime.Object) error {
			kind := strings.TrimSuffix(fmt.Sprintf("%T", list)[len("*v1."):], "List")
			text := fmt.Sprintf("= %s %s", kind, client.ObjectKeyFromObject(item.(client.Object)))
			if slice, ok := item.(*discoveryv1.EndpointSlice); ok {
				text += fmt.Sprintf(" of %s, port %d:", slice.Labels[discoveryv1.LabelServiceName], *slice.Ports[0].Port)
				for _, endpoint := range slice.Endpoints {
					text += " " + endpoint.Addresses[0]
				}
			}
			c.results = append(c.results, text)
			return nil
		}))
	}
	slices.Sort(c.results)
}
