// Package reconcile reconciles ApiServerClusters. One reconciliation is a list of named steps: they read the state
// once, write only objects that differ, take membership actions, and finally publish the status, also after errors.
package reconcile

import (
	"context"
	"errors"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	ctrlreconcile "sigs.k8s.io/controller-runtime/pkg/reconcile"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/etcd"
	"quorate.dev/operator/membership"
	"quorate.dev/operator/status"
)

const (
	// resyncInterval is the requeue interval of a cluster without changes, for database sizes, unhealthy members and
	// certificates. quietInterval is that of a cluster without problems whose databases are at most
	// half full: its pods and Secrets are watched.
	resyncInterval = 30 * time.Second
	quietInterval  = 5 * time.Minute
	// A cluster that waits for a change is requeued after shortWait in the first shortWaitPeriod, and after longWait
	// later.
	shortWait       = 250 * time.Millisecond
	longWait        = 2 * time.Second
	shortWaitPeriod = time.Minute
	// immediately is the requeue interval after an action.
	immediately = time.Millisecond

	// workers is the number of clusters that are reconciled concurrently.
	workers = 4
)

// Reconciler reconciles ApiServerClusters.
type Reconciler struct {
	Client   client.Client // reads Services, Secrets, budgets and network policies from a cache
	Reader   client.Reader // reads everything that decisions depend on; not a cache
	Recorder events.EventRecorder
	Etcd     *etcd.Pool
	Clock    clock.Clock
	Metrics  *Metrics // nil: none
	Image    string   // default of spec.image
	Checks   *Checks  // results of validations
	// Sources watches metadata of the ConfigMaps and Secrets that clusters refer to; nil: they are read regularly.
	Sources cache.Cache
	// Connect returns a client of the API servers of a cluster.
	Connect func(*rest.Config) (client.Client, error)
	// Discover returns an error if the API servers of a cluster do not serve the path of a group version.
	Discover func(ctx context.Context, config *rest.Config, path string) error
	// Host is the hosting cluster as API servers in mode Extension reach it.
	Host Host
	// OperatorNamespace is the namespace of the operator's pods, or "" if it does not run as a pod of the hosting cluster.
	OperatorNamespace string
}

