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
	"quorate.dev/operator/observed"
)

// find reads an object of the cluster from the cache or, if it is not cached, from the API server. It returns false if
// the object does not exist, and errForeign if the cluster does not own it.
func (r *Reconciler) find(
	ctx context.Context, cluster *v1alpha1.ApiServerCluster, name string, into client.Object,
) (bool, error) {
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
		return false, foreignError(name)
	}
	return true, nil
}

// create creates an object that the cluster owns.
func (r *Reconciler) create(ctx context.Context, cluster *v1alpha1.ApiServerCluster, object client.Object) error {
	if err := controllerutil.SetControllerReference(cluster, object, r.Client.Scheme()); err != nil {
		return err
	}
	err := r.Client.Create(ctx, object)
	if apierrors.IsAlreadyExists(err) {
		return r.alreadyExists(ctx, cluster, object)
	}
	if err != nil {
		return fmt.Errorf("creating %s: %w", object.GetName(), err)
	}
	return nil
}

// errStale marks errors caused by an outdated observation or a terminating object. The reconciliation is repeated.
var errStale = errors.New("the observed state is outdated")

func stale(err error) bool { return errors.Is(err, errStale) || apierrors.IsConflict(err) }

// alreadyExists returns the error of creating an object whose name is taken: errForeign if the cluster does not own the
// existing object, otherwise errStale.
func (r *Reconciler) alreadyExists(
	ctx context.Context, cluster *v1alpha1.ApiServerCluster, object client.Object,
) error {
	name := object.GetName()
	switch err := r.Reader.Get(ctx, client.ObjectKeyFromObject(object), object); {
	case client.IgnoreNotFound(err) != nil:
		return fmt.Errorf("reading %s: %w", name, err)
	case err == nil && object.GetDeletionTimestamp() == nil && metav1.IsControlledBy(object, cluster):
		if err := r.relabel(ctx, cluster, object); err != nil {
			return err
		}
		return fmt.Errorf("creating %s: %w", name, errStale)
	case err != nil, object.GetDeletionTimestamp() != nil:
		return fmt.Errorf("creating %s: %w", name, errStale)
	}
	return foreignError(name)
}

// errForeign marks errors caused by an object that has a name of the cluster's objects but another owner.
var errForeign = errors.New("is not owned by this cluster")

func foreignError(name string) error {
	return fmt.Errorf("an object named %s exists and %w; delete it or rename the cluster", name, errForeign)
}

// update updates an object if it has changed.
func (r *Reconciler) update(ctx context.Context, before, after client.Object) error {
	if equality.Semantic.DeepEqual(before, after) {
		return nil
	}
	if err := r.Client.Update(ctx, after); err != nil {
		return fmt.Errorf("updating %s: %w", after.GetName(), err)
	}
	return nil
}

// ensureSecret creates or updates a Secret.
func (r *Reconciler) ensureSecret(
	ctx context.Context, cluster *v1alpha1.ApiServerCluster, desired *corev1.Secret,
) error {
	current := &corev1.Secret{}
	found, err := r.find(ctx, cluster, desired.Name, current)
	if err != nil {
		return err
	}
	if !found {
		return r.create(ctx, cluster, desired)
	}
	after := current.DeepCopy()
	after.Data = desired.Data
	setLabels(after, desired)
	return r.update(ctx, current, after)
}

// setLabels adds the desired labels and keeps the others.
func setLabels(object, desired client.Object) {
	labels := object.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	for name, value := range desired.GetLabels() {
		labels[name] = value
	}
	object.SetLabels(labels)
}

// relabel restores the labels with which the operator finds a pod or claim of the cluster.
func (r *Reconciler) relabel(ctx context.Context, cluster *v1alpha1.ApiServerCluster, object client.Object) error {
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
	setLabels(object, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: labels}})
	if err := r.Client.Patch(ctx, object, client.MergeFrom(before)); err != nil {
		return fmt.Errorf("restoring the labels of %s: %w", object.GetName(), err)
	}
	r.event(cluster, event{
		warning: true, related: reference(kind, object), reason: v1alpha1.ReasonLabelsRestored, action: "Update",
		message: "Restored the labels of " + kind + " " + object.GetName(),
	})
	return nil
}

// relabelClaims restores the labels of the claims of known members, because a member whose claim is not found is
// replaced.
func (r *Reconciler) relabelClaims(ctx context.Context, p *pass) error {
	if p.cluster.Paused(p.input.Now) {
		return nil
	}
	for _, member := range p.cluster.Status.Members {
		if p.state.Claim(member.Name) != nil {
			continue
		}
		claim := &corev1.PersistentVolumeClaim{}
		err := r.Reader.Get(ctx, client.ObjectKey{Namespace: p.cluster.Namespace, Name: member.Name}, claim)
		switch {
		case client.IgnoreNotFound(err) != nil:
			return fmt.Errorf("reading claim %s: %w", member.Name, err)
		case err != nil, !metav1.IsControlledBy(claim, p.cluster), claim.Labels[desired.ClusterLabel] == p.cluster.Name:
			continue
		}
		if err := r.relabel(ctx, p.cluster, claim); err != nil {
			return err
		}
		p.state.Claims = append(p.state.Claims, *claim)
	}
	return nil
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

// expandVolumes increases the requested size of the claims. The API server rejects it if the class does not allow expansion.
// The quota of etcd stays that of the smallest volume.
func (r *Reconciler) expandVolumes(ctx context.Context, p *pass) error {
	size := p.cluster.StorageSize()
	smallest := size.Value()
	var rejected []error
	for i := range p.state.Claims {
		claim := &p.state.Claims[i]
		current := claim.Spec.Resources.Requests[corev1.ResourceStorage]
		if claim.DeletionTimestamp != nil || size.Cmp(current) <= 0 {
			continue
		}
		after := claim.DeepCopy()
		after.Spec.Resources.Requests[corev1.ResourceStorage] = size
		err := r.Client.Patch(ctx, after, client.MergeFrom(claim))
		if err != nil {
			smallest = min(smallest, current.Value())
			err = fmt.Errorf("expanding claim %s to %s: %w", claim.Name, size.String(), err)
		}
		switch {
		case apierrors.IsForbidden(err), apierrors.IsInvalid(err):
			rejected = append(rejected, err)
			continue
		case err != nil:
			p.configuration.VolumeSize = smallest
			return err
		}
		r.event(p.cluster, event{
			related: reference("PersistentVolumeClaim", claim), reason: v1alpha1.ReasonVolumeResizing, action: "Resize",
			message: fmt.Sprintf("Resizing volume of %s from %s to %s", claim.Name, current.String(), size.String()),
		})
	}
	p.configuration.VolumeSize, p.input.VolumeErr = smallest, errors.Join(rejected...)
	return nil
}

// annotateCertificates annotates each pod with the hash of its certificates and reloaded files: the kubelet syncs an
// updated pod at once, including the files of its Secrets.
func (r *Reconciler) annotateCertificates(ctx context.Context, p *pass) error {
	hash := p.mountedHash()
	for i := range p.state.Pods {
		pod := &p.state.Pods[i]
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

// reference returns a reference to an object of the core group.
func reference(kind string, object client.Object) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: kind, Namespace: object.GetNamespace(), Name: object.GetName()}
}
