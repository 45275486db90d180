package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/observed"
)

// An unavailable companion is observed every companionInterval in the first companionPeriod, which is long enough to
// see a container fail repeatedly.
const (
	companionInterval = 10 * time.Second
	companionPeriod   = 5 * time.Minute
)

// ensureCompanions creates and updates the Deployments of companions, and deletes those that are no longer in the spec.
// The status lists a companion before its objects are created, so that they are deleted even if the operator crashes in
// between.
func (r *Reconciler) ensureCompanions(ctx context.Context, p *pass) error {
	if p.announceCompanions() {
		return nil
	}
	statuses := []v1alpha1.CompanionStatus{}
	var errs []error
	for _, companion := range desired.Companions(p.cluster) {
		old := companionStatus(p.cluster, companion.Name)
		if old == nil {
			continue
		}
		if companion.Spec == nil {
			removed, err := r.removeCompanion(ctx, p, companion.Name)
			if errs = append(errs, err); !removed {
				statuses = append(statuses, v1alpha1.CompanionStatus{Name: companion.Name, Message: "it is being removed"})
			}
			continue
		}
		current, err := r.ensureCompanion(ctx, p, companion)
		if errs = append(errs, err); err != nil {
			current = *old
			current.Message = err.Error()
		}
		statuses = append(statuses, current)
	}
	p.input.Companions = &statuses
	return errors.Join(errs...)
}

func companionStatus(cluster *v1alpha1.ApiServerCluster, name string) *v1alpha1.CompanionStatus {
	for i := range cluster.Status.Companions {
		if cluster.Status.Companions[i].Name == name {
			return &cluster.Status.Companions[i]
		}
	}
	return nil
}

// announceCompanions adds companions to the status before they are created. It reports whether any was missing: then the
// next reconciliation creates them.
func (p *pass) announceCompanions() bool {
	statuses := slices.Clone(p.cluster.Status.Companions)
	for _, companion := range desired.Companions(p.cluster) {
		if companion.Spec != nil && companionStatus(p.cluster, companion.Name) == nil {
			statuses = append(statuses, v1alpha1.CompanionStatus{
				Name: companion.Name, Replicas: companion.Spec.ReplicaCount(p.cluster), Message: "it is not created yet",
			})
		}
	}
	if len(statuses) == len(p.cluster.Status.Companions) {
		return false
	}
	slices.SortFunc(statuses, func(a, b v1alpha1.CompanionStatus) int { return strings.Compare(a.Name, b.Name) })
	p.input.Companions, p.entered = &statuses, true
	return true
}

// companionCredentials returns the parts of the certificates that companions need. Companions trust the serving
// certificate itself if a public authority issued it, because their images may not contain that authority.
func (p *pass) companionCredentials() desired.CompanionCredentials {
	c := desired.CompanionCredentials{
		Trusted: p.certificates.trusted, ServerName: p.certificates.name,
		Clients: p.certificates.bundles[desired.ClientDomain], Keys: p.certificates.keys,
	}
	if len(c.Trusted) == 0 {
		c.Trusted = p.certificates.roots()
	}
	return c
}

// ensureCompanion creates or updates the objects of a companion. The Deployment is created once an API server is ready,
// because companions exit without one.
func (r *Reconciler) ensureCompanion(
	ctx context.Context, p *pass, companion desired.Companion,
) (status v1alpha1.CompanionStatus, err error) {
	credentials := p.companionCredentials()
	files, err := desired.CompanionFiles(p.cluster, companion, credentials)
	if err != nil {
		return status, err
	}
	if err := r.ensureSecret(ctx, p.cluster, files); err != nil {
		return status, err
	}
	if companion.Name == desired.ControllerManager && p.state.ReadyAddress() != "" {
		if err := r.ensureNodes(ctx, p); err != nil {
			return status, fmt.Errorf("publishing the objects that nodes need to join: %w", err)
		}
	}
	deployment, err := r.ensureCompanionDeployment(ctx, p, desired.CompanionDeployment(p.cluster, companion, credentials))
	if err != nil {
		return status, err
	}
	status = companionStatusOf(companion.Name, companion.Spec.ReplicaCount(p.cluster), deployment)
	if deployment == nil || status.Message == "" {
		return status, nil
	}
	problem, err := r.companionProblem(ctx, p, companion.Name)
	if problem != "" {
		status.Message += ": " + problem
	}
	return status, err
}

