package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/encryption"
	"quorate.dev/operator/etcd"
	"quorate.dev/operator/membership"
	"quorate.dev/operator/observed"
	"quorate.dev/operator/status"
)

// fact is a result of a step that later steps depend on.
type fact string

const (
	finalizerSet      fact = "finalizer"     // the cluster has the finalizer, so objects may be created
	stateRead         fact = "state"         // pass.state without etcd members
	specValidated     fact = "validation"    // status.Input.Invalid
	configurationRead fact = "configuration" // pass.configuration, if the cluster may be changed
	servicesReady     fact = "services"      // pass.service, if the cluster may be changed
	certificatesReady fact = "certificates"  // pass.certificates; incomplete if the spec is invalid
	membersRead       fact = "members"       // the etcd members in pass.state, or the error why they are unknown
)

// step is one concern of a reconciliation. It runs if all facts that it needs are established. If it succeeds, the
// facts that it sets are established.
type step struct {
	name  string
	needs []fact
	sets  []fact
	// changes reports whether the step applies the spec. It is skipped if the spec is invalid, a Secret is lost or the
	// cluster is paused. The facts that it sets count as established, so that later steps can report the existing
	// objects.
	changes bool
	do      func(*Reconciler, context.Context, *pass) error
}

// steps in the order of their execution.
var steps = []step{
	{
		name: "finalizer",
		sets: []fact{finalizerSet},
		do:   (*Reconciler).ensureFinalizer,
	},
	{
		name:  "observation",
		needs: []fact{finalizerSet},
		sets:  []fact{stateRead},
		do:    (*Reconciler).observe,
	},
	{
		name:  "validation",
		needs: []fact{stateRead},
		sets:  []fact{specValidated},
		do:    (*Reconciler).validate,
	},
	{
		name:    "configuration",
		needs:   []fact{specValidated},
		sets:    []fact{configurationRead},
		changes: true,
		do:      (*Reconciler).ensureConfiguration,
	},
	{
		name:    "services",
		needs:   []fact{specValidated},
		sets:    []fact{servicesReady},
		changes: true,
		do:      (*Reconciler).ensureServices,
	},
	{
		name:    "network policies",
		needs:   []fact{specValidated},
		changes: true,
		do:      (*Reconciler).ensureNetworkPolicies,
	},
	{
		name:    "host access",
		needs:   []fact{specValidated},
		changes: true,
		do:      (*Reconciler).ensureHostAccess,
	},
	{
		name:  "certificates",
		needs: []fact{servicesReady},
		sets:  []fact{certificatesReady},
		do:    (*Reconciler).ensureCertificates,
	},
	{
		name:    "kubeconfig",
		needs:   []fact{certificatesReady},
		changes: true,
		do:      (*Reconciler).ensureKubeconfig,
	},
	{
		name:    "companions",
		needs:   []fact{certificatesReady},
		changes: true,
		do:      (*Reconciler).ensureCompanions,
	},
	{
		name:  "etcd",
		needs: []fact{certificatesReady},
		sets:  []fact{membersRead},
		do:    (*Reconciler).readMembers,
	},
	{
		name:    "member records",
		needs:   []fact{membersRead},
		changes: true,
		do:      (*Reconciler).recordMembers,
	},
	{
		name:    "disruption budget",
		needs:   []fact{specValidated},
		changes: true,
		do:      (*Reconciler).ensureBudget,
	},
	{
		name:    "volumes",
		needs:   []fact{specValidated},
		changes: true,
		do:      (*Reconciler).expandVolumes,
	},
	{
		name:    "certificate annotations",
		needs:   []fact{certificatesReady, configurationRead},
		changes: true,
		do:      (*Reconciler).annotateCertificates,
	},
	{
		name:    "restore",
		needs:   []fact{certificatesReady},
		changes: true,
		do:      (*Reconciler).restoreBackup,
	},
	{
		name:    "recovery",
		needs:   []fact{certificatesReady},
		changes: true,
		do:      (*Reconciler).recoverQuorum,
	},
	{
		name:    "rotation",
		needs:   []fact{certificatesReady},
		changes: true,
		do:      (*Reconciler).planRotations,
	},
	{
		name:    "encryption",
		needs:   []fact{certificatesReady, configurationRead},
		changes: true,
		do:      (*Reconciler).planEncryption,
	},
	{
		name:    "membership", // runs even if the members are unknown
		needs:   []fact{certificatesReady, configurationRead},
		changes: true,
		do:      (*Reconciler).takeActions,
	},
	{
		name:    "API services",
		needs:   []fact{certificatesReady},
		changes: true,
		do:      (*Reconciler).ensureAPIServices,
	},
	{
		name:  "backups",
		needs: []fact{stateRead},
		do:    (*Reconciler).readSchedules,
	},
	{
		name:  "version",
		needs: []fact{certificatesReady},
		do:    (*Reconciler).readVersion,
	},
	{
		name:  "external etcd",
		needs: []fact{certificatesReady},
		do:    (*Reconciler).checkExternalEtcd,
	},
}

