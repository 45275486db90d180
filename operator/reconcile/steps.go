package reconcile

import (
	"cmp"
	"context"
	"errors"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/desired"
	"quorate.dev/operator/encryption"
	"quorate.dev/operator/membership"
	"quorate.dev/operator/observed"
	"quorate.dev/operator/reconcile/apiservices"
	"quorate.dev/operator/reconcile/atrest"
	"quorate.dev/operator/reconcile/backups"
	"quorate.dev/operator/reconcile/certificates"
	"quorate.dev/operator/reconcile/companions"
	"quorate.dev/operator/reconcile/configuration"
	"quorate.dev/operator/reconcile/credentials"
	"quorate.dev/operator/reconcile/deletion"
	"quorate.dev/operator/reconcile/members"
	"quorate.dev/operator/reconcile/network"
	"quorate.dev/operator/reconcile/outcome"
	"quorate.dev/operator/reconcile/recovery"
	"quorate.dev/operator/reconcile/restore"
	"quorate.dev/operator/reconcile/retention"
	"quorate.dev/operator/reconcile/rotations"
	"quorate.dev/operator/reconcile/volumes"
)

// run executes the steps in order. A failed step stops only the steps that need its result. Steps that apply the spec
// are skipped while the cluster may not be changed; their results are then empty, and the other steps report the
// existing objects.
func (r *Reconciler) run(ctx context.Context, o *outcome.Outcome) {
	o.Input.RotationsUnknown = true
	if !o.Done(ctx, "finalizer", deletion.EnsureFinalizer(ctx, r.objects(), o.Cluster)) {
		return
	}
	// Adoption precedes the creation of objects, whose names retained objects may have.
	if o.MayChange() && !o.Done(ctx, "adoption", retention.Adopt(ctx, r.objects(), o.Cluster, r.Clock.Now())) {
		return
	}
	image := cmp.Or(o.Cluster.Spec.Image, o.Cluster.Status.Image, r.Image)
	observation, err := members.Observe(ctx, r.objects(), o.Cluster, image, r.Clock.Now(), o.Input.Now)
	o.Input.State = observation.State
	if !o.Done(ctx, "observation", err) {
		return
	}
	r.validate(o)
	in := members.Input{Observation: observation, Now: o.Input.Now}
	files, keys, configured := r.configure(ctx, o)
	services, exposed := r.expose(ctx, o)
	certified := false
	if exposed {
		in.Credentials, certified = r.certify(ctx, o, services)
	}
	if certified {
		in.Observation = r.connect(ctx, o, services, in)
	}
	files.VolumeSize = r.protect(ctx, o)
	in.Configuration = files
	if certified {
		in.RecoveryPodAbsent = r.prepare(ctx, o, in, configured)
		in.Restart = r.rotate(ctx, o, in, keys, configured)
		in.Replacing = o.Rotating || len(o.Input.Rotations) > 0 || keys.Changing()
		in.State = r.change(ctx, o, in, configured)
	}
	o.Input.Schedules, err = backups.Conditions(ctx, r.Client, o.Cluster)
	o.Done(ctx, "backups", err)
	if certified {
		r.inspect(ctx, o, in)
	}
}

// validate checks the spec. An invalid spec is a result, and not an error: the status reports it, and nothing that
// depends on the spec is changed.
func (r *Reconciler) validate(o *outcome.Outcome) {
	if until, err := o.Cluster.PausedUntil(); err == nil {
		o.RequeueAt(until)
	}
	o.Input.Invalid = r.Checks.Spec(o.Input.State)
	if o.Input.Invalid == nil && o.Input.State.Image == "" {
		o.Input.Invalid = errors.New("spec.image is empty and the operator has no default image")
	}
}

// configure stores the configuration for the pods, with the encryption at rest. It reports whether pods may be created
// with it.
func (r *Reconciler) configure(
	ctx context.Context, o *outcome.Outcome,
) (files desired.Configuration, keys encryption.State, configured bool) {
	const step = "configuration"
	if !o.MayChange() {
		return files, keys, true
	}
	atRest, err := atrest.EnsureKeys(ctx, r.objects(), o.Input.State, o.Input.Now)
	o.Input.Undecryptable = atRest.Undecryptable
	o.Lost(atRest.Lost)
	o.RequeueAt(atRest.Due...)
	files.Encryption, files.Sockets = atRest.Configuration, atRest.Sockets
	if !o.Done(ctx, step, err) || !o.MayChange() {
		return files, atRest.State, err == nil
	}
	steps := configuration.Steps{Objects: r.objects(), Checks: r.Checks}
	result, err := steps.Ensure(ctx, o.Input.State, files)
	files.Files, files.Static = result.Files, result.Static
	o.Input.ConfigurationErr, o.Input.Invalid = result.Rejected, result.Invalid
	return files, atRest.State, o.Done(ctx, step, err)
}

