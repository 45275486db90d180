package companions

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/observed"
	"quorate.dev/operator/reconcile/credentials"
	"quorate.dev/operator/reconcile/owned"
)

// companionInterval is the requeue interval while a companion is unavailable, for at most companionPeriod, which is
// long enough to see a container fail repeatedly.
const (
	companionInterval = 10 * time.Second
	companionPeriod   = 5 * time.Minute
)

// Steps maintains companions.
type Steps struct {
	Objects owned.Objects
	// Connect returns a client for the API servers of a cluster.
	Connect func(*rest.Config) (client.Client, error)
}

// Input is what Ensure depends on.
type Input struct {
	State       *observed.State
	Credentials credentials.Set
	Service     *corev1.Service // the Service for clients
	Endpoint    string          // URL for clients
	Now         time.Time
}

// Result is the result of Ensure.
type Result struct {
	Statuses *[]v1alpha1.CompanionStatus
	// Announced reports that companions are missing in the stored status, which lists a companion before it is created.
	// The next reconciliation creates them.
	Announced bool
	Due       time.Time // when the pods of companions are due for another look; zero: they need none
}

// Ensure creates and updates the Deployments of companions, and deletes those that are no longer in the spec. The
// status lists a companion before its objects are created, so that they are deleted later even if the operator crashes
// in between. The result is also valid if Ensure returns an error.
func (s Steps) Ensure(ctx context.Context, in Input) (Result, error) {
	cluster := in.State.Cluster
	if announced := announce(cluster); announced != nil {
		return Result{Statuses: announced, Announced: true}, nil
	}
	statuses := []v1alpha1.CompanionStatus{}
	result := Result{Statuses: &statuses}
	var errs []error
	for _, companion := range desired.Companions(cluster) {
		old := companionStatus(cluster, companion.Name)
		if old == nil {
			continue
		}
		if companion.Spec == nil {
			removed, err := s.remove(ctx, in, companion.Name)
			if errs = append(errs, err); !removed {
				statuses = append(statuses, v1alpha1.CompanionStatus{Name: companion.Name, Message: "it is being removed"})
			}
			continue
		}
		current, due, err := s.ensureCompanion(ctx, in, companion)
		if errs = append(errs, err); err != nil {
			current = *old
			current.Message = err.Error()
		}
		if !due.IsZero() {
			result.Due = due
		}
		statuses = append(statuses, current)
	}
	return result, errors.Join(errs...)
}

// companionStatus returns the status of the companion with a name, or nil.
func companionStatus(cluster *v1alpha1.ApiServerCluster, name string) *v1alpha1.CompanionStatus {
	for i := range cluster.Status.Companions {
		if cluster.Status.Companions[i].Name == name {
			return &cluster.Status.Companions[i]
		}
	}
	return nil
}

// announce returns the status with companions that are not created yet, or nil if the status lists all of them. The
// caller creates nothing in this reconciliation: the list must first be stored.
func announce(cluster *v1alpha1.ApiServerCluster) *[]v1alpha1.CompanionStatus {
	statuses := slices.Clone(cluster.Status.Companions)
	for _, companion := range desired.Companions(cluster) {
		if companion.Spec != nil && companionStatus(cluster, companion.Name) == nil {
			statuses = append(statuses, v1alpha1.CompanionStatus{
				Name: companion.Name, Replicas: companion.Spec.ReplicaCount(cluster), Message: "it is not created yet",
			})
		}
	}
	if len(statuses) == len(cluster.Status.Companions) {
		return nil
	}
	slices.SortFunc(statuses, func(a, b v1alpha1.CompanionStatus) int { return strings.Compare(a.Name, b.Name) })
	return &statuses
}