// pass is the state of one reconciliation.
type pass struct {
	cluster       *v1alpha1.ApiServerCluster
	state         *observed.State
	observed      time.Time       // when state was read
	service       *corev1.Service // the Service for clients; nil if the cluster may not be changed
	certificates  certificates
	configuration desired.Configuration
	encryption    encryption.State
	recoveryPod   *corev1.Pod               // that prepares the data of a recovery; nil: none, if recoveryRead
	recoveryRead  bool                      // recoveryPod was read
	secrets       map[string]*corev1.Secret // of the authorities, as read, by trust domain
	etcd          *etcd.Client              // nil if no member runs
	formerImage   string                    // of members that are created while an upgrade is held; "": state.Image
	restart       map[string]bool           // pods that have to restart for a rotation
	rotating      bool                      // a rotation waits for replicas or kubeconfigs
	entered       bool                      // a rotation entered a stage
	restored      bool                      // the backup is restored; configuration does not have its keys yet
	next          time.Time                 // when something becomes due; zero: unknown
	stale         bool                      // a step failed because of an outdated observation
	updated       *int                      // number of pods that were created from the present spec; nil: unknown
	input         status.Input
}

// run executes the steps. A failed step stops only the steps that need its facts.
func (r *Reconciler) run(ctx context.Context, p *pass) {
	established := map[fact]bool{}
	for _, s := range steps {
		if slices.ContainsFunc(s.needs, func(f fact) bool { return !established[f] }) {
			continue
		}
		if !s.changes || p.mayChange() {
			if err := s.do(r, ctx, p); err != nil {
				p.failed(ctx, fmt.Errorf("%s: %w", s.name, err))
				continue
			}
		}
		for _, f := range s.sets {
			established[f] = true
		}
	}
}

// mayChange reports whether the cluster may be changed.
func (p *pass) mayChange() bool {
	return p.input.Invalid == nil && p.input.Lost == nil && !p.cluster.Paused(p.input.Now)
}

// failed records an error. If its cause is stale state, the reconciliation is repeated instead.
func (p *pass) failed(ctx context.Context, err error) {
	if !stale(err) {
		p.input.Errors = append(p.input.Errors, err)
		return
	}
	p.stale = true
	ctrl.LoggerFrom(ctx).V(1).Info("retrying after a conflict", "reason", err.Error())
}

// observe reads the pods and claims.
func (r *Reconciler) observe(ctx context.Context, p *pass) (err error) {
	image := cmp.Or(p.cluster.Spec.Image, p.cluster.Status.Image, r.Image)
	p.observed = r.Clock.Now()
	p.state, err = observed.Read(ctx, r.Reader, p.cluster, image)
	if err != nil {
		return err
	}
	return r.relabelClaims(ctx, p)
}

func (r *Reconciler) validate(_ context.Context, p *pass) error {
	if until, err := p.cluster.PausedUntil(); err == nil {
		p.requeueAt(until)
	}
	p.input.Invalid = r.Checks.spec(p)
	if p.input.Invalid == nil && p.state.Image == "" {
		p.input.Invalid = errors.New("spec.image is empty and the operator has no default image")
	}
	return nil
}

// readVersion reads the version for the status once no action is pending. It returns no error, because readiness
// reports a replica that does not respond.
func (r *Reconciler) readVersion(ctx context.Context, p *pass) error {
	if p.input.Action.Kind != membership.Wait || p.input.Action.Reason != "" {
		return nil
	}
	version, err := r.Checks.version(p, func() (string, error) {
		return p.state.Version(ctx, p.certificates.roots(), p.certificates.name)
	})
	if err != nil {
		ctrl.LoggerFrom(ctx).V(1).Info("version unknown", "reason", err.Error())
	}
	p.input.Version = version
	return nil
}
