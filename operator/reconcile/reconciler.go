// Package reconcile reconciles ApiServerClusters: it brings the objects of one cluster in the hosting cluster, and the
// members of its etcd, to the state that the spec describes.
//
// # Data structures
//
// Reconciler has the clients and everything that outlives a reconciliation: the pool of etcd clients, the results of
// validations (configuration.Checks), the backoff after conflicts (Retries), and metrics. Decisions do not depend on
// these fields; a new process starts without them. run executes the steps of one reconciliation in order. A step is a
// function in a package below this package: its arguments are observed objects and the results of earlier steps, and it
// returns a typed result. outcome.Outcome collects the results for the status and for the time of the next
// reconciliation. Decisions are made by pure functions of other packages: membership.Plan (pods, claims and etcd
// members), rotation.Plan (credentials), backup.BeforeUpgrade, status.Compute, and package desired, which returns the
// desired objects.
//
// # Packages
//
// Each package below has a comment with its decisions, reads and writes, invariants, and behaviour after a crash. In
// the order in which their steps run:
//
//   - deletion, retention: delete a cluster, keep its data, adopt the data of a deleted one.
//   - members, volumes: observe pods, claims and etcd members; later, execute the actions on them.
//   - atrest, configuration: the keys of the encryption at rest, and the files that pods mount.
//   - network: Services, network policies, disruption budget.
//   - certificates, rotations, stages, credentials: authorities, certificates and keys, and their replacement in
//     stages.
//   - companions: the controller manager, the scheduler, and what nodes need to join.
//   - restore, recovery, preparation: data from a backup, or after the loss of the quorum.
//   - upgrade: the backup before an upgrade of etcd.
//   - apiservices: extension API servers, and clusters that are one.
//   - backups: the controllers of backups and schedules, which are independent of this one.
//   - outcome, watches, metrics: the status, the next reconciliation, its triggers, and metrics.
//   - owned: reads and writes objects for all of them.
//
// # Life of one reconciliation
//
//   - Reconcile reads the cluster without a cache. If its deletion was requested, and nothing delays the deletion,
//     package deletion deletes its objects. A delayed deletion is reported, and the cluster keeps being reconciled.
//   - run executes the steps. Adoption precedes all steps that create objects, because an adopted object may have the
//     name of a new one. members.Observe reads pods and claims, and validate the spec: only then is anything written
//     that depends on the spec. Configuration, Services and certificates precede pods, which mount them. The members of
//     etcd are read after the certificates, which authenticate the operator. Rotations are planned before membership
//     actions, because they name pods to restart. members.Steps.TakeActions is the only step that creates and deletes
//     the pods and claims of replicas and changes etcd members.
//   - Outcome.Publish computes the status and writes it if it differs, also after errors.
//   - Outcome.Result requests the next reconciliation: with backoff after an error, immediately after a change, and
//     otherwise when the next thing becomes due. Most objects are also watched (package watches).
//
// A failed step does not stop the reconciliation, only the steps that need its result. While the spec is invalid, a
// Secret that cannot be replaced is lost, or the cluster is paused (Outcome.MayChange), steps that apply the spec are
// skipped, and the others report the existing objects.
//
// # Invariants
//
//   - Intent is stored before it is acted upon. An intention that must not be carried out twice or be forgotten is
//     first written to the status of the cluster: the initial members and the joining member, the stage of a rotation,
//     the member that is being defragmented, the name of the backup before an upgrade, and the APIServices and
//     companions that have to be deleted one day. A crash between two writes leaves a state from which the next
//     reconciliation continues.
//   - Such writes have an optimistic lock on the cluster. An operator with an outdated view, such as one that has lost
//     the leader lease without having noticed, gets a conflict before it acts.
//   - Decisions about etcd members are based on pods, claims and members that were read, without a cache, at most two
//     seconds before the first plan and members.ActionDeadline before each action. After an action whose outcome is
//     uncertain everything is read again.
//   - Latched values never change back by themselves: status.membership.bootstrapped (except for a recovery),
//     status.restore.completed, status.deletion.startTime, and the lost writes and member IDs that volumes.Record
//     stores in annotations of claims. They decide whether an empty volume is a new one or one that has lost its data.
//   - The operator changes only objects that the cluster owns (see owned.Objects). An object with a name of the
//     cluster's but another owner is reported with owned.ErrForeign and left unchanged. In its own objects the operator
//     sets the fields that package desired describes, and keeps labels, annotations and defaulted fields of others.
//   - Writes happen only if the object differs. A cluster without changes causes no writes.
//
// # What may block
//
// Reconcile is called concurrently for different clusters, by at most four goroutines (see watches.SetUp), and never
// concurrently for the same cluster. Requests to the hosting cluster have no timeout of their own: client-go closes a
// connection that does not respond to pings. Other requests have timeouts: reads of etcd 2 seconds, changes of etcd 5
// seconds, probes of replicas 4 seconds, requests to the API servers of the cluster 5 seconds, and requests that
// rewrite stored objects a minute, although no further page is requested after 5 seconds. Defragmentations take minutes
// and run in goroutines of etcd.Pool; a reconciliation starts them, and a later one reads the result. Restores,
// recoveries and backups run in pods. Locks are held only while maps are accessed (Checks, Metrics, etcd.Pool), never
// during a request.
package reconcile

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/etcd"
	"quorate.dev/operator/limited"
	"quorate.dev/operator/reconcile/apiservices"
	"quorate.dev/operator/reconcile/configuration"
	"quorate.dev/operator/reconcile/deletion"
	"quorate.dev/operator/reconcile/metrics"
	"quorate.dev/operator/reconcile/outcome"
	"quorate.dev/operator/reconcile/owned"
	"quorate.dev/operator/reconcile/watches"
	"quorate.dev/operator/status"
)

