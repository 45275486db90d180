package atrest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/encryption"
	"quorate.dev/operator/observed"
	"quorate.dev/operator/reconcile/credentials"
	"quorate.dev/operator/reconcile/owned"
	"quorate.dev/operator/reconcile/stages"
	"quorate.dev/operator/rewrite"
	"quorate.dev/operator/rotation"
	"quorate.dev/operator/status"
)

// rewriteTime bounds the time that one reconciliation spends on rewriting stored objects, so that it does not delay the
// repair of the cluster. The time is checked between pages.
const rewriteTime = 5 * time.Second

// Steps plans changes of the encryption and rewrites stored objects.
type Steps struct {
	Objects owned.Objects
	Clock   clock.Clock
}

// Input is what Plan depends on.
type Input struct {
	State         *observed.State
	Credentials   credentials.Set
	Encryption    encryption.State
	Configuration []byte // EncryptionConfiguration of the API servers
	Now           time.Time
}

// Result is the result of Plan.
type Result struct {
	stages.Result
	// Undecryptable are resources that were removed from spec.encryption without a confirmation; nil: not determined.
	Undecryptable *[]string
}

// Plan decides on the stage of a change of the encryption. Before it enters the last stage, it rewrites the stored
// objects, in as many reconciliations as that takes. The result is also valid if Plan returns an error.
//
// A new cluster changes its keys without stages, and a hibernated one has no replicas whose configuration could be
// observed: its stage is kept until it is scaled up. A state that has a next or previous scheme resumes its change even
// if the status has no stage.
func (s Steps) Plan(ctx context.Context, in Input) (result Result, err error) {
	cluster := in.State.Cluster
	if isNew(in.State) || !cluster.ExternalEtcd() && !cluster.Bootstrapped() || cluster.Hibernated() {
		return result, nil
	}
	_, undecryptable := wantedScheme(cluster, in.Encryption)
	result.Undecryptable = &undecryptable
	o := rotation.Observation{Now: in.Now}
	o.Due, result.Due = due(cluster, in.Encryption, in.Now)
	o.Stage, o.Since = stages.Encryption.Stage(cluster)
	if in.Encryption.Changing() {
		o.Due = "resuming a replacement that is not in the status"
	}
	if o.Stage == rotation.None && o.Due == "" {
		return result, nil
	}
	if err := in.observe(ctx, &o); err != nil {
		return result, err
	}
	d := rotation.Plan(o)
	if o.Stage == rotation.Reissue && d.Next == rotation.DropOld {
		waiting, err := s.rewrite(ctx, in)
		if err != nil || waiting != "" {
			result.Rotations = append(result.Rotations, status.Rotation{
				Name: stages.Encryption.Name, Stage: string(o.Stage), Message: waiting,
			})
			result.Waiting = true
			return result, err
		}
	}
	return result, result.Apply(ctx, s.Objects, cluster, stages.Encryption, o, d)
}

// observe adds the configuration that each replica uses to an observation. As long as a replica has no pod, the
// rotation waits, as for an unreachable replica. If the cluster no longer has a configuration, there is nothing to wait
// for: a replica that still has one restarts, because the spec of its pod differs.
func (in Input) observe(ctx context.Context, o *rotation.Observation) error {
	if o.Stage == rotation.None {
		return nil
	}
	probe, err := in.Credentials.Probe(in.State.Cluster)
	if err != nil {
		return err
	}
	want := observed.EncryptionHash(in.Configuration)
	for i, used := range in.State.Encryptions(ctx, probe) {
		pod := &in.State.Pods[i]
		replica := rotation.Replica{Name: pod.Name, Created: pod.CreationTimestamp.Time}
		switch {
		case used.Err != nil:
			replica.Unreachable = used.Err.Error()
		case want != "" && used.Hash != want:
			replica.Missing = []string{"encryption configuration"}
		}
		o.Replicas = append(o.Replicas, replica)
	}
	if len(o.Replicas) < in.State.Cluster.ReplicaCount() {
		o.Replicas = append(o.Replicas, rotation.Replica{Name: "all replicas", Unreachable: "some have no pod"})
	}
	return nil
}

// rewrite rewrites stored objects through a ready replica, for about rewriteTime, and stores its progress in the
// status. It returns the reason for which the stage waits, or "" once all objects are rewritten. The progress is also
// stored if a request has failed, so that an object that cannot be patched does not restart the rewriting of all
// others.
func (s Steps) rewrite(ctx context.Context, in Input) (waiting string, err error) {
	cluster := in.State.Cluster
	config := in.Credentials.Replica(in.State)
	if config == nil {
		return "Waiting for a ready replica to rewrite stored objects", nil
	}
	var at rewrite.Position
	if before := stages.Encryption.Current(cluster).Rewrite; before != nil {
		at = rewrite.Position{Resource: before.Resource, Continue: before.Continue, Objects: before.Objects}
	}
	rewriter := rewrite.Rewriter{Config: config, Patterns: in.Encryption.Affected()}
	at, done, err := rewriter.Run(ctx, at, s.Clock.Now().Add(rewriteTime), s.Clock.Now)
	before := cluster.DeepCopy()
	stages.Encryption.Current(cluster).Rewrite = &v1alpha1.Rewrite{
		Resource: at.Resource, Continue: at.Continue, Objects: at.Objects,
	}
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := errors.Join(err, s.Objects.Client.Status().Patch(ctx, cluster, patch)); err != nil || done {
		return "", err
	}
	return fmt.Sprintf("Rewriting stored objects: %d so far", at.Objects), nil
}
