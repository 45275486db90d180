package network

import (
	"context"
	"errors"
	"fmt"

	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

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
	found, err := objects.Find(ctx, cluster, cluster.Name, current)
	switch {
	case wanted == nil && errors.Is(err, owned.ErrForeign):
		return nil
	case err != nil:
		return err
	case wanted == nil && found:
		if err := objects.Client.Delete(ctx, current); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete the disruption budget: %w", err)
		}
		return nil
	case wanted == nil:
		return nil
	case !found:
		return objects.Create(ctx, cluster, wanted)
	}
	after := current.DeepCopy()
	owned.SetLabels(after, wanted)
	after.Spec = wanted.Spec
	return objects.Update(ctx, current, after)
}
