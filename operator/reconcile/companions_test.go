package reconcile

import (
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
)

// companion returns the configuration of a companion with an image, nil without.
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

func (c *cluster) nodes() {
	for _, list := range []client.ObjectList{
		&rbacv1.ClusterRoleBindingList{}, &rbacv1.RoleList{}, &rbacv1.RoleBindingList{}, &corev1.ConfigMapList{},
	} {
		c.must(c.hosted.List(c.t.Context(), list, client.MatchingLabels(desired.NodesSelector(c.get()))))
		c.must(meta.EachListItem(list, func(item runtime.Object) error {
			kind := strings.TrimSuffix(fmt.Sprintf("%T", list)[len("*v1."):], "List")
			c.results = append(c.results, fmt.Sprintf("= %s %s", kind, client.ObjectKeyFromObject(item.(client.Object))))
			return nil
		}))
	}
	slices.Sort(c.results)
}
