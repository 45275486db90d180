// Package reconcile makes the world what an ApiServerCluster says, one pass at a time: a list of named steps that read the
// world once, write only what differs, take one membership action, and say in the status what is true, also when they fail.
package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	ctrlreconcile "sigs.k8s.io/controller-runtime/pkg/reconcile"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/etcd"
	"quorate.dev/operator/membership"
	"quorate.dev/operator/observed"
	"quorate.dev/operator/status"
)

const (
	// steady is how often a cluster is looked at when nothing happens: sizes, silent members, certificates.
	steady = 30 * time.Second
	// soon is how often what is waited for is looked at in the first minute; later is after that.
	soon  = 250 * time.Millisecond
	later = 2 * time.Second
	// at once, after an action.
	atOnce = time.Millisecond

	workers = 4
)

// Reconciler of ApiServerClusters.
type Reconciler struct {
	Client   client.Client // reads Services, Secrets, budgets and network policies from a cache
	Reader   client.Reader // reads what decisions depend on, not from a cache
	Recorder events.EventRecorder
	Etcd     *etcd.Pool
	Clock    clock.Clock
	Image    string // of clusters that name none
	// OperatorNamespace is where the operator's pods run; empty: it runs in no pod of the hosting cluster.
	OperatorNamespace string
}

// step is one concern. Without a required one nothing further makes sense; one that changes is not taken for a spec that
// is wrong.
type step struct {
	name     string
	required bool
	changes  bool
	do       func(*Reconciler, context.Context, *pass) error
}

// steps in their order.
var steps = []step{
	{"finalizer", true, false, (*Reconciler).ensureFinalizer},
	{"observation", true, false, (*Reconciler).observe},
	{"validation", true, false, (*Reconciler).validate},
	{"services", true, true, (*Reconciler).ensureServices},
	{"network policies", false, true, (*Reconciler).ensureNetworkPolicies},
	{"certificates", true, false, (*Reconciler).ensureCertificates},
	{"kubeconfig", false, true, (*Reconciler).ensureKubeconfig},
	{"etcd", false, false, (*Reconciler).askEtcd},
	{"disruption budget", false, true, (*Reconciler).ensureBudget},
	{"volumes", false, true, (*Reconciler).growVolumes},
	{"certificate notes", false, true, (*Reconciler).noteCertificates},
	{"membership", false, true, (*Reconciler).takeAction},
	{"version", false, false, (*Reconciler).askVersion},
}

// pass is one reconciliation: what it saw and what came of it.
type pass struct {
	cluster *v1alpha1.ApiServerCluster
	world   *observed.World
	service *corev1.Service
	pki     certificates
	etcd    *etcd.Client // nil until somebody could be asked
	stale   bool         // something failed only because of an old view
	input   status.Input
}

// Reconcile is called by the controller.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	cluster := &v1alpha1.ApiServerCluster{}
	if err := r.Reader.Get(ctx, request.NamespacedName, cluster); err != nil {
		r.Etcd.Drop(request.String())
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if cluster.DeletionTimestamp != nil {
		r.Etcd.Drop(request.String())
		return r.remove(ctx, cluster)
	}
	p := &pass{cluster: cluster, input: status.Input{Now: r.Clock.Now()}}
	before := cluster.DeepCopy()
	r.run(ctx, p)
	if err := r.publish(ctx, p, before); err != nil {
		p.failed(ctx, err)
	}
	return r.next(p)
}

// failed keeps an error. One that is a sign of an old view, not of a fault, is no news.
func (p *pass) failed(ctx context.Context, err error) {
	if !stale(err) {
		p.input.Errors = append(p.input.Errors, err)
		return
	}
	p.stale = true
	ctrl.LoggerFrom(ctx).V(1).Info("again", "reason", err.Error())
}

// run takes the steps. One that fails does not keep the others from their work, unless they depend on it.
func (r *Reconciler) run(ctx context.Context, p *pass) {
	for _, s := range steps {
		if s.changes && p.input.Invalid != nil {
			continue
		}
		err := s.do(r, ctx, p)
		if err == nil {
			continue
		}
		p.failed(ctx, fmt.Errorf("%s: %w", s.name, err))
		if s.required {
			return
		}
	}
}

// next says when to look again.
func (r *Reconciler) next(p *pass) (ctrl.Result, error) {
	if len(p.input.Errors) > 0 {
		return ctrl.Result{}, errors.Join(p.input.Errors...)
	}
	switch a := p.input.Action; {
	case p.stale:
		return ctrl.Result{RequeueAfter: soon}, nil
	case p.input.Refused == nil && a.Kind != membership.Wait && a.Kind != "":
		return ctrl.Result{RequeueAfter: atOnce}, nil
	case a.Kind != "" && (a.Kind != membership.Wait || a.Reason != ""):
		return ctrl.Result{RequeueAfter: r.patience(p)}, nil
	}
	return ctrl.Result{RequeueAfter: steady}, nil
}

func (r *Reconciler) patience(p *pass) time.Duration {
	for _, c := range p.cluster.Status.Conditions {
		if c.Type == v1alpha1.Progressing && r.Clock.Since(c.LastTransitionTime.Time) < time.Minute {
			return soon
		}
	}
	return later
}

// observe reads the world.
func (r *Reconciler) observe(ctx context.Context, p *pass) (err error) {
	image := cmp.Or(p.cluster.Spec.Image, p.cluster.Status.Image, r.Image)
	p.world, err = observed.Read(ctx, r.Reader, p.cluster, image)
	p.input.World = p.world
	return err
}

func (r *Reconciler) validate(_ context.Context, p *pass) error {
	p.input.Invalid = desired.Validate(p.cluster, p.world.Claims)
	if p.input.Invalid == nil && p.world.Image == "" {
		p.input.Invalid = errors.New("spec.image is empty and the operator has no default")
	}
	return nil
}

// askVersion is a courtesy to the reader of the status; a replica that does not answer is no fault of the cluster.
func (r *Reconciler) askVersion(ctx context.Context, p *pass) error {
	if p.input.Action.Kind != membership.Wait || p.input.Action.Reason != "" {
		return nil // there is more urgent work
	}
	version, err := p.world.Version(ctx, p.pki.authorities[desired.ServingDomain].Certificate)
	if err != nil {
		ctrl.LoggerFrom(ctx).V(1).Info("version unknown", "reason", err.Error())
	}
	p.input.Version = version
	return nil
}

// SetupWithManager starts the controller with a manager.
func (r *Reconciler) SetupWithManager(manager ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(manager).
		For(&v1alpha1.ApiServerCluster{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Owns(&corev1.Pod{}).
		Owns(&corev1.PersistentVolumeClaim{}).
		Owns(&corev1.Service{}).
		Owns(&corev1.Secret{}).
		Owns(&policyv1.PodDisruptionBudget{}).
		Owns(&networkingv1.NetworkPolicy{}).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: workers,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[ctrlreconcile.Request](50*time.Millisecond, 15*time.Second),
		}).
		Complete(r)
}