// ensureCompanion creates or updates the objects of a companion and returns its status, and when it is due for another
// look. The Deployment is created once an API server is ready, because companions exit if they cannot reach one. Its
// Secret precedes it, because the pods mount it. The objects for nodes belong to the controller manager, which approves
// and signs the certificates of kubelets.
func (s Steps) ensureCompanion(
	ctx context.Context, in Input, companion desired.Companion,
) (status v1alpha1.CompanionStatus, due time.Time, err error) {
	cluster, needed := in.State.Cluster, in.Credentials.Companions()
	files, err := desired.CompanionFiles(cluster, companion, needed)
	if err != nil {
		return status, due, err
	}
	if err := s.Objects.EnsureSecret(ctx, cluster, files); err != nil {
		return status, due, err
	}
	if companion.Name == desired.ControllerManager && in.State.ReadyAddress() != "" {
		if err := s.ensureNodes(ctx, in); err != nil {
			return status, due, fmt.Errorf("publish the objects that nodes need to join: %w", err)
		}
	}
	deployment, err := s.ensureDeployment(ctx, in, desired.CompanionDeployment(cluster, companion, needed))
	if err != nil {
		return status, due, err
	}
	status = companionStatusOf(companion.Name, companion.Spec.ReplicaCount(cluster), deployment)
	if deployment == nil || status.Message == "" {
		return status, due, nil
	}
	problem, err := s.problem(ctx, cluster, companion.Name)
	if problem != "" {
		status.Message += ": " + problem
	}
	return status, nextLook(cluster, in.Now), err
}

// nextLook returns when the pods of an unavailable companion are read again, or zero after companionPeriod. These pods
// are not watched.
func nextLook(cluster *v1alpha1.ApiServerCluster, now time.Time) time.Time {
	c := meta.FindStatusCondition(cluster.Status.Conditions, v1alpha1.CompanionsAvailable)
	if c == nil || now.Sub(c.LastTransitionTime.Time) < companionPeriod {
		return now.Add(companionInterval)
	}
	return time.Time{}
}

// problem returns why a pod of a companion cannot run, or "".
func (s Steps) problem(ctx context.Context, cluster *v1alpha1.ApiServerCluster, name string) (string, error) {
	var pods corev1.PodList
	err := s.Objects.Reader.List(ctx, &pods, client.InNamespace(cluster.Namespace),
		client.MatchingLabels(desired.CompanionSelector(cluster, name)))
	if err != nil {
		return "", fmt.Errorf("list the pods of %s: %w", name, err)
	}
	slices.SortFunc(pods.Items, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	for i := range pods.Items {
		if problem := observed.Problem(&pods.Items[i]); problem != "" {
			return problem, nil
		}
	}
	return "", nil
}

// ensureDeployment creates or updates the Deployment of a companion and returns it, or nil if it cannot be created yet.
// The pod template is replaced only if the hash of its inputs has changed, so that defaulted fields cause no rollout.
// The number of replicas and the labels are always restored. An existing Deployment is updated also while no API server
// is ready, because the update may be what repairs it.
func (s Steps) ensureDeployment(
	ctx context.Context, in Input, wanted *appsv1.Deployment,
) (*appsv1.Deployment, error) {
	cluster := in.State.Cluster
	current := &appsv1.Deployment{}
	found, err := s.Objects.Find(ctx, cluster, wanted.Name, current)
	switch {
	case err != nil:
		return nil, err
	case !found && in.State.ReadyAddress() == "":
		return nil, nil
	case !found:
		if err := s.Objects.Create(ctx, cluster, wanted); err != nil {
			return nil, err
		}
		s.Objects.Event(cluster, owned.Event{
			Related: deploymentReference(wanted), Reason: v1alpha1.ReasonSuccessfulCreate, Action: "Create",
			Message: "Created Deployment " + wanted.Name,
		})
		return wanted, nil
	}
	after := current.DeepCopy()
	owned.SetLabels(after, wanted)
	after.Spec.Replicas = wanted.Spec.Replicas
	hash := wanted.Annotations[desired.CompanionHashAnnotation]
	changed := current.Annotations[desired.CompanionHashAnnotation] != hash
	if changed {
		metav1.SetMetaDataAnnotation(&after.ObjectMeta, desired.CompanionHashAnnotation, hash)
		after.Spec.Template, after.Spec.Strategy = wanted.Spec.Template, wanted.Spec.Strategy
	}
	if err := s.Objects.Update(ctx, current, after); err != nil {
		return nil, err
	}
	if changed {
		s.Objects.Event(cluster, owned.Event{
			Related: deploymentReference(wanted), Reason: v1alpha1.ReasonSuccessfulUpdate, Action: "Update",
			Message: "Updated the pods of Deployment " + wanted.Name,
		})
	}
	return after, nil
}

func deploymentReference(deployment *appsv1.Deployment) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: "apps/v1", Kind: "Deployment", Namespace: deployment.Namespace, Name: deployment.Name,
	}
}

