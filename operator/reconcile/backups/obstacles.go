package backups

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/apiserver/backup/format"
	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/backup"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/observed"
)

// unexplainedPeriod is the time after which a pod that has not started is reported even without a reason from the
// kubelet, which does not report missing volumes in the status of the pod.
const unexplainedPeriod = time.Minute

// missing returns the reason and the message of the first object that the backup's pod needs and that does not exist or
// cannot be used, or "". Without the check, the pod would wait for the object with no reason in its status.
func (r *Reconciler) missing(
	ctx context.Context, b *v1alpha1.ApiServerBackup, secrets []desired.SecretKeys,
) (reason, message string, err error) {
	if volume := b.Spec.Destination.Volume; volume != nil {
		err := r.Reader.Get(ctx, client.ObjectKey{Namespace: b.Namespace, Name: volume.ClaimName},
			&corev1.PersistentVolumeClaim{})
		if apierrors.IsNotFound(err) {
			return v1alpha1.ReasonObjectMissing, fmt.Sprintf("PersistentVolumeClaim %s does not exist", volume.ClaimName), nil
		}
		if err != nil {
			return "", "", fmt.Errorf("read the destination: %w", err)
		}
	}
	return Unusable(ctx, r.Reader, b.Namespace, secrets)
}

// Unusable returns the reason and the message of the first Secret that does not exist, lacks a key or has an invalid
// value, or "".
func Unusable(
	ctx context.Context, reader client.Reader, namespace string, secrets []desired.SecretKeys,
) (reason, message string, err error) {
	for _, reference := range secrets {
		secret := &corev1.Secret{}
		err := reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: reference.Name}, secret)
		if apierrors.IsNotFound(err) {
			return v1alpha1.ReasonObjectMissing, fmt.Sprintf("Secret %s does not exist", reference.Name), nil
		}
		if err != nil {
			return "", "", fmt.Errorf("read Secret %s: %w", reference.Name, err)
		}
		for _, key := range reference.Keys {
			if len(secret.Data[key]) == 0 {
				return v1alpha1.ReasonObjectInvalid, fmt.Sprintf("Secret %s has no key %s", reference.Name, key), nil
			}
			if err := check(key, secret.Data[key]); err != nil {
				return v1alpha1.ReasonObjectInvalid, fmt.Sprintf("Secret %s is invalid: %s", reference.Name, err), nil
			}
		}
	}
	return "", "", nil
}

// check returns why the value of a key cannot be used, or nil. It validates the recipients and identities of
// encryption.
func check(key string, value []byte) error {
	switch key {
	case desired.RecipientsKey:
		_, err := format.Encrypt(io.Discard, value)
		return err
	case desired.IdentitiesKey:
		return format.CheckIdentities(value)
	}
	return nil
}

// obstacle returns why a pod has not started, or "" if that is unknown. A pod that waits for longer than
// unexplainedPeriod is reported with the reasons of its waiting containers, if there are any.
func obstacle(pod *corev1.Pod, now time.Time) string {
	switch {
	case stateOf(pod) != backup.PodStarting:
		return ""
	case observed.Problem(pod) != "":
		return observed.Problem(pod)
	case now.Sub(pod.CreationTimestamp.Time) < unexplainedPeriod:
		return ""
	}
	reasons := []string{pod.Name + " has not started"}
	for _, c := range pod.Status.ContainerStatuses {
		if waiting := c.State.Waiting; waiting != nil {
			reasons = append(reasons, strings.TrimSpace(waiting.Reason+" "+waiting.Message))
		}
	}
	return strings.Join(reasons, ": ")
}
