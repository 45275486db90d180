package members

import (
	"context"
	"strconv"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/etcd"
	"quorate.dev/operator/observed"
	"quorate.dev/operator/reconcile/credentials"
	"quorate.dev/operator/reconcile/owned"
	"quorate.dev/operator/reconcile/volumes"
)

// Observation is the state of a cluster, with the time at which it was read and the client that has read the members.
type Observation struct {
	State   *observed.State
	At      time.Time    // when the pods and claims were read, by the operator's clock
	Members *etcd.Client // client of the members; nil: none runs
}

// Observe reads pods and claims, and restores lost labels of claims. The state has no members yet. at is the time of
// the observation by the wall clock, before the first request; now is the time of the reconciliation. The observation
// is also valid if Observe returns an error, except that the state may be nil.
func Observe(
	ctx context.Context, objects owned.Objects, cluster *v1alpha1.ApiServerCluster, image string, at, now time.Time,
) (o Observation, err error) {
	o.At = at
	if o.State, err = observed.Read(ctx, objects.Reader, cluster, image); err != nil {
		return o, err
	}
	return o, volumes.Relabel(ctx, objects, o.State, now)
}

// ReadMembers reads the etcd members into an observation. An unreachable etcd is an observation, not an error. The
// result is also valid if ReadMembers returns an error.
//
// The states that members have acknowledged are recorded for each successful read, because a volume that is later put
// back to an earlier state must be recognized. After the loss of the quorum, ReadMembers also requests the data of each
// member in the status, which members report without a quorum: users choose from it how to recover. Only the list of
// members needs a quorum.
func ReadMembers(
	ctx context.Context, pool *etcd.Pool, o Observation, c credentials.Set, now time.Time,
) (Observation, error) {
	cluster, endpoints := o.State.Cluster, o.State.Endpoints()
	switch {
	case cluster.ExternalEtcd():
		return o, nil
	case len(endpoints) == 0:
		o.State = o.State.WithMembers(nil, etcd.ErrUnreachable)
		return o, nil
	}
	key := client.ObjectKeyFromObject(cluster).String()
	var err error
	o.Members, err = pool.Get(key, endpoints, strconv.Itoa(desired.ClientPort), c.Etcd(cluster))
	if err != nil {
		o.State = o.State.WithMembers(nil, err)
		return o, err
	}
	o.State = o.State.WithMembers(o.Members.Members(ctx))
	if o.State.EtcdErr == nil {
		pool.Acknowledge(key, o.State.Members, now)
	}
	o.State = o.State.WithAcknowledged(pool.Acknowledged(key))
	if o.State.QuorumLost(now) {
		var names []string
		for _, member := range cluster.Status.Members {
			names = append(names, member.Name)
		}
		o.State = o.State.WithSurvivors(o.Members.Survivors(ctx, names))
	}
	return o, nil
}

// WithoutEtcd returns the API servers that are not ready because their external etcd does not respond, and when the
// others are due for another look. Without that, the only symptom would be their restarts. The operator does not
// connect to an external etcd, so that it reads the health checks of the API servers instead.
func WithoutEtcd(
	ctx context.Context, state *observed.State, c credentials.Set, now time.Time,
) (names []string, due []time.Time, err error) {
	if !state.Cluster.ExternalEtcd() || state.ReadyReplicas() == len(state.Pods) {
		return nil, nil, nil
	}
	probe, err := c.Probe(state.Cluster)
	if err != nil {
		return nil, nil, err
	}
	names = state.WithoutEtcd(ctx, probe, now)
	for i := range state.Pods { // a pod may not change again, so that only another reconciliation finds out
		if pod := &state.Pods[i]; !observed.Ready(pod) {
			due = append(due, observed.EtcdDue(pod))
		}
	}
	if len(names) > 0 {
		due = append(due, now.Add(observed.QuorumLossTimeout))
	}
	return names, due, nil
}
