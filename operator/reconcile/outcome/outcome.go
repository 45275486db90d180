package outcome

import (
	"context"
	"fmt"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/reconcile/metrics"
	"quorate.dev/operator/reconcile/owned"
	"quorate.dev/operator/reconcile/stages"
	"quorate.dev/operator/status"
)

// Outcome collects the results of the steps of one reconciliation: the input of the status, and the time of the next
// reconciliation. Steps do not read an Outcome.
type Outcome struct {
	Cluster      *v1alpha1.ApiServerCluster
	Input        status.Input // its State is the last one that was read; nil: none could be read
	IntentStored bool         // intent was stored, which the next reconciliation acts on
	Restored     bool         // a backup was just restored, whose keys the next reconciliation uses
	Rotating     bool         // a rotation waits for a replica, a kubeconfig or a companion
	Updated      *int         // number of pods that were created from the present spec; nil: unknown
	next         time.Time    // when the next thing becomes due; zero: nothing is known to
	stale        bool         // a step has failed because of a conflict or an outdated observation
}

// New returns the outcome of a reconciliation that begins now. deletion is why the deletion of the cluster waits, or
// nil if it was not requested. A final backup is not watched, so that New requests another reconciliation for it.
func New(cluster *v1alpha1.ApiServerCluster, deletion *status.Wait, now time.Time) *Outcome {
	o := &Outcome{Cluster: cluster, Input: status.Input{Now: now, Deletion: deletion}}
	if deletion != nil && deletion.Reason != v1alpha1.ReasonDeletionProtected {
		o.RequeueAt(now.Add(longWait))
	}
	return o
}

// MayChange reports whether steps may apply the spec: it is valid, no Secret is lost, and the cluster is not paused.
// Steps that only observe, and steps that protect data when the cluster is deleted, do not depend on it.
func (o *Outcome) MayChange() bool {
	return o.Input.Invalid == nil && o.Input.Lost == nil && !o.Cluster.Paused(o.Input.Now)
}

// Done records the error of a step, and reports whether there is none.
func (o *Outcome) Done(ctx context.Context, step string, err error) bool {
	if err != nil {
		o.Failed(ctx, fmt.Errorf("%s: %w", step, err))
	}
	return err == nil
}

// Failed records an error. If the cause is a conflict or an outdated observation, the reconciliation is repeated
// instead, and no error is reported.
func (o *Outcome) Failed(ctx context.Context, err error) {
	if !owned.Stale(err) {
		o.Input.Errors = append(o.Input.Errors, err)
		return
	}
	o.stale = true
	ctrl.LoggerFrom(ctx).V(1).Info("Retrying after a conflict", "reason", err.Error())
}

// Lost records that a Secret in use is missing. A nil error changes nothing.
func (o *Outcome) Lost(err error) {
	if err != nil {
		o.Input.Lost = err
	}
}

// AddRotations records decisions about rotations.
func (o *Outcome) AddRotations(result stages.Result) {
	o.Input.Rotations = append(o.Input.Rotations, result.Rotations...)
	o.IntentStored, o.Rotating = o.IntentStored || result.Entered, o.Rotating || result.Waiting
	o.RequeueAt(result.Due...)
}

// RequeueAt requests a reconciliation at the first of some times. It ignores the zero time and times in the past: this
// reconciliation has already handled them, or waits for something else.
func (o *Outcome) RequeueAt(times ...time.Time) {
	for _, at := range times {
		if !at.IsZero() && at.After(o.Input.Now) && (o.next.IsZero() || at.Before(o.next)) {
			o.next = at
		}
	}
}

// Metrics returns the input of the metrics of the cluster.
func (o *Outcome) Metrics() metrics.Reconciliation {
	m := metrics.Reconciliation{
		Cluster: o.Cluster, State: o.Input.State, Certificates: o.Input.Certificates, Updated: o.Updated,
	}
	if len(o.Input.Errors) > 0 {
		m.Failed = o.Input.Now
	}
	return m
}
