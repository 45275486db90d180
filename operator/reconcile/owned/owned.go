package owned

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/observed"
)

// Objects reads and writes the objects of clusters.
type Objects struct {
	Client   client.Client // reads objects that the operator owns from a cache, except pods and claims
	Reader   client.Reader // reads from the API server
	Recorder events.EventRecorder
}

// Find reads an object of the cluster from the cache. If the cache does not have the object, Find reads it from the API
// server: the object may have lost the labels by which objects are cached. Without the second read, the operator would
// treat a lost label as a lost object, for example the Secret of an authority, and try to replace it. Find returns
// false if the object does not exist, and ErrForeign if the cluster does not own it.
func (o Objects) Find(
	ctx context.Context, cluster *v1alpha1.ApiServerCluster, name string, into client.Object,
) (bool, error) {
	key := client.ObjectKey{Namespace: cluster.Namespace, Name: name}
	err := o.Client.Get(ctx, key, into)
	if apierrors.IsNotFound(err) {
		err = o.Reader.Get(ctx, key, into)
	}
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read %s: %w", name, err)
	}
	if !desired.Owns(cluster, into) {
		return false, ForeignError(into)
	}
	return true, nil
}

// Create creates an object with the cluster as its owner. If the name is taken, it returns ErrForeign or ErrStale.
func (o Objects) Create(ctx context.Context, cluster *v1alpha1.ApiServerCluster, object client.Object) error {
	if err := o.Own(cluster, object); err != nil {
		return err
	}
	err := o.Client.Create(ctx, object)
	if apierrors.IsAlreadyExists(err) {
		return o.alreadyExists(ctx, cluster, object)
	}
	if err != nil {
		return fmt.Errorf("create %s: %w", object.GetName(), err)
	}
	return nil
}

// ErrStale marks an error whose cause is an outdated observation or a terminating object. It is not reported, because
// the user can do nothing about it: the reconciliation is repeated, with growing delays (limited.Retries).
var ErrStale = errors.New("the observed state is outdated")

// Stale reports whether an error only means that the reconciliation has to be repeated: a conflict, or ErrStale.
func Stale(err error) bool { return errors.Is(err, ErrStale) || apierrors.IsConflict(err) }

// alreadyExists returns the error for creating an object whose name is taken: ErrForeign if the cluster does not own
// the existing object, otherwise ErrStale. If the existing object was not found because it has lost its labels,
// alreadyExists restores them.
func (o Objects) alreadyExists(
	ctx context.Context, cluster *v1alpha1.ApiServerCluster, object client.Object,
) error {
	name := object.GetName()
	switch err := o.Reader.Get(ctx, client.ObjectKeyFromObject(object), object); {
	case client.IgnoreNotFound(err) != nil:
		return fmt.Errorf("read %s: %w", name, err)
	case err == nil && object.GetDeletionTimestamp() == nil && desired.Owns(cluster, object):
		if err := o.Relabel(ctx, cluster, object); err != nil {
			return err
		}
		return fmt.Errorf("create %s: %w", name, ErrStale)
	case err != nil, object.GetDeletionTimestamp() != nil:
		return fmt.Errorf("create %s: %w", name, ErrStale)
	}
	return ForeignError(object)
}

// ErrForeign marks an error whose cause is an object that has the name of an object of the cluster, but another owner.
var ErrForeign = errors.New("is not owned by this cluster")

// ForeignError returns an error that wraps ErrForeign. The error says how the user can resolve the conflict: by
// adopting the object if a deleted cluster has left it, otherwise by deleting it or by renaming the cluster.
func ForeignError(object client.Object) error {
	if former := desired.RetainedFrom(object); former != "" {
		return fmt.Errorf("%s was retained from a deleted cluster and %w; to continue with its data, set "+
			"spec.adopt.clusterUID to %s, otherwise delete the objects with the label %s", object.GetName(), ErrForeign,
			former, desired.RetainedLabel)
	}
	return fmt.Errorf("an object named %s exists and %w; delete it or rename the cluster", object.GetName(), ErrForeign)
}

// Update writes after if it differs from before. It fails with a conflict if the object was updated since before was
// read.
func (o Objects) Update(ctx context.Context, before, after client.Object) error {
	if equality.Semantic.DeepEqual(before, after) {
		return nil
	}
	if err := o.Client.Update(ctx, after); err != nil {
		return fmt.Errorf("update %s: %w", after.GetName(), err)
	}
	return nil
}

// Ensure creates an object, or updates it: it reads the existing object into current, calls set, which sets fields of
// current to the wanted values, and writes current if that has changed it. Fields that set does not touch keep their
// values, such as defaults and fields of other clients.
func (o Objects) Ensure(
	ctx context.Context, cluster *v1alpha1.ApiServerCluster, wanted, current client.Object, set func(),
) error {
	found, err := o.Find(ctx, cluster, wanted.GetName(), current)
	if err != nil {
		return err
	}
	if !found {
		return o.Create(ctx, cluster, wanted)
	}
	before, ok := current.DeepCopyObject().(client.Object)
	if !ok {
		return fmt.Errorf("%T is no object", current)
	}
	set()
	SetLabels(current, wanted)
	return o.Update(ctx, before, current)
}

