package stages

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/reconcile/owned"
	"quorate.dev/operator/rotation"
	"quorate.dev/operator/status"
)

// Kind is a kind of credentials that are rotated together: its field in the status and its events.
type Kind struct {
	Name   string
	field  func(*v1alpha1.Rotations) **v1alpha1.Rotation
	events map[rotation.Stage][2]string // reason and message of the event for entering a stage
}

// Authorities are the certificate authorities, which are replaced together.
var Authorities = Kind{
	Name:  "certificate authorities",
	field: func(r *v1alpha1.Rotations) **v1alpha1.Rotation { return &r.Authorities },
	events: map[rotation.Stage][2]string{
		rotation.TrustBoth: {
			v1alpha1.ReasonTrustingNewAuthorities, "Created new certificate authorities; trusting both the new and the old ones",
		},
		rotation.Reissue: {
			v1alpha1.ReasonReissuingCertificates, "Reissuing all certificates with the new certificate authorities",
		},
		rotation.DropOld: {v1alpha1.ReasonDroppingOldAuthorities, "Removing trust in the old certificate authorities"},
		rotation.None:    {v1alpha1.ReasonAuthoritiesRotated, "Replaced the certificate authorities"},
	},
}

// ServiceAccountKeys are the keys that sign the tokens of service accounts.
var ServiceAccountKeys = Kind{
	Name:  "service-account keys",
	field: func(r *v1alpha1.Rotations) **v1alpha1.Rotation { return &r.ServiceAccountKeys },
	events: map[rotation.Stage][2]string{
		rotation.TrustBoth: {
			v1alpha1.ReasonTrustingNewServiceAccountKey,
			"Created a new service-account key; accepting tokens of both the new and the old one",
		},
		rotation.Reissue: {v1alpha1.ReasonSigningWithNewServiceAccountKey, "Signing service-account tokens with the new key"},
		rotation.DropOld: {
			v1alpha1.ReasonDroppingOldServiceAccountKey, "Removing the old service-account key; its tokens become invalid",
		},
		rotation.None: {v1alpha1.ReasonServiceAccountKeyRotated, "Replaced the service-account key"},
	},
}

// Encryption is the encryption at rest: its keys, its provider and the encrypted resources.
var Encryption = Kind{
	Name:  "encryption keys",
	field: func(r *v1alpha1.Rotations) **v1alpha1.Rotation { return &r.EncryptionKeys },
	events: map[rotation.Stage][2]string{
		rotation.TrustBoth: {
			v1alpha1.ReasonTrustingNewEncryptionKey,
			"Preparing API servers to read objects written with the new encryption configuration",
		},
		rotation.Reissue: {
			v1alpha1.ReasonEncryptingWithNewKey, "Encrypting with the new configuration and rewriting stored objects",
		},
		rotation.DropOld: {v1alpha1.ReasonDroppingOldEncryptionKey, "Removing the old encryption configuration"},
		rotation.None:    {v1alpha1.ReasonEncryptionKeyRotated, "Replaced the encryption configuration"},
	},
}

// Current returns the state of the rotation in the status of a cluster, or nil if there is none.
func (k Kind) Current(cluster *v1alpha1.ApiServerCluster) *v1alpha1.Rotation {
	if cluster.Status.Rotations == nil {
		return nil
	}
	return *k.field(cluster.Status.Rotations)
}

// Stage returns the stage of the rotation in the status of a cluster, and the time at which it was entered.
func (k Kind) Stage(cluster *v1alpha1.ApiServerCluster) (rotation.Stage, time.Time) {
	r := k.Current(cluster)
	if r == nil {
		return rotation.None, time.Time{}
	}
	return rotation.Stage(r.Stage), r.StageSince.Time
}

// Enter writes a stage to the status and records an event. It fails with a conflict if the cluster was updated since it
// was read, so that two operators never enter different stages. Entering a stage resets the progress of the rewriting,
// which belongs to the former stage. Stage None removes the field: the rotation is finished.
func Enter(
	ctx context.Context, objects owned.Objects, cluster *v1alpha1.ApiServerCluster, kind Kind,
	d rotation.Decision, at time.Time,
) error {
	before := cluster.DeepCopy()
	rotations := &v1alpha1.Rotations{}
	if cluster.Status.Rotations != nil {
		rotations = cluster.Status.Rotations
	}
	now := metav1.NewTime(at)
	switch field := kind.field(rotations); {
	case d.Next == rotation.None:
		*field = nil
	case *field == nil:
		*field = &v1alpha1.Rotation{Stage: string(d.Next), StageSince: now, StartedAt: now}
	default:
		(*field).Stage, (*field).StageSince, (*field).Rewrite = string(d.Next), now, nil
	}
	cluster.Status.Rotations = rotations
	if *rotations == (v1alpha1.Rotations{}) {
		cluster.Status.Rotations = nil
	}
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := objects.Client.Status().Patch(ctx, cluster, patch); err != nil {
		return fmt.Errorf("enter stage %q: %w", d.Next, err)
	}
	text := kind.events[d.Next]
	ctrl.LoggerFrom(ctx).Info("Entered stage of a rotation", "rotated", kind.Name, "stage", d.Next, "reason", d.Reason)
	objects.Event(cluster, owned.Event{Reason: text[0], Action: "Rotate", Message: text[1] + ": " + d.Reason})
	return nil
}

// Result has the decisions of a step about rotations. It is also valid if the step returns an error.
type Result struct {
	Entered   bool              // a stage was entered, which the next reconciliation acts on
	Restart   []string          // pods that have to restart to use new credentials
	Rotations []status.Rotation // rotations in progress
	Waiting   bool              // a rotation waits for a replica, a kubeconfig or a companion
	Due       []time.Time       // when something becomes due
}

// Apply enters the stage of a decision if it differs from the observed one, and adds the decision to the result. A
// decision without an end (Until) waits for something that the operator can only observe again, such as the credentials
// of a replica, so that Waiting requests frequent reconciliations.
func (r *Result) Apply(
	ctx context.Context, objects owned.Objects, cluster *v1alpha1.ApiServerCluster, kind Kind,
	o rotation.Observation, d rotation.Decision,
) error {
	if d.Changed(o) {
		if err := Enter(ctx, objects, cluster, kind, d, o.Now); err != nil {
			return err
		}
		r.Entered = true
	}
	r.Restart = append(r.Restart, d.Restart...)
	if d.Next == rotation.None {
		return nil
	}
	r.Rotations = append(r.Rotations, status.Rotation{Name: kind.Name, Stage: string(d.Next), Message: d.Waiting})
	r.Due = append(r.Due, d.Until)
	r.Waiting = r.Waiting || d.Until.IsZero()
	return nil
}

// Due returns why a credential that was created at a time has to be replaced now, or "", and the times at which it
// becomes due. renewal is when it is due by its age, or zero; request is when the user has requested it, or nil.
func Due(created, renewal time.Time, request *metav1.Time, now time.Time) (reason string, due []time.Time) {
	if request == nil {
		return rotation.Due(created, renewal, nil, now), []time.Time{renewal}
	}
	return rotation.Due(created, renewal, &request.Time, now), []time.Time{renewal, request.Time}
}
