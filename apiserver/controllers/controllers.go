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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
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
	Logger   logr.Logger
}

const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
)

// Run runs the enabled controllers whenever this replica is the one elected, until ctx ends.
func Run(ctx context.Context, options Options) error {
	client, err := kubernetes.NewForConfig(options.Client)
	if err != nil {
		return fmt.Errorf("make the controllers' client: %w", err)
	}
	ctx = klog.NewContext(ctx, options.Logger)
	for ctx.Err() == nil {
		elector, err := newElector(client, options)
		if err != nil {
			return err
		}
		elector.Run(ctx) // returns when the lease is lost
	}
	return nil
}

func newElector(client kubernetes.Interface, options Options) (*leaderelection.LeaderElector, error) {
	return leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "quorate-controllers"},
			Client:     client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: options.Identity},
		},
		Name:            "quorate-controllers",
		LeaseDuration:   leaseDuration,
		RenewDeadline:   renewDeadline,
		RetryPeriod:     retryPeriod,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				if err := lead(ctx, options); err != nil {
					options.Logger.Error(err, "the controllers could not be started")
				}
			},
			OnStoppedLeading: func() {},
		},
	})
}