// companionProblem returns why a pod of a companion cannot run, or "". The pods are not watched: while the companion is not
// available, they are read again after companionInterval.
func (r *Reconciler) companionProblem(ctx context.Context, p *pass, name string) (string, error) {
	c := meta.FindStatusCondition(p.cluster.Status.Conditions, v1alpha1.CompanionsAvailable)
	if c == nil || p.input.Now.Sub(c.LastTransitionTime.Time) < companionPeriod {
		p.requeueAt(p.input.Now.Add(companionInterval))
	}
	var pods corev1.PodList
	err := r.Reader.List(ctx, &pods, client.InNamespace(p.cluster.Namespace),
		client.MatchingLabels(desired.CompanionSelector(p.cluster, name)))
	if err != nil {
		return "", fmt.Errorf("listing the pods of %s: %w", name, err)
	}
	slices.SortFunc(pods.Items, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	for i := range pods.Items {
		if problem := observed.Problem(&pods.Items[i]); problem != "" {
			return problem, nil
		}
	}
	return "", nil
}

// ensureCompanionDeployment returns nil if the Deployment is not created yet. It updates the pods only if their inputs
// have changed.
func (r *Reconciler) ensureCompanionDeployment(
	ctx context.Context, p *pass, wanted *appsv1.Deployment,
) (*appsv1.Deployment, error) {
	current := &appsv1.Deployment{}
	found, err := r.find(ctx, p.cluster, wanted.Name, current)
	switch {
	case err != nil:
		return nil, err
	case !found && p.state.ReadyAddress() == "":
		return nil, nil
	case !found:
		if err := r.create(ctx, p.cluster, wanted); err != nil {
			return nil, err
		}
		r.event(p.cluster, event{
			related: deploymentReference(wanted), reason: v1alpha1.ReasonSuccessfulCreate, action: "Create", message: "Created Deployment " + wanted.Name,
		})
		return wanted, nil
	}
	after := current.DeepCopy()
	setLabels(after, wanted)
	after.Spec.Replicas = wanted.Spec.Replicas
	hash := wanted.Annotations[desired.CompanionHashAnnotation]
	changed := current.Annotations[desired.CompanionHashAnnotation] != hash
	if changed {
		metav1.SetMetaDataAnnotation(&after.ObjectMeta, desired.CompanionHashAnnotation, hash)
		after.Spec.Template, after.Spec.Strategy = wanted.Spec.Template, wanted.Spec.Strategy
	}
	if err := r.update(ctx, current, after); err != nil {
		return nil, err
	}
	if changed {
		r.event(p.cluster, event{
			related: deploymentReference(wanted), reason: v1alpha1.ReasonSuccessfulUpdate, action: "Update",
			message: "Updated the pods of Deployment " + wanted.Name,
		})
	}
	return after, nil
}

func deploymentReference(deployment *appsv1.Deployment) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: "apps/v1", Kind: "Deployment", Namespace: deployment.Namespace, Name: deployment.Name,
	}
}

// companionStatusOf returns the status of a companion. deployment is nil if the Deployment does not exist yet.
func companionStatusOf(name string, replicas int32, deployment *appsv1.Deployment) v1alpha1.CompanionStatus {
	status := v1alpha1.CompanionStatus{Name: name, Replicas: replicas}
	if deployment == nil {
		status.Message = "it is created once an API server is ready"
		return status
	}
	if deployment.Status.ObservedGeneration >= deployment.Generation {
		status.AvailableReplicas = min(deployment.Status.AvailableReplicas, deployment.Status.UpdatedReplicas)
	}
	if rolledOut(deployment) {
		return status
	}
	status.Message = fmt.Sprintf("%d of %d pods are available", status.AvailableReplicas, replicas)
	for _, c := range deployment.Status.Conditions {
		if c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue {
			status.Message += ": " + c.Message
		}
	}
	return status
}

// rolledOut reports whether all pods of a Deployment run its present template and are available.
func rolledOut(deployment *appsv1.Deployment) bool {
	s, replicas := deployment.Status, ptr.Deref(deployment.Spec.Replicas, 1)
	return s.ObservedGeneration >= deployment.Generation &&
		s.Replicas == replicas && s.UpdatedReplicas == replicas && s.AvailableReplicas == replicas
}

// outdatedCompanions returns the Deployments of companions that still have pods with former credentials.
func (r *Reconciler) outdatedCompanions(ctx context.Context, p *pass) ([]string, error) {
	var outdated []string
	for _, companion := range desired.Companions(p.cluster) {
		if companion.Spec == nil {
			continue
		}
		wanted := desired.CompanionDeployment(p.cluster, companion, p.companionCredentials())
		current := &appsv1.Deployment{}
		err := r.Reader.Get(ctx, client.ObjectKeyFromObject(wanted), current)
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("reading Deployment %s: %w", wanted.Name, err)
		}
		hash := desired.CompanionHashAnnotation
		if err == nil && (current.Annotations[hash] != wanted.Annotations[hash] || !rolledOut(current)) {
			outdated = append(outdated, wanted.Name)
		}
	}
	return outdated, nil
}

