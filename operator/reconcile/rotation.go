package reconcile

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/cert"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/observed"
	"quorate.dev/operator/pki"
	"quorate.dev/operator/rotation"
	"quorate.dev/operator/status"
)

func authoritiesOf(cluster *v1alpha1.ApiServerCluster) *v1alpha1.Rotation {
	if cluster.Status.Rotations == nil {
		return nil
	}
	return cluster.Status.Rotations.Authorities
}

func keysOf(cluster *v1alpha1.ApiServerCluster) *v1alpha1.Rotation {
	if cluster.Status.Rotations == nil {
		return nil
	}
	return cluster.Status.Rotations.ServiceAccountKeys
}

func stageOf(r *v1alpha1.Rotation) (rotation.Stage, time.Time) {
	if r == nil {
		return rotation.None, time.Time{}
	}
	return rotation.Stage(r.Stage), r.StageSince.Time
}

// planRotations decides on the stages of both rotations and on the pods to restart. It enters a stage by writing it to
// the status: the next reconciliation changes the Secrets accordingly.
func (r *Reconciler) planRotations(ctx context.Context, p *pass) error {
	if !p.cluster.ExternalEtcd() && !p.cluster.Bootstrapped() {
		return nil
	}
	authorities, keys := authorityRotation(p), keyRotation(p)
	if authorities.Stage == rotation.None && keys.Stage == rotation.None && authorities.Due == "" && keys.Due == "" {
		return nil
	}
	if err := r.observeCredentials(ctx, p, &authorities, &keys); err != nil {
		return err
	}
	for _, one := range []struct {
		kind        rotationKind
		observation rotation.Observation
	}{{authorityKind, authorities}, {keyKind, keys}} {
		d := rotation.Plan(one.observation)
		if d.Changed(one.observation) {
			if err := r.enter(ctx, p, one.kind, d); err != nil {
				return err
			}
		}
		p.follow(one.kind, d)
	}
	return nil
}

// follow records a decision for the later steps and the status.
func (p *pass) follow(kind rotationKind, d rotation.Decision) {
	for _, name := range d.Restart {
		p.restart[name] = true
	}
	if d.Next == rotation.None {
		return
	}
	p.input.Rotations = append(p.input.Rotations, status.Rotation{
		Name: kind.name, Stage: string(d.Next), Message: d.Waiting,
	})
	p.requeueAt(d.Until)
	if d.Until.IsZero() {
		p.rotating = true
	}
}

// authorityRotation returns the observations for the rotation of the authorities that need no probes of replicas.
func authorityRotation(p *pass) rotation.Observation {
	o := rotation.Observation{Now: p.input.Now, Overlap: p.cluster.AuthorityOverlap()}
	if p.cluster.IsExtension() {
		o.Publication = caBundlePublication
	}
	o.Stage, o.Since = stageOf(authoritiesOf(p.cluster))
	for _, domain := range desired.Domains(p.cluster) {
		if bundle := p.certificates.bundles[domain]; bundle.Next != nil || len(bundle.Previous) > 0 {
			o.Due = "resuming a replacement that is not in the status"
			if bundle.SignerLost() {
				o.Due = "the key in Secret " + desired.SecretName(p.cluster, domain) + " was lost"
			}
			return o
		}
		if o.Due == "" {
			o.Due = due(p, domain)
		}
	}
	p.requeueAt(ptrTime(p.cluster.Spec.Certificates.Authorities.RotateBefore))
	return o
}

// caBundlePublication is the time for the API servers of the host to load changed APIServices.
const caBundlePublication = 10 * time.Second