// companionStatusOf returns the status of a companion with the desired number of replicas. deployment is nil if it does
// not exist yet. Replicas of a former template do not count as available, and while the Deployment controller has not
// observed the present generation, nothing does.
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

// rolledOut reports whether all pods of a Deployment were created from its present template and are available.
func rolledOut(deployment *appsv1.Deployment) bool {
	s, replicas := deployment.Status, ptr.Deref(deployment.Spec.Replicas, 1)
	return s.ObservedGeneration >= deployment.Generation &&
		s.Replicas == replicas && s.UpdatedReplicas == replicas && s.AvailableReplicas == replicas
}

// Outdated returns the names of the Deployments that have pods with credentials of an earlier stage. A rotation waits
// until they are rolled out: a companion reads some credentials only when it starts. A Deployment that does not exist
// has no pods.
func Outdated(
	ctx context.Context, reader client.Reader, cluster *v1alpha1.ApiServerCluster, needed desired.CompanionCredentials,
) ([]string, error) {
	var outdated []string
	for _, companion := range desired.Companions(cluster) {
		if companion.Spec == nil {
			continue
		}
		wanted := desired.CompanionDeployment(cluster, companion, needed)
		current := &appsv1.Deployment{}
		err := reader.Get(ctx, client.ObjectKeyFromObject(wanted), current)
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("read Deployment %s: %w", wanted.Name, err)
		}
		hash := desired.CompanionHashAnnotation
		if err == nil && (current.Annotations[hash] != wanted.Annotations[hash] || !rolledOut(current)) {
			outdated = append(outdated, wanted.Name)
		}
	}
	return outdated, nil
}

// remove deletes the objects of a companion, and reports whether all of them are deleted. The objects with which nodes
// join need a ready API server, and the client certificate for kubelets stays until no API server mounts it: a replica
// that mounts a missing Secret could not restart. Until then, the Deployment of the controller manager stays as well,
// and the status lists it.
func (s Steps) remove(ctx context.Context, in Input, name string) (removed bool, err error) {
	cluster := in.State.Cluster
	secrets := []string{name, name + "-files"}
	if name == desired.ControllerManager {
		if removed, err := s.removeNodes(ctx, in); err != nil || !removed {
			return false, err
		}
		if mounted(in.State, desired.SecretName(cluster, desired.KubeletClientSecret)) {
			return false, nil
		}
		secrets = append(secrets, desired.KubeletClientSecret)
	}
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: desired.CompanionName(cluster, name)}}
	found, err := s.Objects.Remove(ctx, cluster, deployment)
	if err != nil {
		return false, err
	}
	if found {
		s.Objects.Event(cluster, owned.Event{
			Reason: v1alpha1.ReasonSuccessfulDelete, Action: "Delete", Message: "Deleted Deployment " + deployment.Name,
		})
	}
	for _, suffix := range secrets {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: desired.SecretName(cluster, suffix)}}
		if _, err := s.Objects.Remove(ctx, cluster, secret); err != nil {
			return false, err
		}
	}
	return true, nil
}

// mounted reports whether a pod of an API server mounts a Secret as part of a projected volume.
func mounted(state *observed.State, secret string) bool {
	for i := range state.Pods {
		for _, volume := range state.Pods[i].Spec.Volumes {
			if volume.Projected != nil && slices.ContainsFunc(volume.Projected.Sources, func(s corev1.VolumeProjection) bool {
				return s.Secret != nil && s.Secret.Name == secret
			}) {
				return true
			}
		}
	}
	return false
}