// EnsureSecret creates a Secret, or updates the data of the existing one.
func (o Objects) EnsureSecret(
	ctx context.Context, cluster *v1alpha1.ApiServerCluster, wanted *corev1.Secret,
) error {
	current := &corev1.Secret{}
	return o.Ensure(ctx, cluster, wanted, current, func() { current.Data = wanted.Data })
}

// SetLabels adds the desired labels to an object and keeps its other labels.
func SetLabels(object, wanted client.Object) {
	labels := object.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	for name, value := range wanted.GetLabels() {
		labels[name] = value
	}
	object.SetLabels(labels)
}

// Relabel restores the labels of a pod or claim by which the operator lists the objects of a cluster. An object without
// them would count as missing: a voter whose claim is missing is replaced, and a pod that is not listed is not
// restarted or removed with its member. Whether a pod runs a member follows from its volumes, which are immutable, and
// not from the lost label.
func (o Objects) Relabel(ctx context.Context, cluster *v1alpha1.ApiServerCluster, object client.Object) error {
	if object.GetLabels()[desired.ClusterLabel] == cluster.Name {
		return nil
	}
	labels, kind := desired.Labels(cluster), ""
	labels[desired.RoleLabel] = desired.RoleMember
	switch typed := object.(type) {
	case *corev1.PersistentVolumeClaim:
		kind = "PersistentVolumeClaim"
	case *corev1.Pod:
		kind = "Pod"
		if !observed.RunsMember(typed) {
			labels[desired.RoleLabel] = desired.RoleServer
		}
	default:
		return nil
	}
	before, _ := object.DeepCopyObject().(client.Object)
	SetLabels(object, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: labels}})
	if err := o.Client.Patch(ctx, object, client.MergeFrom(before)); err != nil {
		return fmt.Errorf("restore the labels of %s: %w", object.GetName(), err)
	}
	o.Event(cluster, Event{
		Warning: true, Related: Reference(kind, object), Reason: v1alpha1.ReasonLabelsRestored, Action: "Update",
		Message: "Restored the labels of " + kind + " " + object.GetName(),
	})
	return nil
}

// Reference returns a reference to an object of a kind in the core group.
func Reference(kind string, object client.Object) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: kind, Namespace: object.GetNamespace(), Name: object.GetName()}
}

// WriteSecret creates a Secret, or updates the data of a Secret that was read as current. wanted was derived from
// current, so the write fails with a conflict if the Secret has been updated since. Callers rely on that for keys: two
// operators that create different keys at the same time cannot overwrite each other's.
func (o Objects) WriteSecret(
	ctx context.Context, cluster *v1alpha1.ApiServerCluster, found bool, current, wanted *corev1.Secret,
) error {
	if !found {
		return o.Create(ctx, cluster, wanted)
	}
	after := current.DeepCopy()
	after.Data = wanted.Data
	for name, value := range wanted.Annotations {
		metav1.SetMetaDataAnnotation(&after.ObjectMeta, name, value)
	}
	SetLabels(after, wanted)
	return o.Update(ctx, current, after)
}

// Own makes a cluster the owner of a new object. Durable objects of a cluster that is protected, has a final backup or
// retains its data have no owner reference, because the garbage collector would delete them without these checks.
// Neither has a claim with the only copy of acknowledged writes.
func (o Objects) Own(cluster *v1alpha1.ApiServerCluster, object client.Object) error {
	kept := desired.Detached(cluster) || desired.Kept(object)
	if kept && desired.Durable(cluster, object) {
		desired.Detach(cluster, object)
		return nil
	}
	return controllerutil.SetControllerReference(cluster, object, o.Client.Scheme())
}

// PatchClaim writes the labels, annotations and owners of a claim if they differ. The patch has an optimistic lock: a
// claim whose annotations another operator has changed, for example because it may have the only copy of acknowledged
// writes, must not be released or deleted because of an outdated view. A claim that no longer exists is not an error.
func (o Objects) PatchClaim(ctx context.Context, before, after *corev1.PersistentVolumeClaim) error {
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if data, err := client.MergeFrom(before).Data(after); err != nil || string(data) == "{}" {
		return err
	}
	if err := o.Client.Patch(ctx, after, patch); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("update claim %s: %w", before.Name, err)
	}
	return nil
}

// Remove deletes an object if the cluster owns it, and reports whether it has deleted one. An object of another owner
// is not an error, because the cluster no longer needs the name. Dependents, such as the pods of a Deployment, are
// deleted in the background.
func (o Objects) Remove(ctx context.Context, cluster *v1alpha1.ApiServerCluster, object client.Object) (bool, error) {
	found, err := o.Find(ctx, cluster, object.GetName(), object)
	if errors.Is(err, ErrForeign) {
		return false, nil
	}
	if err != nil || !found {
		return false, err
	}
	uid := object.GetUID()
	err = o.Client.Delete(ctx, object, client.PropagationPolicy(metav1.DeletePropagationBackground),
		client.Preconditions{UID: &uid})
	if client.IgnoreNotFound(err) != nil {
		return true, fmt.Errorf("delete %s: %w", object.GetName(), err)
	}
	return true, nil
}
