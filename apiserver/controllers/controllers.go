// Package controllers runs upstream's controllers that an API server without a kube-controller-manager beside it
// cannot live without: deletion of namespaces' contents, garbage collection by owner reference, the default service
// account of each namespace, the usage of quotas, and roles that are put together of others. They run in one replica
// at a time, as clients of this server, and read its watch cache.
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

// The controllers by the names they have in --controllers.
const (
	Namespace              = "namespace"
	GarbageCollector       = "garbagecollector"
	ServiceAccount         = "serviceaccount"
	ResourceQuota          = "resourcequota"
	ClusterRoleAggregation = "clusterrole-aggregation"
	All                    = "*"
)

// Names lists the controllers there are.
func Names() []string {
	return []string{ClusterRoleAggregation, GarbageCollector, Namespace, ResourceQuota, ServiceAccount}
}

// Check refuses names that no controller has.
func Check(names []string) error {
	for _, name := range names {
		if name != All && !slices.Contains(Names(), name) {
			return fmt.Errorf("--controllers: there is no %q; there are %v and *", name, Names())
		}
	}
	return nil
}

// Options are what the controllers work with.
type Options struct {
	// Enabled are names of controllers, or All.
	Enabled []string
	// Client reaches this server with the right to do everything.
	Client *rest.Config
	// Informers makes the informers of one term of office.
	Informers func() informers.SharedInformerFactory
	// Identity tells this replica from the others.
	Identity string
	Clock    clock.Clock
	Logger   logr.Logger
}

const (
	leaseName     = "quorate-controllers"
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
	// pause is how long a replica on which the controllers failed leaves the others alone: they look whether the lease is
	// free at least that often.
	pause = 5 * time.Second
)

// Run runs the enabled controllers whenever this replica is the one elected, until ctx ends.
func Run(ctx context.Context, options Options) error {
	client, err := kubernetes.NewForConfig(options.Client)
	if err != nil {
		return fmt.Errorf("make the controllers' client: %w", err)
	}
	ctx = klog.NewContext(ctx, options.Logger)
	for ctx.Err() == nil {
		if err := round(ctx, client, options); err != nil {
			options.Logger.Error(err, "the controllers could not be started")
			wait(ctx, options.Clock, pause)
		}
	}
	return nil
}

// round is one election, and the term of office, if this replica wins. It returns when the lease is lost, or given back
// because the controllers could not be started.
func round(ctx context.Context, client kubernetes.Interface, options Options) error {
	term, resign := context.WithCancelCause(ctx)
	defer resign(nil)
	lock := &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: leaseName},
		Client:     client.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: options.Identity},
	}
	elector, err := newElector(lock, func(ctx context.Context) {
		if err := lead(ctx, options); err != nil {
			resign(err)
		}
	})
	if err != nil {
		return err
	}
	elector.Run(term)
	if err := giveBack(context.WithoutCancel(ctx), lock, options.Clock.Now()); err != nil {
		options.Logger.Error(err, "the lease stays until it expires", "lease", leaseName)
	}
	if ctx.Err() != nil {
		return nil
	}
	return context.Cause(term)
}

// giveBack frees the lease, if this replica holds it. The elector would give up where a renewal that was on its way
// comes between.
func giveBack(ctx context.Context, lock resourcelock.Interface, now time.Time) error {
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
			LeaderTransitions: record.LeaderTransitions, LeaseDurationSeconds: 1, RenewTime: metav1.NewTime(now), AcquireTime: metav1.NewTime(now),
		}
		return lock.Update(ctx, free)
	})
}

func wait(ctx context.Context, clock clock.Clock, duration time.Duration) {
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
