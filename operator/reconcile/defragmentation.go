package reconcile

import (
	"context"
	"fmt"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/etcd"
	"quorate.dev/operator/membership"
)

// After a failed defragmentation, the next one waits for defragmentRetry, and twice as long after each further failure.
const (
	defragmentRetry    = time.Minute
	maxDefragmentRetry = time.Hour
)

// defragmentation returns the part of the observation that decides on defragmentations.
func (r *Reconciler) defragmentation(p *pass) membership.Defragmentation {
	d := membership.Defragmentation{Now: p.input.Now, Held: p.holdDefragmentation()}
	d.Enabled, d.FreePercent, d.MinFree, d.Interval = p.cluster.DefragmentationLimits()
	if recorded := p.cluster.Status.Defragmentation; recorded != nil {
		d.Member, d.Failures = recorded.Member, int(recorded.Failures)
		if recorded.Failures > 0 && recorded.LastFailureTime != nil {
			d.RetryAfter = recorded.LastFailureTime.Add(defragmentBackoff(recorded.Failures))
		}
	}
	if started := r.Etcd.Defragmentation(client.ObjectKeyFromObject(p.cluster).String()); started != nil && started.Member == d.Member {
		d.Running, d.Finished = !started.Finished, started.Finished
		if started.Err != nil {
			d.Failure = started.Err.Error()
		}
	}
	return d
}

func defragmentBackoff(failures int32) time.Duration {
	backoff := defragmentRetry
	for n := int32(1); n < failures && backoff < maxDefragmentRetry; n++ {
		backoff *= 2
	}
	return min(backoff, maxDefragmentRetry)
}

// holdDefragmentation returns why routine defragmentations wait, or "".
func (p *pass) holdDefragmentation() string {
	switch {
	case p.input.Held != "":
		return p.input.Held
	case p.rotating || len(p.input.Rotations) > 0 || p.encryption.Changing():
		return "Waiting for the replacement of credentials"
	}
	return ""
}

// writeDefragmentation records the start or the end of a defragmentation in the status, and requests it. It fails with a
// conflict if the cluster was updated since it was read, so that an outdated operator does not defragment another member.
func (r *Reconciler) writeDefragmentation(ctx context.Context, p *pass, a membership.Action) error {
	before := p.cluster.DeepCopy()
	if p.cluster.Status.Defragmentation == nil {
		p.cluster.Status.Defragmentation = &v1alpha1.DefragmentationStatus{}
	}
	d, now := p.cluster.Status.Defragmentation, &metav1.Time{Time: p.input.Now}
	switch {
	case a.Kind != membership.FinishDefragmentation:
		d.Member, d.StartTime = a.Name, now
	case a.Reason != "":
		*d = v1alpha1.DefragmentationStatus{Failures: d.Failures + 1, LastFailureTime: now, Message: a.Reason}
	default:
		p.cluster.Status.Defragmentation = nil
		for i := range p.cluster.Status.Members {
			if m := &p.cluster.Status.Members[i]; m.Name == a.Name {
				m.LastDefragmentTime = now
			}
		}
	}
	key := client.ObjectKeyFromObject(p.cluster)
	if a.Kind == membership.StartDefragmentation {
		// If the response to the patch is lost, an earlier result for the same member would count for this one.
		r.Etcd.ForgetDefragmentation(key.String())
	}
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := r.Client.Status().Patch(ctx, p.cluster, patch); err != nil {
		return fmt.Errorf("recording the defragmentation: %w", err)
	}
	if a.Kind == membership.FinishDefragmentation {
		r.Etcd.ForgetDefragmentation(key.String())
		r.Metrics.defragmented(key, a.Reason == "")
		return nil
	}
	for _, endpoint := range p.state.Endpoints() {
		if endpoint.Name == a.Name {
			r.Etcd.Defragment(key.String(), endpoint, a.ID, strconv.Itoa(desired.ClientPort), p.etcdCredentials())
		}
	}
	return nil
}

// etcdCredentials returns the operator's credentials for the client ports of the members.
func (p *pass) etcdCredentials() etcd.Credentials {
	leaf := p.certificates.leaves[desired.OperatorEtcdSecret]
	return etcd.Credentials{
		Authority:   p.certificates.bundles[desired.EtcdClientDomain].Trusted(),
		Certificate: leaf.Certificate, Key: leaf.Key, ServerName: desired.MembersDomain(p.cluster),
	}
}
