package kubeconfig

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
)

// SetupWithManager adds the controller to a manager. In addition to its own objects, the controller watches clusters
// and the two Secrets of each cluster that kubeconfigs are derived from.
func (r *Reconciler) SetupWithManager(manager ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(manager).
		For(&v1alpha1.ApiServerKubeconfig{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Owns(&corev1.Secret{}).
		Watches(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(r.kubeconfigsOfSecret)).
		Watches(&v1alpha1.ApiServerCluster{}, handler.EnqueueRequestsFromMapFunc(func(
			ctx context.Context, cluster client.Object,
		) []reconcile.Request {
			return r.kubeconfigsOf(ctx, cluster.GetNamespace(), cluster.GetName())
		})).
		Complete(r)
}

// kubeconfigsOfSecret returns requests for all kubeconfigs that are derived from a Secret of a cluster.
func (r *Reconciler) kubeconfigsOfSecret(ctx context.Context, secret client.Object) []reconcile.Request {
	cluster := secret.GetLabels()[desired.ClusterLabel]
	if name := secret.GetName(); name != cluster+"-"+desired.ClientDomain && name != cluster+"-"+desired.ServingSecret {
		return nil
	}
	return r.kubeconfigsOf(ctx, secret.GetNamespace(), cluster)
}

// kubeconfigsOf returns requests for all kubeconfigs that refer to a cluster.
func (r *Reconciler) kubeconfigsOf(ctx context.Context, namespace, cluster string) (requests []reconcile.Request) {
	list := &v1alpha1.ApiServerKubeconfigList{}
	if cluster == "" || r.Client.List(ctx, list, client.InNamespace(namespace)) != nil {
		return nil
	}
	for i := range list.Items {
		if list.Items[i].Spec.ClusterRef.Name == cluster {
			requests = append(requests, reconcile.Request{
				NamespacedName: types.NamespacedName{Namespace: namespace, Name: list.Items[i].Name},
			})
		}
	}
	return requests
}