// Reconcile reconciles one cluster.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	cluster := &v1alpha1.ApiServerCluster{}
	if err := r.Reader.Get(ctx, request.NamespacedName, cluster); err != nil {
		r.Etcd.Drop(request.String())
		if apierrors.IsNotFound(err) {
			r.Etcd.Forget(request.String())
			r.Metrics.forget(request.NamespacedName)
			r.Checks.forget(request.NamespacedName)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if cluster.DeletionTimestamp != nil {
		r.Etcd.Forget(request.String())
		return r.remove(ctx, cluster)
	}
	p := &pass{cluster: cluster, input: status.Input{Now: r.Clock.Now()}, restart: map[string]bool{}, secrets: map[string]*corev1.Secret{}}
	before := cluster.DeepCopy()
	r.run(ctx, p)
	p.input.State = p.state
	if err := r.publish(ctx, p, before); err != nil {
		p.failed(ctx, err)
	}
	r.Metrics.observe(request.NamespacedName, p)
	if p.quiet() {
		r.Etcd.Drop(request.String()) // idle connections take memory and time
	}
	return r.result(p)
}

// quiet reports whether a cluster has no problems, nothing is being changed, and all that it depends on is watched: the
// objects that register API groups, inside the cluster or in its host, are not.
func (p *pass) quiet() bool {
	conditions := p.cluster.Status.Conditions
	if p.cluster.IsExtension() || len(p.cluster.Spec.Aggregation.APIServices) > 0 {
		return false
	}
	return len(p.input.Errors) == 0 && !p.stale && !p.entered && len(p.input.Rotations) == 0 &&
		meta.IsStatusConditionTrue(conditions, v1alpha1.Available) &&
		meta.IsStatusConditionFalse(conditions, v1alpha1.Degraded) &&
		meta.IsStatusConditionFalse(conditions, v1alpha1.Progressing) &&
		!meta.IsStatusConditionFalse(conditions, v1alpha1.EtcdQuorum) &&
		!slices.ContainsFunc(p.cluster.Status.Members, func(m v1alpha1.MemberStatus) bool {
			return m.UnhealthySince != nil || m.DBSize > desired.Quota(p.cluster)/2
		})
}

// electing reports whether a member became unhealthy, or the leader unknown, so recently that the status may lack the
// next leader. etcd does not notify clients of elections: without a change of a pod, only a resync finds the leader.
func (p *pass) electing() bool {
	members := p.cluster.Status.Members
	lost := slices.ContainsFunc(members, func(m v1alpha1.MemberStatus) bool {
		return m.UnhealthySince != nil && p.input.Now.Sub(m.UnhealthySince.Time) < shortWaitPeriod
	})
	known := slices.ContainsFunc(members, func(m v1alpha1.MemberStatus) bool { return m.Role == "leader" })
	return lost || len(members) > 0 && !known && !p.cluster.Hibernated()
}

// disarming reports whether members may be about to disarm the alarm NOSPACE after a defragmentation.
func (p *pass) disarming() bool {
	return meta.IsStatusConditionFalse(p.cluster.Status.Conditions, v1alpha1.EtcdSpaceAvailable) &&
		slices.ContainsFunc(p.cluster.Status.Members, func(m v1alpha1.MemberStatus) bool {
			return m.LastDefragmentTime != nil && p.input.Now.Sub(m.LastDefragmentTime.Time) < shortWaitPeriod
		})
}

// result returns when the cluster is reconciled again.
func (r *Reconciler) result(p *pass) (ctrl.Result, error) {
	if len(p.input.Errors) > 0 {
		return ctrl.Result{}, errors.Join(p.input.Errors...)
	}
	switch a := p.input.Action; {
	case p.stale:
		return ctrl.Result{RequeueAfter: shortWait}, nil
	case p.entered, p.restored:
		return ctrl.Result{RequeueAfter: immediately}, nil
	case p.input.Rejected == nil && a.Kind != membership.Wait && a.Kind != "":
		return ctrl.Result{RequeueAfter: immediately}, nil
	case a.Kind == membership.Wait && a.Reason == p.input.Held && a.Reason != "": // a window may open days later
	case a.Kind != "" && (a.Kind != membership.Wait || a.Reason != ""), p.rotating:
		return ctrl.Result{RequeueAfter: r.waitInterval(p)}, nil
	}
	return ctrl.Result{RequeueAfter: p.untilDue()}, nil
}

// untilDue returns the time until the next due date, at most the resync interval.
func (p *pass) untilDue() time.Duration {
	interval := resyncInterval
	switch {
	case p.quiet():
		interval = quietInterval
	case p.electing(), p.disarming():
		interval = longWait
	}
	if p.next.IsZero() {
		return interval
	}
	return max(min(p.next.Sub(p.input.Now), interval), immediately)
}

func (r *Reconciler) waitInterval(p *pass) time.Duration {
	for _, c := range p.cluster.Status.Conditions {
		if c.Type == v1alpha1.Progressing && r.Clock.Since(c.LastTransitionTime.Time) < shortWaitPeriod {
			return shortWait
		}
	}
	return longWait
}

// SetupWithManager adds the controller to a manager.
func (r *Reconciler) SetupWithManager(manager ctrl.Manager) error {
	controlled := ctrl.NewControllerManagedBy(manager)
	for _, one := range r.sources() {
		controlled = controlled.WatchesRawSource(one)
	}
	return controlled.
		For(&v1alpha1.ApiServerCluster{}, builder.WithPredicates(
			predicate.Or(predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}))).
		Watches(&v1alpha1.ApiServerBackupSchedule{}, handler.EnqueueRequestsFromMapFunc(clusterOfSchedule)).
		Owns(&corev1.Pod{}).
		Owns(&corev1.PersistentVolumeClaim{}).
		Owns(&corev1.Service{}).
		Owns(&corev1.Secret{}).
		Owns(&appsv1.Deployment{}).
		Owns(&policyv1.PodDisruptionBudget{}).
		Owns(&networkingv1.NetworkPolicy{}).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: workers,
			RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[ctrlreconcile.Request](
				50*time.Millisecond, 15*time.Second),
		}).
		Complete(r)
}
