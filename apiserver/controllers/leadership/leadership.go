// Package leadership runs the controller of coordinated leader election: it elects, among the LeaseCandidates of a
// Lease, the one with the oldest version. It is behind the feature gate CoordinatedLeaderElection, which is off by
// default.
package leadership

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/pkg/controlplane/controller/leaderelection"

	"quorate.dev/apiserver/config"
)

// collectionPeriod is the interval of the deletion of expired LeaseCandidates, as in kube-apiserver.
const collectionPeriod = 30 * time.Minute

// Run elects leaders while this replica is the leader of the controller itself, until ctx ends. client is a client of
// this server with all permissions.
func Run(ctx context.Context, client *rest.Config, timers config.Leadership) error {
	objects, err := kubernetes.NewForConfig(client)
	if err != nil {
		return fmt.Errorf("create the client of coordinated leader election: %w", err)
	}
	leaderelection.RunWithLeaderElection(ctx, client, func() (func(context.Context, int), error) {
		factory := informers.NewSharedInformerFactory(objects, 0)
		leases, candidates := factory.Coordination().V1().Leases(), factory.Coordination().V1beta1().LeaseCandidates()
		controller, err := leaderelection.NewController(
			leases, candidates, objects.CoordinationV1(), objects.CoordinationV1beta1())
		if err != nil {
			return nil, err
		}
		collector := leaderelection.NewLeaseCandidateGC(objects, collectionPeriod, candidates)
		return func(ctx context.Context, workers int) {
			factory.StartWithContext(ctx)
			// The next term must not begin before both controllers have ended.
			var collecting sync.WaitGroup
			collecting.Go(func() { collector.Run(ctx) })
			controller.Run(ctx, workers)
			collecting.Wait()
			factory.Shutdown()
		}, nil
	}, leaderelection.LeaderElectionTimers{
		LeaseDuration: timers.LeaseDuration, RenewDeadline: timers.RenewDeadline, RetryPeriod: timers.RetryPeriod,
	})
	return nil
}
