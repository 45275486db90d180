package reconcile

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
)

// find reads an object of the cluster from the cache and, not finding it there, from the server. It returns false if there is
// none, and an error if there is one of that name that belongs to somebody else.
func (r *Reconciler) find(ctx context.Context, cluster *v1alpha1.ApiServerCluster, name string, into client.Object) (bool, error) {
	key := client.ObjectKey{Namespace: cluster.Namespace, Name: name}
	err := r.Client.Get(ctx, key, into)
	if apierrors.IsNotFound(err) {
		err = r.Reader.Get(ctx, key, into)
	}
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading %s: %w", name, err)
	}
	if !metav1.IsControlledBy(into, cluster) {
		return false, foreign(name)
	}
	return true, nil
}

// create makes an object that the cluster owns.
func (r *Reconciler) create(ctx context.Context, cluster *v1alpha1.ApiServerCluster, object client.Object) error {
	if err := controllerutil.SetControllerReference(cluster, object, r.Client.Scheme()); err != nil {
		return err
	}
	err := r.Client.Create(ctx, object)
	if apierrors.IsAlreadyExists(err) {
		return r.occupied(ctx, cluster, object)
	}
	if err != nil {
		return fmt.Errorf("creating %s: %w", object.GetName(), err)
	}
	return nil
}

// errStale marks what failed for an old view of the world, or for an object on its way out. It is tried again.
var errStale = errors.New("the world has changed")

func stale(err error) bool { return errors.Is(err, errStale) || apierrors.IsConflict(err) }

// occupied says why an object cannot be made: its name is taken.
func (r *Reconciler) occupied(ctx context.Context, cluster *v1alpha1.ApiServerCluster, object client.Object) error {
	name := object.GetName()
	switch err := r.Reader.Get(ctx, client.ObjectKeyFromObject(object), object); {
	case client.IgnoreNotFound(err) != nil:
		return fmt.Errorf("reading %s: %w", name, err)
	case err != nil, object.GetDeletionTimestamp() != nil, metav1.IsControlledBy(object, cluster):
		return fmt.Errorf("creating %s: %w", name, errStale)
	}
	return foreign(name)
}

// errForeign marks an object whose name the cluster needs and that it does not own.
var errForeign = errors.New("does not belong to this cluster")

func foreign(name string) error {
	return fmt.Errorf("an object named %s exists that %w; rename one of them", name, errForeign)
}

// update writes an object if it differs from what it was.
func (r *Reconciler) update(ctx context.Context, before, after client.Object) error {
	if equality.Semantic.DeepEqual(before, after) {
		return nil
	}
	if err := r.Client.Update(ctx, after); err != nil {
		return fmt.Errorf("updating %s: %w", after.GetName(), err)
	}
	return nil
}

// ensureSecret makes a Secret hold what it should.
func (r *Reconciler) ensureSecret(ctx context.Context, cluster *v1alpha1.ApiServerCluster, wanted *corev1.Secret) error {
	current := &corev1.Secret{}
	found, err := r.find(ctx, cluster, wanted.Name, current)
	if err != nil {
		return err
	}
	if !found {
		return r.create(ctx, cluster, wanted)
	}
	after := current.DeepCopy()
	after.Data = wanted.Data
	setLabels(after, wanted)
	return r.update(ctx, current, after)
}

func setLabels(object, wanted client.Object) {
	labels := object.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	for name, value := range wanted.GetLabels() {
		labels[name] = value
	}
	object.SetLabels(labels)
}

func (r *Reconciler) ensureFinalizer(ctx context.Context, p *pass) error {
	before := p.cluster.DeepCopy()
	if !controllerutil.AddFinalizer(p.cluster, finalizer) {
		return nil
	}
	if err := r.Client.Patch(ctx, p.cluster, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("adding the finalizer: %w", err)
	}
	return nil
}

// growVolumes asks for larger volumes when the spec does. A class that cannot grow them says so itself.
func (r *Reconciler) growVolumes(ctx context.Context, p *pass) error {
	size := desired.StorageSize(p.cluster)
	for i := range p.world.Claims {
		claim := &p.world.Claims[i]
		current := claim.Spec.Resources.Requests[corev1.ResourceStorage]
		if claim.DeletionTimestamp != nil || size.Cmp(current) <= 0 {
			continue
		}
		after := claim.DeepCopy()
		after.Spec.Resources.Requests[corev1.ResourceStorage] = size
		if err := r.Client.Patch(ctx, after, client.MergeFrom(claim)); err != nil {
			return fmt.Errorf("growing claim %s to %s: %w", claim.Name, size.String(), err)
		}
		r.event(p.cluster, reference("PersistentVolumeClaim", claim), corev1.EventTypeNormal, "VolumeGrows", "Grow", "%s: %s to %s", claim.Name, current.String(), size.String())
	}
	return nil
}

// noteCertificates writes on each pod which certificates it should hold: a pod that changes is synchronized at once, and
// with it the files of its Secrets.
func (r *Reconciler) noteCertificates(ctx context.Context, p *pass) error {
	hash := p.pki.hash()
	for i := range p.world.Pods {
		pod := &p.world.Pods[i]
		if pod.DeletionTimestamp != nil || pod.Annotations[desired.CertificateHashAnnotation] == hash {
			continue
		}
		after := pod.DeepCopy()
		metav1.SetMetaDataAnnotation(&after.ObjectMeta, desired.CertificateHashAnnotation, hash)
		if err := r.Client.Patch(ctx, after, client.MergeFrom(pod)); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("annotating pod %s: %w", pod.Name, err)
		}
	}
	return nil
}

// reference to an object of the core group.
func reference(kind string, object client.Object) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: kind, Namespace: object.GetNamespace(), Name: object.GetName()}
}