// expose maintains the objects through which the cluster is reached, and in mode Extension its access to the host. It
// reports whether certificates may be issued for the Services.
func (r *Reconciler) expose(ctx context.Context, o *outcome.Outcome) (services network.Services, exposed bool) {
	exposed = true
	if o.MayChange() {
		var err error
		services, err = network.EnsureServices(ctx, r.objects(), o.Cluster)
		o.Input.Endpoint = services.Endpoint
		exposed = o.Done(ctx, "services", err)
	}
	if o.MayChange() {
		o.Done(ctx, "network policies", network.EnsurePolicies(ctx, r.objects(), o.Cluster, r.OperatorNamespace))
	}
	if o.MayChange() {
		o.Done(ctx, "host access", apiservices.EnsureHostAccess(ctx, r.objects(), o.Cluster, r.Host))
	}
	return services, exposed
}

// certify maintains the certificates and keys. The credentials are incomplete if the cluster may not be changed.
func (r *Reconciler) certify(
	ctx context.Context, o *outcome.Outcome, services network.Services,
) (credentials.Set, bool) {
	result, err := certificates.Ensure(ctx, r.objects(), certificates.Input{
		State: o.Input.State, Service: services.Clients, Endpoint: services.Endpoint,
		MayChange: o.MayChange(), Now: o.Input.Now,
	})
	o.Input.Certificates, o.Input.UserCertificateErr = result.Expiries, result.UserCertificateErr
	for _, expiry := range result.Expiries {
		o.RequeueAt(expiry.Renewal)
	}
	o.Lost(result.Lost)
	return result.Credentials, o.Done(ctx, "certificates", err)
}

// connect publishes the credentials of administrators and companions, and reads the members of etcd. It returns the
// observation with the members, or with the reason why they are unknown.
func (r *Reconciler) connect(
	ctx context.Context, o *outcome.Outcome, services network.Services, in members.Input,
) members.Observation {
	if o.MayChange() {
		o.Done(ctx, "kubeconfig",
			certificates.EnsureKubeconfig(ctx, r.objects(), o.Cluster, services.Endpoint, in.Credentials))
	}
	if o.MayChange() {
		steps := companions.Steps{Objects: r.objects(), Connect: r.Connect}
		result, err := steps.Ensure(ctx, companions.Input{
			State: o.Input.State, Credentials: in.Credentials, Service: services.Clients,
			Endpoint: services.Endpoint, Now: o.Input.Now,
		})
		o.Input.Companions, o.IntentStored = result.Statuses, o.IntentStored || result.Announced
		o.RequeueAt(result.Due)
		o.Done(ctx, "companions", err)
	}
	observation, err := members.ReadMembers(ctx, r.Etcd, in.Observation, in.Credentials, o.Input.Now)
	o.Input.State = observation.State
	if o.Done(ctx, "etcd", err) && o.MayChange() {
		o.Done(ctx, "member records", volumes.Record(ctx, r.objects(), observation.State))
	}
	return observation
}

// protect maintains what keeps the replicas and their data. It returns the size of the smallest volume.
func (r *Reconciler) protect(ctx context.Context, o *outcome.Outcome) (volumeSize int64) {
	if o.MayChange() {
		o.Done(ctx, "disruption budget", network.EnsureBudget(ctx, r.objects(), o.Input.State))
	}
	// This step also removes owner references of a cluster that may not be changed.
	o.Done(ctx, "ownership", retention.EnsureOwnership(ctx, r.objects(), o.Input.State, o.MayChange()))
	if o.MayChange() {
		var err error
		volumeSize, o.Input.VolumeErr, err = volumes.Expand(ctx, r.objects(), o.Input.State)
		o.Done(ctx, "volumes", err)
	}
	return volumeSize
}