func keyRotation(p *pass) rotation.Observation {
	o := rotation.Observation{
		Now: p.input.Now, Publication: p.cluster.KeyPublication(), Overlap: desired.TokenOverlap(p.cluster),
	}
	o.Stage, o.Since = stageOf(keysOf(p.cluster))
	var renewal time.Time
	if age := p.cluster.Spec.Certificates.ServiceAccountKeys.MaxAge; age != nil {
		renewal = p.certificates.keyCreated.Add(age.Duration)
	}
	if p.cluster.IsExtension() {
		return o // clients use tokens of the host
	}
	request := p.cluster.Spec.Certificates.ServiceAccountKeys.RotateBefore
	o.Due = rotation.Due(p.certificates.keyCreated, renewal, timeOf(request), p.input.Now)
	if keys := p.certificates.keys; keys.Next != nil || len(keys.Previous) > 0 {
		o.Due = "resuming a replacement that is not in the status"
	}
	p.requeueAt(renewal)
	p.requeueAt(ptrTime(request))
	return o
}

func timeOf(t *metav1.Time) *time.Time {
	if t == nil {
		return nil
	}
	return &t.Time
}

func ptrTime(t *metav1.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.Time
}

// observeCredentials adds the credentials that each replica and kubeconfig uses to the observations of rotations in
// progress.
func (r *Reconciler) observeCredentials(ctx context.Context, p *pass, authorities, keys *rotation.Observation) error {
	if authorities.Stage == rotation.None && keys.Stage == rotation.None {
		return nil
	}
	probe, err := p.probe()
	if err != nil {
		return err
	}
	want := p.wanted()
	for i, used := range p.state.Credentials(ctx, probe) {
		pod := &p.state.Pods[i]
		replica := rotation.Replica{Name: pod.Name, Created: pod.CreationTimestamp.Time}
		if used.Err != nil {
			replica.Unreachable = used.Err.Error()
		}
		signing := replica
		replica.Missing = want.missing(observed.RunsMember(pod), used)
		if !p.cluster.ExternalEtcd() && pod.Annotations[desired.AuthorityHashAnnotation] != want.authorityHash {
			replica.Static = []string{"etcd reads its authorities only when it starts"}
		}
		if !slices.Equal(used.ServiceAccountKeyID, want.keyIDs) {
			signing.Missing = []string{"service-account keys"}
		}
		authorities.Replicas, keys.Replicas = append(authorities.Replicas, replica), append(keys.Replicas, signing)
	}
	if authorities.Kubeconfigs, err = r.outdatedKubeconfigs(ctx, p); err != nil {
		return err
	}
	if authorities.Companions, err = r.outdatedCompanions(ctx, p); err != nil {
		return err
	}
	keys.Companions = authorities.Companions
	bundles, err := r.outdatedAPIServices(ctx, p)
	authorities.Kubeconfigs = append(authorities.Kubeconfigs, bundles...)
	return err
}

// probe returns the connections to replicas.
func (p *pass) probe() (probe observed.Probe, err error) {
	probe.Tokens = !p.cluster.IsExtension()
	admin := p.certificates.leaves[desired.AdminSecret]
	probe.Serving, err = clientConfig(p.certificates.roots(), admin, p.certificates.name)
	if err != nil || p.cluster.ExternalEtcd() {
		return probe, err
	}
	probe.Etcd, err = clientConfig(p.certificates.bundles[desired.EtcdClientDomain].Trusted(),
		p.certificates.leaves[desired.OperatorEtcdSecret], desired.MembersDomain(p.cluster))
	return probe, err
}

