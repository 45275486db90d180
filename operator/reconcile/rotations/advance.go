package rotations

import (
	"context"
	"fmt"
	"strings"
	"time"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/pki"
	"quorate.dev/operator/reconcile/credentials"
	"quorate.dev/operator/reconcile/owned"
	"quorate.dev/operator/reconcile/stages"
	"quorate.dev/operator/rotation"
)

// AuthorityName returns the common name of the first authority that the operator creates for a trust domain.
func AuthorityName(cluster *v1alpha1.ApiServerCluster, domain string) string {
	return cluster.Namespace + "/" + cluster.Name + " " + domain
}

// IsAuthorityName reports whether the operator has created an authority with a common name for a trust domain: the
// first authority of the domain or a successor.
func IsAuthorityName(cluster *v1alpha1.ApiServerCluster, domain, common string) bool {
	name := AuthorityName(cluster, domain)
	return common == name || strings.HasPrefix(common, name+"@")
}

// AdvanceAuthority returns the bundle of a trust domain in the present stage of the rotation of authorities. It is
// idempotent in each stage: TrustBoth adds a successor only if the bundle has none and the domain is due, Reissue and
// DropOld do nothing if the bundle is already promoted or dropped. DropOld promotes first, because a Secret that was
// restored from a copy of an earlier stage still has its successor.
func AdvanceAuthority(
	cluster *v1alpha1.ApiServerCluster, c credentials.Set, domain string, now time.Time,
) (pki.Bundle, error) {
	bundle := c.Bundles[domain]
	switch stage, _ := stages.Authorities.Stage(cluster); stage {
	case rotation.TrustBoth:
		if bundle.Next != nil || len(bundle.Previous) > 0 || due(cluster, c, domain, now) == "" {
			return bundle, nil
		}
		next, err := Successor(cluster, c, domain, now)
		if err != nil {
			return bundle, err
		}
		return bundle.Add(next, now)
	case rotation.Reissue:
		return bundle.Promote(), nil
	case rotation.DropOld:
		return bundle.Promote().Drop(), nil
	}
	return bundle, nil
}

// Successor returns the next authority of a trust domain: the user's, or a new one. Authorities that the operator
// creates have unique names, so that the names in a TLS handshake show whether an API server trusts the new one.
func Successor(
	cluster *v1alpha1.ApiServerCluster, c credentials.Set, domain string, now time.Time,
) (pki.Authority, error) {
	if authority, ok := c.UserAuthorities[domain]; ok {
		return authority, nil
	}
	name := fmt.Sprintf("%s@%d", AuthorityName(cluster, domain), now.Unix())
	return pki.NewAuthority(name, cluster.AuthorityLifetime(), now)
}

// RestartAuthorities enters the stage TrustBoth again because the key of the new authority was lost in a later stage.
// It then returns an ErrStale, because the Secrets must not be changed before the next reconciliation. In other stages
// it does nothing: the recovered bundle has a successor, as in TrustBoth, and without a stage it begins a rotation.
func RestartAuthorities(
	ctx context.Context, objects owned.Objects, cluster *v1alpha1.ApiServerCluster, reason string, now time.Time,
) error {
	if stage, _ := stages.Authorities.Stage(cluster); stage != rotation.Reissue && stage != rotation.DropOld {
		return nil
	}
	decision := rotation.Decision{Next: rotation.TrustBoth, Reason: reason}
	if err := stages.Enter(ctx, objects, cluster, stages.Authorities, decision, now); err != nil {
		return err
	}
	return fmt.Errorf("%w: %s", owned.ErrStale, reason)
}

// AdvanceKeys returns existing service-account keys in the present stage of their rotation, and reports whether a key
// was created. It is idempotent in each stage. In TrustBoth it creates no key while a predecessor is left. That is the
// case if a rotation was interrupted after Reissue and the status was lost, or if a backup of that time was restored:
// the stages then finish the former rotation.
func AdvanceKeys(cluster *v1alpha1.ApiServerCluster, keys pki.Keys) (advanced pki.Keys, created bool, err error) {
	switch stage, _ := stages.ServiceAccountKeys.Stage(cluster); stage {
	case rotation.TrustBoth:
		if keys.Next != nil || len(keys.Previous) > 0 {
			return keys, false, nil
		}
		next, err := pki.NewServiceAccountKey()
		if err != nil {
			return keys, false, err
		}
		return keys.Add(next), true, nil
	case rotation.Reissue:
		return keys.Promote(), false, nil
	case rotation.DropOld:
		return keys.Promote().Drop(), false, nil
	}
	return keys, false, nil
}
