package reconcile

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/encryption"
	"quorate.dev/operator/observed"
	"quorate.dev/operator/rewrite"
	"quorate.dev/operator/rotation"
	"quorate.dev/operator/status"
)

// rewriteTime bounds the rewriting of stored objects in one reconciliation.
const rewriteTime = 5 * time.Second

func encryptionOf(cluster *v1alpha1.ApiServerCluster) *v1alpha1.Rotation {
	if cluster.Status.Rotations == nil {
		return nil
	}
	return cluster.Status.Rotations.EncryptionKeys
}

// ensureEncryptionKeys brings the encryption keys to the stage of their rotation. Only a new cluster encrypts from the
// start: in all others, every replica must be able to read the new form before one of them writes it.
func (r *Reconciler) ensureEncryptionKeys(ctx context.Context, p *pass) error {
	current := &corev1.Secret{}
	found, err := r.find(ctx, p.cluster, desired.SecretName(p.cluster, desired.EncryptionSecret), current)
	if err != nil {
		return err
	}
	if p.encryption, err = encryption.Parse(current.Data[desired.EncryptionStateKey]); err != nil {
		return err
	}
	if problem, err := r.lostEncryption(ctx, p, current); err != nil || problem != "" {
		if problem != "" {
			p.recordLost(desired.SecretName(p.cluster, desired.EncryptionSecret), problem, "stored objects are encrypted with its keys")
		}
		return err
	}
	wanted := p.wantedEncryption()
	starting := p.isNew() && !p.cluster.Restoring() // a restored cluster starts with the keys of the former one
	if !found && encryptionOf(p.cluster) == nil && (!starting || len(wanted.Resources) == 0) {
		return nil
	}
	state, stage := p.encryption, rotation.None
	if rotating := encryptionOf(p.cluster); rotating != nil {
		stage = rotation.Stage(rotating.Stage)
	}
	switch {
	case starting && !state.Changing() && !state.Current.Same(wanted):
		state.Current, err = wanted.WithKey(state.Current, true, p.input.Now)
	case stage == rotation.TrustBoth && !state.Changing() && p.encryptionDue() != "":
		next, keyErr := wanted.WithKey(state.Current, p.encryptionKeyDue() != "", p.input.Now)
		state.Next, err = &next, keyErr
	case stage == rotation.Reissue:
		state = state.Promote()
	case stage == rotation.DropOld:
		state = state.Promote().Drop()
		err = r.forgetDecryption(ctx, p)
	}
	if err != nil {
		return fmt.Errorf("changing the encryption: %w", err)
	}
	if err := r.writeSecret(ctx, p.cluster, found, current, desired.EncryptionKeys(p.cluster, state)); err != nil {
		return err
	}
	p.encryption, p.configuration.Sockets = state, desired.Sockets(state)
	p.configuration.Encryption, err = state.Configuration()
	return err
}

// forgetDecryption removes the annotation DecryptAnnotation at the end of a change, so that it does not confirm a later one.
func (r *Reconciler) forgetDecryption(ctx context.Context, p *pass) error {
	if _, ok := p.cluster.Annotations[v1alpha1.DecryptAnnotation]; !ok || !p.mayChange() {
		return nil
	}
	before := p.cluster.DeepCopy()
	delete(p.cluster.Annotations, v1alpha1.DecryptAnnotation)
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := r.Client.Patch(ctx, p.cluster, patch); err != nil {
		return fmt.Errorf("removing the annotation %s: %w", v1alpha1.DecryptAnnotation, err)
	}
	return nil
}

// wantedEncryption returns the scheme of the spec. If the spec no longer encrypts a resource, and the user has not confirmed
// that its objects are decrypted, it is the scheme in use, and the status says why.
func (p *pass) wantedEncryption() encryption.Scheme {
	p.input.Undecryptable = desired.Undecryptable(p.cluster, p.encryption.Current)
	if len(p.input.Undecryptable) > 0 {
		return p.encryption.Current
	}
	return desired.EncryptionScheme(p.cluster)
}

// lostEncryption returns what is wrong with the Secret of the encryption keys if stored objects cannot be read without keys
// that it lacks, or "".
func (r *Reconciler) lostEncryption(ctx context.Context, p *pass, keys *corev1.Secret) (problem string, err error) {
	if len(keys.Data[desired.EncryptionStateKey]) == 0 {
		if lost, err := r.hasEncryption(ctx, p); err != nil || !lost {
			return "", err
		}
		return "is missing", nil
	}
	files := &corev1.Secret{}
	if _, err := r.find(ctx, p.cluster, desired.SecretName(p.cluster, desired.ConfigurationSecret), files); err != nil {
		return "", err
	}
	// Until stored objects are rewritten, keys that only decrypt are needed, too.
	stage, _ := stageOf(encryptionOf(p.cluster))
	if missing := desired.LackedKeys(p.encryption, files, stage == rotation.Reissue); len(missing) > 0 {
		return "lacks the keys " + strings.Join(missing, ", "), nil
	}
	return "", nil
}

// isNew reports whether the cluster has stored nothing yet.
func (p *pass) isNew() bool {
	return !p.cluster.ExternalEtcd() && !p.cluster.Bootstrapped() && len(p.state.Pods) == 0 && len(p.state.Claims) == 0
}

// hasEncryption reports whether replicas have, or had before the cluster was hibernated, an EncryptionConfiguration.
func (r *Reconciler) hasEncryption(ctx context.Context, p *pass) (bool, error) {
	if slices.ContainsFunc(p.state.Pods, func(pod corev1.Pod) bool { return desired.MountsEncryption(&pod) }) {
		return true, nil
	}
	if p.cluster.Spec.Encryption == nil || p.isNew() {
		return false, nil
	}
	files := &corev1.Secret{}
	found, err := r.find(ctx, p.cluster, desired.SecretName(p.cluster, desired.ConfigurationSecret), files)
	return found && desired.HasEncryption(files), err
}

