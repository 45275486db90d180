// Package controllers runs controllers of kube-controller-manager that a cluster needs even if kube-controller-manager
// does not run: namespace deletion, garbage collection, default service accounts, resource quota usage, ClusterRole
// aggregation and type checking of ValidatingAdmissionPolicies. A Lease elects the replica that runs them. The
// controllers are clients of this server, and their informers read its watch cache.
package controllers

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/util/retry"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// Names of the controllers in --controllers.
const (
	Namespace              = "namespace"
	GarbageCollector       = "garbagecollector"
	ServiceAccount         = "serviceaccount"
	ResourceQuota          = "resourcequota"
	ClusterRoleAggregation = "clusterrole-aggregation"
	PolicyStatus           = "validatingadmissionpolicy-status"
	All                    = "*"
)

// Names returns the names of all controllers.
func Names() []string {
	return []string{ClusterRoleAggregation, GarbageCollector, Namespace, ResourceQuota, ServiceAccount, PolicyStatus}
}

// Check returns an error if a name is not the name of a controller.
func Check(names []string) error {
	for _, name := range names {
		if name != All && !slices.Contains(Names(), name) {
			return fmt.Errorf("--controllers: unknown controller %q; supported are %v and *", name, Names())
		}
	}
	return nil
}

// Options configure the controllers.
type Options struct {
	// Enabled lists controllers, or All.
	Enabled []string
	// Client is a client of this server with cluster-admin permissions.
	Client *rest.Config
	// Informers returns the informers for one leader term.
	Informers func() informers.SharedInformerFactory
	// AwaitDefinitions waits until this replica serves all definitions that were stored before the call. It returns an
	// error if ctx ends first.
	AwaitDefinitions func(context.Context) error
	// Identity is the holder identity of this replica.
	Identity string
	Clock    clock.Clock
	Logger   logr.Logger
}

const (
	leaseName     = "quorate-controllers"
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
	// restartDelay is the time for which a replica whose controllers failed to start stays out of the election. It
	// exceeds retryPeriod, so that another replica acquires the lease.
	restartDelay = 5 * time.Second
)

// Run runs the enabled controllers while this replica is the leader, until ctx ends.
func Run(ctx context.Context, options Options) error {
	client, err := kubernetes.NewForConfig(options.Client)
	if err != nil {
		return fmt.Errorf("create the client of the controllers: %w", err)
	}
	ctx = klog.NewContext(ctx, options.Logger)
	for ctx.Err() == nil {
		if err := runElection(ctx, client, options); err != nil {
			options.Logger.Error(err, "Failed to start the controllers")
			sleep(ctx, options.Clock, restartDelay)
		}
	}
	return nil
}

// runElection takes part in one election. If this replica wins, it runs the controllers. It returns when the lease is
// lost, or is released because the controllers failed to start.
func runElection(ctx context.Context, client kubernetes.Interface, options Options) error {
	term, resign := context.WithCancelCause(ctx)
	defer resign(nil)
	lock := &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: leaseName},
		Client:     client.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: options.Identity},
	}
	elector, err := newElector(lock, func(ctx context.Context) {
		if err := runControllers(ctx, options); err != nil {
			resign(err)
		}
	})
	if err != nil {
		return err
	}
	elector.Run(term)
	if err := releaseLease(context.WithoutCancel(ctx), lock, options.Clock.Now()); err != nil {
		options.Logger.Error(err, "Failed to release the lease; it expires", "lease", leaseName)
	}
	if ctx.Err() != nil {
		return nil
	}
	return context.Cause(term)
}

// releaseLease releases the lease if this replica holds it. The elector also releases it, but fails if the release
// conflicts with a renewal in progress.
func releaseLease(ctx context.Context, lock resourcelock.Interface, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, renewDeadline)
	defer cancel()
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		record, _, err := lock.Get(ctx)
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil || record.HolderIdentity != lock.Identity() {
			return err
		}
		free := resourcelock.LeaderElectionRecord{
			LeaderTransitions: record.LeaderTransitions, LeaseDurationSeconds: 1, RenewTime: metav1.NewTime(now),
			AcquireTime: metav1.NewTime(now),
		}
		return lock.Update(ctx, free)
	})
}

func sleep(ctx context.Context, clock clock.Clock, duration time.Duration) {
	timer := clock.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-timer.C():
	case <-ctx.Done():
	}
}

func newElector(lock resourcelock.Interface, lead func(context.Context)) (*leaderelection.LeaderElector, error) {
	return leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:          lock,
		Name:          leaseName,
		LeaseDuration: leaseDuration,
		RenewDeadline: renewDeadline,
		RetryPeriod:   retryPeriod,
		Callbacks:     leaderelection.LeaderCallbacks{OnStartedLeading: lead, OnStoppedLeading: func() {}},
	})
}