// Reconciler reconciles ApiServerClusters. It is safe for concurrent use for different clusters.
type Reconciler struct {
	Client   client.Client // reads objects that the operator owns from a cache, except pods and claims
	Reader   client.Reader // reads from the API server: the cluster, pods, claims, and objects of users
	Recorder events.EventRecorder
	Etcd     *etcd.Pool
	Clock    clock.Clock
	Metrics  *metrics.Metrics      // nil: no metrics are recorded
	Image    string                // image of clusters without spec.image and without an image in the status
	Checks   *configuration.Checks // results of earlier validations
	// Retries computes the delays after conflicts; see outcome.NewRetries.
	Retries *limited.Retries
	// Sources watches the metadata of the ConfigMaps and Secrets that clusters refer to. If it is nil, changes of these
	// objects are found only by the next requeue.
	Sources cache.Cache
	// Connect returns a client for the API servers of a cluster.
	Connect func(*rest.Config) (client.Client, error)
	// Discover returns an error unless the API servers of a cluster serve the path of a group version.
	Discover func(ctx context.Context, config *rest.Config, path string) error
	// Host describes how API servers in mode Extension reach the hosting cluster.
	Host apiservices.Host
	// OperatorNamespace is the namespace of the operator's pods, or "" if the operator does not run as a pod of the
	// hosting cluster. Network policies admit connections from it.
	OperatorNamespace string
}

// objects returns the access to the objects of clusters.
func (r *Reconciler) objects() owned.Objects {
	return owned.Objects{Client: r.Client, Reader: r.Reader, Recorder: r.Recorder}
}

// deletion returns the steps that delete clusters.
func (r *Reconciler) deletion() deletion.Steps {
	return deletion.Steps{Objects: r.objects(), Etcd: r.Etcd, Clock: r.Clock}
}

// Reconcile reconciles one cluster; see the package comment. It implements reconcile.Reconciler of controller-runtime.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	cluster := &v1alpha1.ApiServerCluster{}
	if err := r.Reader.Get(ctx, request.NamespacedName, cluster); err != nil {
		r.Etcd.Drop(request.String())
		if apierrors.IsNotFound(err) {
			r.Etcd.Forget(request.String())
			r.Metrics.Forget(request.NamespacedName)
			r.Checks.Forget(request.NamespacedName)
			r.Retries.Forget(request.NamespacedName)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	var wait *status.Wait
	if cluster.DeletionTimestamp != nil {
		var err error
		if wait, err = r.deletion().Await(ctx, cluster); err != nil {
			return ctrl.Result{}, err
		}
		if wait == nil || !controllerutil.ContainsFinalizer(cluster, deletion.Finalizer) {
			if cluster.DeletionStarted() {
				r.Etcd.Forget(request.String())
			}
			return r.deletion().Remove(ctx, cluster)
		}
		if err := r.deletion().Hold(ctx, cluster, wait); err != nil {
			return ctrl.Result{}, err
		}
	}
	o := outcome.New(cluster, wait, r.Clock.Now())
	before := cluster.DeepCopy()
	r.run(ctx, o)
	if err := o.Publish(ctx, r.objects(), before); err != nil {
		o.Failed(ctx, err)
	}
	r.Metrics.Observe(request.NamespacedName, o.Metrics())
	if o.Quiet() {
		r.Etcd.Drop(request.String()) // idle connections cost memory and keepalive pings
	}
	return o.Result(r.Retries, r.Clock)
}

// SetupWithManager adds the controller to a manager.
func (r *Reconciler) SetupWithManager(manager ctrl.Manager) error {
	return watches.SetUp(manager, r.Client, r.Sources, r)
}