func clientConfig(trusted []byte, credentials pki.Pair, name string) (*tls.Config, error) {
	pair, err := tls.X509KeyPair(credentials.Certificate, credentials.Key)
	if err != nil {
		return nil, fmt.Errorf("using the operator's client certificate: %w", err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(trusted)
	return &tls.Config{
		Certificates: []tls.Certificate{pair}, RootCAs: roots, ServerName: name, MinVersion: tls.VersionTLS12,
	}, nil
}

// wanted contains the credentials that replicas use once they have loaded the present Secrets.
type wanted struct {
	serving, etcdServing         string
	authorities, etcdAuthorities [][]byte
	keyIDs                       []string
	authorityHash                string
	// own is part of the names of the operator's client authorities; nil: there are no others. API servers in mode
	// Extension also accept the client authorities of their host.
	own []byte
}

func (p *pass) wanted() wanted {
	c := p.certificates
	var own []byte
	if p.cluster.IsExtension() {
		own = []byte(authorityName(p.cluster, desired.ClientDomain))
	}
	return wanted{
		own:             own,
		serving:         chainOf(c.leaves[desired.ServingSecret]),
		etcdServing:     chainOf(c.leaves[desired.EtcdServerSecret]),
		authorities:     slices.Concat(c.bundles[desired.ClientDomain].Subjects(), c.bundles[desired.FrontProxyDomain].Subjects()),
		etcdAuthorities: c.bundles[desired.EtcdClientDomain].Subjects(),
		keyIDs:          pki.KeyIDs(c.keys.Verifying()),
		authorityHash:   desired.AuthorityHash(p.cluster, c.bundles),
	}
}

func chainOf(pair pki.Pair) string {
	chain, err := cert.ParseCertsPEM(pair.Certificate)
	if err != nil {
		return ""
	}
	return observed.ChainFingerprint(chain)
}

// missing describes what a replica that was probed does not use yet.
func (w wanted) missing(member bool, used observed.Credentials) (missing []string) {
	if used.Err != nil {
		return nil
	}
	if used.Serving != w.serving {
		missing = append(missing, "serving certificate")
	}
	if !sameNames(w.relevant(used.Authorities), w.authorities) {
		missing = append(missing, "authorities of clients")
	}
	if member && used.EtcdServing != w.etcdServing {
		missing = append(missing, "etcd's serving certificate")
	}
	return missing
}

// relevant returns the names of a replica's client authorities without those of its host.
func (w wanted) relevant(names [][]byte) [][]byte {
	if w.own == nil {
		return names
	}
	return slices.DeleteFunc(slices.Clone(names), func(name []byte) bool {
		isWanted := slices.ContainsFunc(w.authorities, func(other []byte) bool { return bytes.Equal(name, other) })
		return !isWanted && !bytes.Contains(name, w.own)
	})
}

// sameNames reports whether two lists have the same names in any order. A name can occur several times: authorities of
// the user may keep their name when they are replaced.
func sameNames(a, b [][]byte) bool {
	sorted := func(names [][]byte) [][]byte { return slices.SortedFunc(slices.Values(names), bytes.Compare) }
	return slices.EqualFunc(sorted(a), sorted(b), bytes.Equal)
}

// outdatedKubeconfigs returns the Secrets of ApiServerKubeconfigs that do not have the present authorities.
func (r *Reconciler) outdatedKubeconfigs(ctx context.Context, p *pass) ([]string, error) {
	list := &v1alpha1.ApiServerKubeconfigList{}
	if err := r.Reader.List(ctx, list, client.InNamespace(p.cluster.Namespace)); err != nil {
		return nil, fmt.Errorf("listing kubeconfigs: %w", err)
	}
	var outdated []string
	for i := range list.Items {
		kubeconfig := &list.Items[i]
		if kubeconfig.Spec.ClusterRef.Name != p.cluster.Name || kubeconfig.DeletionTimestamp != nil {
			continue
		}
		secret := &corev1.Secret{}
		err := r.Reader.Get(ctx, client.ObjectKey{Namespace: kubeconfig.Namespace, Name: desired.KubeconfigSecretName(kubeconfig)}, secret)
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("reading the Secret of kubeconfig %s: %w", kubeconfig.Name, err)
		}
		if err != nil || !metav1.IsControlledBy(secret, kubeconfig) {
			continue // nothing was published
		}
		if !desired.KubeconfigCurrent(secret, p.certificates.trusted, p.certificates.bundles[desired.ClientDomain]) {
			outdated = append(outdated, secret.Name)
		}
	}
	return outdated, nil
}

// rotationKind is a kind of rotated credentials.
type rotationKind struct {
	name   string
	field  func(*v1alpha1.Rotations) **v1alpha1.Rotation
	events map[rotation.Stage][2]string // reason and message
}

var authorityKind = rotationKind{
	name:  "certificate authorities",
	field: func(r *v1alpha1.Rotations) **v1alpha1.Rotation { return &r.Authorities },
	events: map[rotation.Stage][2]string{
		rotation.TrustBoth: {v1alpha1.ReasonTrustingNewAuthorities, "Created new certificate authorities; trusting both the new and the old ones"},
		rotation.Reissue:   {v1alpha1.ReasonReissuingCertificates, "Reissuing all certificates with the new certificate authorities"},
		rotation.DropOld:   {v1alpha1.ReasonDroppingOldAuthorities, "Removing trust in the old certificate authorities"},
		rotation.None:      {v1alpha1.ReasonAuthoritiesRotated, "Replaced the certificate authorities"},
	},
}

var keyKind = rotationKind{
	name:  "service-account keys",
	field: func(r *v1alpha1.Rotations) **v1alpha1.Rotation { return &r.ServiceAccountKeys },
	events: map[rotation.Stage][2]string{
		rotation.TrustBoth: {v1alpha1.ReasonTrustingNewServiceAccountKey, "Created a new service-account key; accepting tokens of both the new and the old one"},
		rotation.Reissue:   {v1alpha1.ReasonSigningWithNewServiceAccountKey, "Signing service-account tokens with the new key"},
		rotation.DropOld:   {v1alpha1.ReasonDroppingOldServiceAccountKey, "Removing the old service-account key; its tokens become invalid"},
		rotation.None:      {v1alpha1.ReasonServiceAccountKeyRotated, "Replaced the service-account key"},
	},
}

var encryptionKind = rotationKind{
	name:  "encryption keys",
	field: func(r *v1alpha1.Rotations) **v1alpha1.Rotation { return &r.EncryptionKeys },
	events: map[rotation.Stage][2]string{
		rotation.TrustBoth: {v1alpha1.ReasonTrustingNewEncryptionKey, "Preparing API servers to read objects written with the new encryption configuration"},
		rotation.Reissue:   {v1alpha1.ReasonEncryptingWithNewKey, "Encrypting with the new configuration and rewriting stored objects"},
		rotation.DropOld:   {v1alpha1.ReasonDroppingOldEncryptionKey, "Removing the old encryption configuration"},
		rotation.None:      {v1alpha1.ReasonEncryptionKeyRotated, "Replaced the encryption configuration"},
	},
}

// enter writes a stage to the status. It fails with a conflict if the cluster was updated since it was read.
func (r *Reconciler) enter(ctx context.Context, p *pass, kind rotationKind, d rotation.Decision) error {
	before := p.cluster.DeepCopy()
	rotations := &v1alpha1.Rotations{}
	if p.cluster.Status.Rotations != nil {
		rotations = p.cluster.Status.Rotations
	}
	now := metav1.NewTime(p.input.Now)
	switch field := kind.field(rotations); {
	case d.Next == rotation.None:
		*field = nil
	case *field == nil:
		*field = &v1alpha1.Rotation{Stage: string(d.Next), StageSince: now, StartedAt: now}
	default:
		(*field).Stage, (*field).StageSince, (*field).Rewrite = string(d.Next), now, nil
	}
	p.cluster.Status.Rotations = rotations
	if *rotations == (v1alpha1.Rotations{}) {
		p.cluster.Status.Rotations = nil
	}
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := r.Client.Status().Patch(ctx, p.cluster, patch); err != nil {
		return fmt.Errorf("entering stage %q: %w", d.Next, err)
	}
	p.entered = true
	text := kind.events[d.Next]
	ctrl.LoggerFrom(ctx).Info("Entered stage of a rotation", "rotated", kind.name, "stage", d.Next, "reason", d.Reason)
	r.event(p.cluster, event{reason: text[0], action: "Rotate", message: text[1] + ": " + d.Reason})
	return nil
}
