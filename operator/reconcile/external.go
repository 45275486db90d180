package reconcile

import (
	"context"

	"quorate.dev/operator/observed"
)

// checkExternalEtcd finds out whether API servers are not ready because their external etcd does not respond. Otherwise the only
// sign would be that they restart.
func (r *Reconciler) checkExternalEtcd(ctx context.Context, p *pass) error {
	if !p.cluster.ExternalEtcd() || p.state.ReadyReplicas() == len(p.state.Pods) {
		return nil
	}
	probe, err := p.probe()
	if err != nil {
		return err
	}
	p.input.WithoutEtcd = p.state.WithoutEtcd(ctx, probe, p.input.Now)
	for i := range p.state.Pods { // without a change of the pod, only a repetition finds out
		if pod := &p.state.Pods[i]; !observed.Ready(pod) {
			p.requeueAt(observed.EtcdDue(pod))
		}
	}
	if len(p.input.WithoutEtcd) > 0 {
		p.requeueAt(p.input.Now.Add(observed.QuorumLossTimeout))
	}
	return nil
}
