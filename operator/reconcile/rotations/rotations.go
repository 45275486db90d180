package rotations

import (
	"context"
	"time"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/observed"
	"quorate.dev/operator/reconcile/credentials"
	"quorate.dev/operator/reconcile/owned"
	"quorate.dev/operator/reconcile/stages"
	"quorate.dev/operator/rotation"
)

// PlanInput is what Plan depends on.
type PlanInput struct {
	State       *observed.State
	Credentials credentials.Set
	Now         time.Time
}

// Plan decides on the stages of the rotations of authorities and of service-account keys, and on pods to restart. It
// enters a stage only by writing it to the status. The next reconciliation then changes the Secrets, so that a crash
// cannot leave Secrets of a stage that the status does not know. The result is also valid if Plan returns an error.
func Plan(ctx context.Context, objects owned.Objects, in PlanInput) (result stages.Result, err error) {
	cluster := in.State.Cluster
	if !cluster.ExternalEtcd() && !cluster.Bootstrapped() {
		return result, nil
	}
	authorities, due := in.authorityRotation()
	keys, keysDue := in.keyRotation()
	result.Due = append(due, keysDue...)
	if authorities.Stage == rotation.None && keys.Stage == rotation.None && authorities.Due == "" && keys.Due == "" {
		return result, nil
	}
	if err := in.observe(ctx, objects.Reader, &authorities, &keys); err != nil {
		return result, err
	}
	if err := result.Apply(
		ctx, objects, cluster, stages.Authorities, authorities, rotation.Plan(authorities),
	); err != nil {
		return result, err
	}
	return result, result.Apply(ctx, objects, cluster, stages.ServiceAccountKeys, keys, rotation.Plan(keys))
}

// authorityRotation returns the observation for the rotation of the authorities, without what observe adds, and when it
// becomes due. All trust domains have one common stage, because all of them wait for the same replicas: a rotation
// begins if any domain is due. A bundle that already has a successor or a predecessor is in the middle of a rotation,
// whatever the status says.
func (in PlanInput) authorityRotation() (o rotation.Observation, times []time.Time) {
	cluster := in.State.Cluster
	o = rotation.Observation{Now: in.Now, Overlap: cluster.AuthorityOverlap()}
	if cluster.IsExtension() {
		o.Publication = caBundlePublication
	}
	o.Stage, o.Since = stages.Authorities.Stage(cluster)
	for _, domain := range desired.Domains(cluster) {
		if bundle := in.Credentials.Bundles[domain]; bundle.Next != nil || len(bundle.Previous) > 0 {
			o.Due = "resuming a replacement that is not in the status"
			if bundle.SignerLost() {
				o.Due = "the key in Secret " + desired.SecretName(cluster, domain) + " was lost"
			}
			return o, nil
		}
		if o.Due == "" {
			o.Due = due(cluster, in.Credentials, domain, in.Now)
		}
	}
	if request := cluster.Spec.Certificates.Authorities.RotateBefore; request != nil {
		times = []time.Time{request.Time}
	}
	return o, times
}

// due returns why the signer of a trust domain has to be replaced, or "". All authorities that the operator has created
// are replaced together. If the user has provided an authority, it is replaced only when the user provides another
// authority: the operator cannot renew it. If the user's authority cannot be used, the one in use stays, however old it
// is, because the spec does not permit an authority of the operator.
func due(cluster *v1alpha1.ApiServerCluster, c credentials.Set, domain string, now time.Time) string {
	if authority, ok := c.UserAuthorities[domain]; ok {
		if bundle := c.Bundles[domain]; !bundle.Signer.Equal(authority) {
			return "Secret " + desired.UserAuthoritySecret(cluster, domain) + " has another authority"
		}
		return ""
	}
	if desired.UserAuthoritySecret(cluster, domain) != "" {
		return "" // the user's authority cannot be used; the authority in use is kept
	}
	for _, other := range desired.Domains(cluster) {
		bundle, found := c.Bundles[other]
		if !found || desired.UserAuthoritySecret(cluster, other) != "" {
			continue
		}
		reason, _ := stages.Due(bundle.Signer.Created(), bundle.Signer.Renewal(),
			cluster.Spec.Certificates.Authorities.RotateBefore, now)
		if reason != "" {
			return reason
		}
	}
	return ""
}

// caBundlePublication is the time for the API servers of the host to load changed APIServices. It is the minimum
// duration of TrustBoth in mode Extension: an API server of the host that has not loaded the new caBundle would reject
// a serving certificate of the new authority.
const caBundlePublication = 10 * time.Second

// keyRotation returns the observation for the rotation of the service-account keys, without what observe adds, and when
// it becomes due. TrustBoth lasts at least for the publication period of the spec, so that verifiers which cache the
// JSON web key set have the new key before a token is signed with it. Reissue lasts as long as tokens of the old key
// may be valid.
func (in PlanInput) keyRotation() (o rotation.Observation, times []time.Time) {
	cluster, c := in.State.Cluster, in.Credentials
	o = rotation.Observation{
		Now: in.Now, Publication: cluster.KeyPublication(), Overlap: desired.TokenOverlap(cluster),
	}
	o.Stage, o.Since = stages.ServiceAccountKeys.Stage(cluster)
	var renewal time.Time
	if age := cluster.Spec.Certificates.ServiceAccountKeys.MaxAge; age != nil {
		renewal = c.KeyCreated.Add(age.Duration)
	}
	if cluster.IsExtension() {
		return o, nil // clients use tokens of the hosting cluster
	}
	o.Due, times = stages.Due(c.KeyCreated, renewal, cluster.Spec.Certificates.ServiceAccountKeys.RotateBefore, in.Now)
	if c.Keys.Next != nil || len(c.Keys.Previous) > 0 {
		o.Due = "resuming a replacement that is not in the status"
	}
	return o, times
}