// encryptionDue returns why the encryption configuration has to be replaced, or "".
func (p *pass) encryptionDue() string {
	wanted := p.wantedEncryption()
	if removed := p.encryption.Current.Uncovered(wanted); len(removed) > 0 {
		return "spec.encryption has changed, and the stored objects of " + strings.Join(removed, ", ") + " are decrypted"
	}
	if !p.encryption.Current.Same(wanted) {
		return "spec.encryption has changed"
	}
	return p.encryptionKeyDue()
}

// encryptionKeyDue returns why the encryption key has to be replaced, or "".
func (p *pass) encryptionKeyDue() string {
	spec := p.cluster.Spec.Encryption
	if spec == nil || spec.Provider == v1alpha1.KMSv2 || len(p.encryption.Current.Resources) == 0 {
		return ""
	}
	var renewal time.Time
	if age := spec.Keys.MaxAge; age != nil {
		renewal = p.encryption.Current.Created.Add(age.Duration)
	}
	p.requeueAt(renewal)
	p.requeueAt(ptrTime(spec.Keys.RotateBefore))
	return rotation.Due(p.encryption.Current.Created, renewal, timeOf(spec.Keys.RotateBefore), p.input.Now)
}

// planEncryption decides on the stage of a change of the encryption. Before the last stage it rewrites stored objects.
func (r *Reconciler) planEncryption(ctx context.Context, p *pass) error {
	if p.isNew() || !p.cluster.ExternalEtcd() && !p.cluster.Bootstrapped() || p.cluster.Hibernated() {
		return nil
	}
	o := rotation.Observation{Now: p.input.Now, Due: p.encryptionDue()}
	o.Stage, o.Since = stageOf(encryptionOf(p.cluster))
	if p.encryption.Changing() {
		o.Due = "resuming a replacement that is not in the status"
	}
	if o.Stage == rotation.None && o.Due == "" {
		return nil
	}
	if err := p.observeEncryption(ctx, &o); err != nil {
		return err
	}
	d := rotation.Plan(o)
	if o.Stage == rotation.Reissue && d.Next == rotation.DropOld {
		waiting, err := r.rewrite(ctx, p)
		if err != nil || waiting != "" {
			p.input.Rotations = append(p.input.Rotations, status.Rotation{
				Name: encryptionKind.name, Stage: string(o.Stage), Message: waiting,
			})
			p.rotating = true
			return err
		}
	}
	if d.Changed(o) {
		if err := r.enter(ctx, p, encryptionKind, d); err != nil {
			return err
		}
	}
	p.follow(encryptionKind, d)
	return nil
}

// observeEncryption adds the configuration that each replica uses.
func (p *pass) observeEncryption(ctx context.Context, o *rotation.Observation) error {
	if o.Stage == rotation.None {
		return nil
	}
	probe, err := p.probe()
	if err != nil {
		return err
	}
	want := observed.EncryptionHash(p.configuration.Encryption)
	for i, used := range p.state.Encryptions(ctx, probe) {
		pod := &p.state.Pods[i]
		replica := rotation.Replica{Name: pod.Name, Created: pod.CreationTimestamp.Time}
		switch {
		case used.Err != nil:
			replica.Unreachable = used.Err.Error()
		case want != "" && used.Hash != want:
			replica.Missing = []string{"encryption configuration"}
		}
		o.Replicas = append(o.Replicas, replica)
	}
	if len(o.Replicas) < p.cluster.ReplicaCount() {
		o.Replicas = append(o.Replicas, rotation.Replica{Name: "all replicas", Unreachable: "some have no pod"})
	}
	return nil
}

// rewrite rewrites stored objects through a ready replica and stores its progress in the status. It returns what the
// stage waits for, or "" once all objects are rewritten.
func (r *Reconciler) rewrite(ctx context.Context, p *pass) (waiting string, err error) {
	config, err := p.replicaConfig()
	if err != nil || config == nil {
		return "Waiting for a ready replica to rewrite stored objects", err
	}
	var at rewrite.Position
	if before := encryptionOf(p.cluster).Rewrite; before != nil {
		at = rewrite.Position{Resource: before.Resource, Continue: before.Continue, Objects: before.Objects}
	}
	rewriter := rewrite.Rewriter{Config: config, Patterns: p.encryption.Affected()}
	at, done, err := rewriter.Run(ctx, at, r.Clock.Now().Add(rewriteTime), r.Clock.Now)
	before := p.cluster.DeepCopy()
	encryptionOf(p.cluster).Rewrite = &v1alpha1.Rewrite{Resource: at.Resource, Continue: at.Continue, Objects: at.Objects}
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := errors.Join(err, r.Client.Status().Patch(ctx, p.cluster, patch)); err != nil || done {
		return "", err
	}
	return fmt.Sprintf("Rewriting stored objects: %d so far", at.Objects), nil
}

// replicaConfig returns the configuration of a client of a ready replica, or nil.
func (p *pass) replicaConfig() (*rest.Config, error) {
	for i := range p.state.Pods {
		pod := &p.state.Pods[i]
		if !observed.Ready(pod) || pod.Status.PodIP == "" {
			continue
		}
		admin := p.certificates.leaves[desired.AdminSecret]
		return &rest.Config{
			Host: "https://" + net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(desired.SecurePort)), QPS: -1,
			TLSClientConfig: rest.TLSClientConfig{
				ServerName: p.certificates.name, CAData: p.certificates.roots(), CertData: admin.Certificate, KeyData: admin.Key,
			},
			UserAgent: "quorate-operator", Timeout: time.Minute,
		}, nil
	}
	return nil, nil
}
