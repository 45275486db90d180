package network

import (
	"context"

	policyv1 "k8s.io/api/policy/v1"

	"quorate.dev/operator/desired"
	"quorate.dev/operator/observed"
	"quorate.dev/operator/reconcile/owned"
)

// EnsureBudget maintains the PodDisruptionBudget, which protects the quorum of the present and of the desired voters.
// While the members cannot be read, it uses the last known number of voters. Without that number, the budget would
// protect only the desired voters, and evictions could stop most members of a cluster that is being scaled down. A
// cluster in which every pod may stop, such as a cluster with one voter, has no budget. A budget of another owner with
// the name of the cluster is then ignored.
func EnsureBudget(ctx context.Context, objects owned.Objects, state *observed.State) error {
	cluster := state.Cluster
	voters, _ := state.Voters()
	if state.EtcdErr != nil {
		voters = int(cluster.Status.Voters)
	}
	wanted := desired.Budget(cluster, voters)
	current := &policyv1.PodDisruptionBudget{}
	if wanted == nil {
		current.Name = cluster.Name
		_, err := objects.Remove(ctx, cluster, current)
		return err
	}
	return objects.Ensure(ctx, cluster, wanted, current, func() { current.Spec = wanted.Spec })
}
