package reconcile

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	ctrlreconcile "sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
)

// SourceMetadata returns the metadata of a user's object that is kept in memory: its name and version.
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

// sources returns the watches of ConfigMaps and Secrets that clusters refer to. They are not labelled, so that only
// their metadata is cached.
func (r *Reconciler) sources() []source.Source {
	if r.Sources == nil {
		return nil
	}
	var all []source.Source
	for _, kind := range []string{"ConfigMap", "Secret"} {
		object := &metav1.PartialObjectMetadata{}
		object.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(kind))
		enqueue := func(ctx context.Context, changed *metav1.PartialObjectMetadata) []ctrlreconcile.Request {
			return r.clustersOf(ctx, kind, client.ObjectKeyFromObject(changed))
		}
		all = append(all, source.Kind[*metav1.PartialObjectMetadata](r.Sources, object,
			handler.TypedEnqueueRequestsFromMapFunc[*metav1.PartialObjectMetadata](enqueue)))
	}
	return all
}

// clustersOf returns requests for the clusters that refer to an object.
func (r *Reconciler) clustersOf(ctx context.Context, kind string, object types.NamespacedName) (requests []ctrlreconcile.Request) {
	list := &v1alpha1.ApiServerClusterList{}
	if r.Client.List(ctx, list, client.InNamespace(object.Namespace)) != nil {
		return nil // the next resync finds the change
	}
	for i := range list.Items {
		if slices.Contains(desired.Sources(&list.Items[i], kind), object.Name) {
			requests = append(requests, ctrlreconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
	}
	return requests
}
