package watches

import (
	"context"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	ctrlreconcile "sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
)

// SourceMetadata is the transform of the cache of users' objects. It removes everything that the watch does not need:
// only names, UID and resource version are kept in memory.
func SourceMetadata(object any) (any, error) {
	metadata, ok := object.(*metav1.PartialObjectMetadata)
	if !ok {
		return object, nil
	}
	metadata.ObjectMeta = metav1.ObjectMeta{
		Namespace: metadata.Namespace, Name: metadata.Name, UID: metadata.UID, ResourceVersion: metadata.ResourceVersion,
	}
	return metadata, nil
}

// workers is the number of clusters that are reconciled concurrently. A reconciliation may wait for seconds for
// replicas that do not respond; with one worker, one broken cluster would delay all others.
const workers = 4

// SetUp adds a controller that calls reconciler to a manager, with watches of the clusters, of the objects that they
// own or refer to, and of backup schedules. metadata is a cache of the metadata of ConfigMaps and Secrets; if it is
// nil, the objects that clusters refer to are not watched. After errors, the delays begin with 50 milliseconds and
// double up to 15 seconds, per cluster.
func SetUp(
	manager ctrl.Manager, reader client.Reader, metadata cache.Cache, reconciler ctrlreconcile.Reconciler,
) error {
	controlled := ctrl.NewControllerManagedBy(manager)
	for _, watch := range sources(reader, metadata) {
		controlled = controlled.WatchesRawSource(watch)
	}
	return controlled.
		For(&v1alpha1.ApiServerCluster{}, builder.WithPredicates(
			predicate.Or(predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}))).
		Watches(&v1alpha1.ApiServerBackupSchedule{}, handler.EnqueueRequestsFromMapFunc(clusterOfSchedule)).
		Owns(&corev1.Pod{}).
		Owns(&corev1.PersistentVolumeClaim{}).
		Watches(&corev1.PersistentVolumeClaim{}, handler.EnqueueRequestsFromMapFunc(clusterOfDetached)).
		Watches(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(clusterOfDetached)).
		Owns(&corev1.Service{}).
		Owns(&corev1.Secret{}).
		Owns(&appsv1.Deployment{}).
		Owns(&policyv1.PodDisruptionBudget{}).
		Owns(&networkingv1.NetworkPolicy{}).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: workers,
			RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[ctrlreconcile.Request](
				50*time.Millisecond, 15*time.Second),
		}).
		Complete(reconciler)
}

// sources returns the watches of the ConfigMaps and Secrets that clusters may refer to. These objects have no label by
// which the cache could select them, so their metadata is cached instead of their content.
func sources(reader client.Reader, metadata cache.Cache) []source.Source {
	if metadata == nil {
		return nil
	}
	var all []source.Source
	for _, kind := range []string{"ConfigMap", "Secret"} {
		object := &metav1.PartialObjectMetadata{}
		object.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(kind))
		enqueue := func(ctx context.Context, changed *metav1.PartialObjectMetadata) []ctrlreconcile.Request {
			return clustersOf(ctx, reader, kind, client.ObjectKeyFromObject(changed))
		}
		all = append(all, source.Kind[*metav1.PartialObjectMetadata](metadata, object,
			handler.TypedEnqueueRequestsFromMapFunc[*metav1.PartialObjectMetadata](enqueue)))
	}
	return all
}

// clustersOf returns requests for the clusters that refer to an object.
func clustersOf(
	ctx context.Context, reader client.Reader, kind string, object types.NamespacedName,
) (requests []ctrlreconcile.Request) {
	list := &v1alpha1.ApiServerClusterList{}
	if reader.List(ctx, list, client.InNamespace(object.Namespace)) != nil {
		return nil // the next resync finds the change
	}
	for i := range list.Items {
		if slices.Contains(desired.Sources(&list.Items[i], kind), object.Name) {
			requests = append(requests, ctrlreconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
	}
	return requests
}

// clusterOfDetached returns a request for the cluster in the labels of an object that has no owner reference. The cache
// has no annotations of claims, so the UID of the owner cannot be compared.
func clusterOfDetached(_ context.Context, object client.Object) []ctrlreconcile.Request {
	name := object.GetLabels()[desired.ClusterLabel]
	if name == "" || metav1.GetControllerOfNoCopy(object) != nil {
		return nil
	}
	return []ctrlreconcile.Request{{NamespacedName: types.NamespacedName{Namespace: object.GetNamespace(), Name: name}}}
}

// clusterOfSchedule returns a request for the cluster that a backup schedule refers to.
func clusterOfSchedule(_ context.Context, object client.Object) []ctrlreconcile.Request {
	s, ok := object.(*v1alpha1.ApiServerBackupSchedule)
	if !ok {
		return nil
	}
	key := client.ObjectKey{Namespace: s.Namespace, Name: s.Spec.Template.ClusterName}
	return []ctrlreconcile.Request{{NamespacedName: key}}
}
