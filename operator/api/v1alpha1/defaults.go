package v1alpha1

import (
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Defaults of the schema, for objects that were stored without it.
const (
	defaultReplicas    = 3
	defaultStorageSize = "8Gi"
	maxDefaultVoters   = 5

	defaultReplaceUnhealthyAfter = 5 * time.Minute

	defaultFreePercent             = 50
	defaultMinFree                 = 100 << 20
	defaultDefragmentationInterval = time.Hour

	year                     = 365 * 24 * time.Hour
	defaultAuthorityOverlap  = 30 * 24 * time.Hour
	defaultKubeconfigValid   = 30 * 24 * time.Hour
	defaultLeafLifetime      = year
	defaultAuthorityLifetime = 10 * year
)

// ReplicaCount returns the desired number of API servers.
func (c *ApiServerCluster) ReplicaCount() int {
	if c.Spec.Replicas == nil {
		return defaultReplicas
	}
	return int(*c.Spec.Replicas)
}

// Hibernated reports whether spec.replicas is 0.
func (c *ApiServerCluster) Hibernated() bool { return c.ReplicaCount() == 0 }

// VoterCount returns the desired number of voting members of the embedded etcd, 0 with an external etcd.
func (c *ApiServerCluster) VoterCount() int {
	switch embedded := c.Spec.Etcd.Embedded; {
	case c.ExternalEtcd():
		return 0
	case embedded != nil && embedded.Members != nil:
		return int(*embedded.Members)
	}
	return defaultVoters(c.ReplicaCount())
}

// defaultVoters returns the largest of 1, 3 and 5 that does not exceed the number of replicas.
func defaultVoters(replicas int) int {
	voters := min(replicas, maxDefaultVoters)
	if voters%2 == 0 {
		voters--
	}
	return max(voters, 1)
}

// ReplaceUnhealthyAfter returns the time for which a member may be unhealthy before it is replaced.
func (c *ApiServerCluster) ReplaceUnhealthyAfter() time.Duration {
	if c.Spec.Etcd.Embedded == nil {
		return defaultReplaceUnhealthyAfter
	}
	return duration(c.Spec.Etcd.Embedded.ReplaceUnhealthyAfter, defaultReplaceUnhealthyAfter)
}

// DefragmentationLimits returns whether and when databases are defragmented: the unused share of the file in percent,
// the unused bytes, and the time between two defragmentations of the same member.
func (c *ApiServerCluster) DefragmentationLimits() (enabled bool, percent int, bytes int64, interval time.Duration) {
	if c.ExternalEtcd() {
		return false, 0, 0, 0
	}
	var d Defragmentation
	if c.Spec.Etcd.Embedded != nil {
		d = c.Spec.Etcd.Embedded.Defragmentation
	}
	percent, bytes = defaultFreePercent, defaultMinFree
	if d.FreePercent != nil {
		percent = int(*d.FreePercent)
	}
	if !d.MinFree.IsZero() {
		bytes = d.MinFree.Value()
	}
	return d.Mode != DisabledDefragmentation, percent, bytes, duration(d.Interval, defaultDefragmentationInterval)
}

// ExternalEtcd reports whether the cluster uses an etcd that the operator does not manage.
func (c *ApiServerCluster) ExternalEtcd() bool { return c.Spec.Etcd.External != nil }

// StorageSize returns the desired size of each member's volume.
func (c *ApiServerCluster) StorageSize() resource.Quantity {
	if c.Spec.Storage.Size.IsZero() {
		return resource.MustParse(defaultStorageSize)
	}
	return c.Spec.Storage.Size
}

// Bootstrapped reports whether the initial members of the embedded etcd have formed a quorum.
func (c *ApiServerCluster) Bootstrapped() bool {
	return c.Status.Membership != nil && c.Status.Membership.Bootstrapped
}

// Restoring reports whether a backup has to be restored before the cluster starts.
func (c *ApiServerCluster) Restoring() bool {
	return c.Spec.Restore != nil && !c.Bootstrapped() && (c.Status.Restore == nil || !c.Status.Restore.Completed)
}

// CertificateLifetime returns the lifetime of the certificates that the authorities sign.
func (c *ApiServerCluster) CertificateLifetime() time.Duration {
	return duration(c.Spec.Certificates.Lifetime, defaultLeafLifetime)
}

// AuthorityLifetime returns the lifetime of new authorities.
func (c *ApiServerCluster) AuthorityLifetime() time.Duration {
	return duration(c.Spec.Certificates.Authorities.Lifetime, defaultAuthorityLifetime)
}

// AuthorityOverlap returns how long old authorities stay trusted.
func (c *ApiServerCluster) AuthorityOverlap() time.Duration {
	return duration(c.Spec.Certificates.Authorities.Overlap, defaultAuthorityOverlap)
}

// KeyPublication returns how long a new service-account key is published before it signs.
func (c *ApiServerCluster) KeyPublication() time.Duration {
	return duration(c.Spec.Certificates.ServiceAccountKeys.PublicationPeriod, time.Hour)
}

// ValidityPeriod returns the lifetime of the client certificate.
func (k *ApiServerKubeconfig) ValidityPeriod() time.Duration {
	return duration(k.Spec.Validity, defaultKubeconfigValid)
}

func duration(value *metav1.Duration, standard time.Duration) time.Duration {
	if value == nil {
		return standard
	}
	return value.Duration
}