// removeCompanion deletes the objects of a companion. It reports whether all are gone.
func (r *Reconciler) removeCompanion(ctx context.Context, p *pass, name string) (removed bool, err error) {
	secrets := []string{name, name + "-files"}
	if name == desired.ControllerManager {
		if removed, err := r.removeNodes(ctx, p); err != nil || !removed {
			return false, err
		}
		if p.mounted(desired.SecretName(p.cluster, desired.KubeletClientSecret)) {
			return false, nil
		}
		secrets = append(secrets, desired.KubeletClientSecret)
	}
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: desired.CompanionName(p.cluster, name)}}
	found, err := r.removeObject(ctx, p.cluster, deployment)
	if err != nil {
		return false, err
	}
	if found {
		r.event(p.cluster, event{reason: v1alpha1.ReasonSuccessfulDelete, action: "Delete", message: "Deleted Deployment " + deployment.Name})
	}
	for _, suffix := range secrets {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: desired.SecretName(p.cluster, suffix)}}
		if _, err := r.removeObject(ctx, p.cluster, secret); err != nil {
			return false, err
		}
	}
	return true, nil
}

// mounted reports whether a pod of an API server mounts a Secret.
func (p *pass) mounted(secret string) bool {
	for i := range p.state.Pods {
		for _, volume := range p.state.Pods[i].Spec.Volumes {
			if volume.Projected != nil && slices.ContainsFunc(volume.Projected.Sources, func(s corev1.VolumeProjection) bool {
				return s.Secret != nil && s.Secret.Name == secret
			}) {
				return true
			}
		}
	}
	return false
}

// removeObject deletes an object that the cluster owns. It reports whether the object existed.
func (r *Reconciler) removeObject(ctx context.Context, cluster *v1alpha1.ApiServerCluster, object client.Object) (bool, error) {
	found, err := r.find(ctx, cluster, object.GetName(), object)
	if errors.Is(err, errForeign) {
		return false, nil
	}
	if err != nil || !found {
		return false, err
	}
	err = r.Client.Delete(ctx, object, client.PropagationPolicy(metav1.DeletePropagationBackground))
	if client.IgnoreNotFound(err) != nil {
		return true, fmt.Errorf("deleting %s: %w", object.GetName(), err)
	}
	return true, nil
}

// ensureNodes publishes the objects inside the cluster that nodes need to join.
func (r *Reconciler) ensureNodes(ctx context.Context, p *pass) error {
	hosted, err := r.Connect(p.hosted())
	if err != nil {
		return err
	}
	g := registrar{Reconciler: r, pass: p, api: hosted, selector: desired.NodesSelector(p.cluster)}
	var errs []error
	for _, wanted := range desired.NodeBindings(p.cluster) {
		current := &rbacv1.ClusterRoleBinding{}
		_, err := g.ensure(ctx, wanted, current, func() { current.Subjects = wanted.Subjects })
		errs = append(errs, err)
	}
	info, err := desired.ClusterInfo(p.cluster, p.input.Endpoint, p.certificates.trusted)
	if err != nil {
		return err
	}
	currentInfo := &corev1.ConfigMap{}
	_, err = g.ensure(ctx, info, currentInfo, func() {
		if currentInfo.Data == nil {
			currentInfo.Data = map[string]string{}
		}
		currentInfo.Data[desired.KubeconfigKey] = info.Data[desired.KubeconfigKey] // keep the signatures
	})
	errs = append(errs, err)
	role, binding := desired.ClusterInfoAccess(p.cluster)
	currentRole, currentBinding := &rbacv1.Role{}, &rbacv1.RoleBinding{}
	_, err = g.ensure(ctx, role, currentRole, func() { currentRole.Rules = role.Rules })
	errs = append(errs, err)
	_, err = g.ensure(ctx, binding, currentBinding, func() { currentBinding.Subjects = binding.Subjects })
	return errors.Join(append(errs, err, g.ensureKubernetesSlices(ctx))...)
}

// ensureKubernetesSlices maintains the endpoints of the Service default/kubernetes.
func (g *registrar) ensureKubernetesSlices(ctx context.Context) error {
	keep := map[client.ObjectKey]bool{}
	for _, slice := range desired.KubernetesSlices(g.pass.cluster, g.pass.service) {
		keep[client.ObjectKeyFromObject(slice)] = true
		if err := g.ensureSlice(ctx, slice); err != nil {
			return err
		}
	}
	return g.prune(ctx, keep, &discoveryv1.EndpointSliceList{})
}

// removeNodes deletes the objects inside the cluster that nodes need to join. It returns false while no API server is
// ready.
func (r *Reconciler) removeNodes(ctx context.Context, p *pass) (bool, error) {
	if p.state.ReadyAddress() == "" {
		return false, nil
	}
	hosted, err := r.Connect(p.hosted())
	if err != nil {
		return false, err
	}
	g := registrar{Reconciler: r, pass: p, api: hosted, selector: desired.NodesSelector(p.cluster)}
	err = g.prune(ctx, nil, &rbacv1.ClusterRoleBindingList{}, &rbacv1.RoleBindingList{}, &rbacv1.RoleList{}, &corev1.ConfigMapList{},
		&discoveryv1.EndpointSliceList{})
	return err == nil, err
}