// prepare annotates pods with the certificates that they reload, and prepares the data of members in pods: from a
// backup, or after the loss of the quorum. It reports whether no pod is known to prepare the data of a recovery.
func (r *Reconciler) prepare(
	ctx context.Context, o *outcome.Outcome, in members.Input, configured bool,
) (recoveryPodAbsent bool) {
	if configured && o.MayChange() {
		hash := in.Credentials.MountedHash(o.Cluster, in.Configuration)
		o.Done(ctx, "certificate annotations", certificates.AnnotatePods(ctx, r.objects(), in.State, hash))
	}
	if o.MayChange() {
		var err error
		o.Restored, err = restore.Restore(ctx, r.objects(), in.State, o.Input.Now)
		o.Done(ctx, "restore", err)
	}
	if o.MayChange() {
		var err error
		recoveryPodAbsent, err = recovery.Recover(ctx, r.objects(), in.State, o.Input.Now)
		o.Done(ctx, "recovery", err)
	}
	return recoveryPodAbsent
}

// rotate decides on the stages of rotations. It returns the pods that have to restart to use new credentials.
func (r *Reconciler) rotate(
	ctx context.Context, o *outcome.Outcome, in members.Input, keys encryption.State, configured bool,
) map[string]bool {
	restart, decided := map[string]bool{}, false
	if o.MayChange() {
		result, err := rotations.Plan(ctx, r.objects(), rotations.PlanInput{
			State: in.State, Credentials: in.Credentials, Now: o.Input.Now,
		})
		o.AddRotations(result)
		for _, name := range result.Restart {
			restart[name] = true
		}
		decided = o.Done(ctx, "rotation", err)
	}
	if configured && o.MayChange() {
		steps := atrest.Steps{Objects: r.objects(), Clock: r.Clock}
		result, err := steps.Plan(ctx, atrest.Input{
			State: in.State, Credentials: in.Credentials, Encryption: keys,
			Configuration: in.Configuration.Encryption, Now: o.Input.Now,
		})
		if result.Undecryptable != nil {
			o.Input.Undecryptable = *result.Undecryptable
		}
		o.AddRotations(result.Result)
		for _, name := range result.Restart {
			restart[name] = true
		}
		o.Input.RotationsUnknown = !o.Done(ctx, "encryption", err) || !decided
	}
	return restart
}

// change executes the actions on pods, claims and members, also if the members are unknown, for example to bootstrap,
// and then registers API services. It returns the last state that could be read.
func (r *Reconciler) change(
	ctx context.Context, o *outcome.Outcome, in members.Input, configured bool,
) *observed.State {
	state := in.State
	if configured && !o.Restored && o.MayChange() {
		steps := members.Steps{Objects: r.objects(), Pool: r.Etcd, Clock: r.Clock, Image: r.Image}
		result, err := steps.TakeActions(ctx, in)
		o.Input.State, o.Input.Action, o.Input.Held, o.Input.Rejected =
			result.State, result.Action, result.Held, result.Rejected
		o.Updated = result.Updated
		if result.State != nil {
			state = result.State
		}
		o.RequeueAt(result.Due)
		for _, success := range result.Defragmented {
			r.Metrics.Defragmented(client.ObjectKeyFromObject(o.Cluster), success)
		}
		if result.UpgradeErr != nil {
			o.Failed(ctx, result.UpgradeErr)
		}
		o.Done(ctx, "membership", err)
	}
	if o.MayChange() {
		steps := apiservices.Steps{Objects: r.objects(), Connect: r.Connect, Discover: r.Discover}
		result, err := steps.Ensure(ctx, apiservices.Input{State: state, Credentials: in.Credentials, Now: o.Input.Now})
		o.Input.APIServices, o.IntentStored = result.Statuses, o.IntentStored || result.Announced
		o.RequeueAt(result.Due)
		o.Done(ctx, "API services", err)
	}
	return state
}

// inspect reads for the status what only replicas know. The version of Kubernetes is read once no action is pending. An
// error is logged but not reported, because the readiness of pods already shows a replica that does not respond.
func (r *Reconciler) inspect(ctx context.Context, o *outcome.Outcome, in members.Input) {
	idle := o.Input.Action.Kind == membership.Wait && o.Input.Action.Reason == ""
	if idle && !r.Checks.VersionKnown(in.State) {
		versions, err := in.State.Versions(ctx, in.Credentials.Roots(), in.Credentials.ServerName)
		if versions.Reported != "" {
			r.Checks.VersionRead(in.State)
		}
		if err != nil {
			ctrl.LoggerFrom(ctx).V(1).Info("Version of the API servers is unknown", "reason", err.Error())
		}
		o.Input.Versions = versions
	}
	names, due, err := members.WithoutEtcd(ctx, in.State, in.Credentials, o.Input.Now)
	if o.Done(ctx, "external etcd", err) {
		o.Input.WithoutEtcd = names
		o.RequeueAt(due...)
	}
}
