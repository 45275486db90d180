package node

import (
	"context"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// schedule binds all unscheduled Pods whose claims are bound to the node. As there is no other node, it ignores
// affinity, taints and resource requests.
func (a *Agent) schedule(ctx context.Context) error {
	pods, err := a.lister.pods.List(labels.Everything())
	if err != nil {
		return err
	}
	var failures []error
	for _, pod := range pods {
		if schedulable(pod) && a.claimsBound(pod) {
			failures = append(failures, a.bind(ctx, pod))
		}
	}
	return errors.Join(failures...)
}

func schedulable(pod *corev1.Pod) bool {
	return pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil && len(pod.Spec.SchedulingGates) == 0
}

// claimsBound reports whether all claims of a Pod are bound.
func (a *Agent) claimsBound(pod *corev1.Pod) bool {
	return !slices.ContainsFunc(pod.Spec.Volumes, func(volume corev1.Volume) bool {
		if volume.PersistentVolumeClaim == nil {
			return false
		}
		claim, err := a.lister.claims.PersistentVolumeClaims(pod.Namespace).Get(volume.PersistentVolumeClaim.ClaimName)
		return err != nil || claim.Status.Phase != corev1.ClaimBound
	})
}

func (a *Agent) bind(ctx context.Context, pod *corev1.Pod) error {
	binding := &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Target:     corev1.ObjectReference{Kind: "Node", Name: a.options.Name},
	}
	err := a.options.Client.CoreV1().Pods(pod.Namespace).Bind(ctx, binding, metav1.CreateOptions{})
	switch {
	case err == nil:
		a.recorder.Eventf(pod, corev1.EventTypeNormal, "Scheduled",
			"Successfully assigned %s/%s to %s", pod.Namespace, pod.Name, a.options.Name)
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return nil // deleted or already bound, which the informer will report
	}
	return err
}

// ownPods returns the Pods that are bound to the node.
func (a *Agent) ownPods() ([]*corev1.Pod, error) {
	pods, err := a.lister.pods.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	var result []*corev1.Pod
	for _, pod := range pods {
		if pod.Spec.NodeName == a.options.Name {
			result = append(result, pod)
		}
	}
	return result, nil
}
