package desired

import (
	"errors"
	"fmt"
	"regexp"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"quorate.dev/apiserver/config"
	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/membership"
)

// Replicas wanted.
func Replicas(cluster *v1alpha1.ApiServerCluster) int {
	if cluster.Spec.Replicas == nil {
		return 3
	}
	return int(*cluster.Spec.Replicas)
}

// StorageSize of each member.
func StorageSize(cluster *v1alpha1.ApiServerCluster) resource.Quantity {
	if cluster.Spec.Storage.Size.IsZero() {
		return resource.MustParse("8Gi")
	}
	return cluster.Spec.Storage.Size
}

// Voters wanted; none with an external etcd.
func Voters(cluster *v1alpha1.ApiServerCluster) int {
	if cluster.Spec.Etcd.External != nil {
		return 0
	}
	if embedded := cluster.Spec.Etcd.Embedded; embedded != nil && embedded.Members != nil {
		return int(*embedded.Members)
	}
	return membership.DefaultVoters(Replicas(cluster))
}

var namePattern = regexp.MustCompile(`^[a-z]([-a-z0-9]*[a-z0-9])?$`)

// Validate says what is wrong with a spec: the rules of the resource's schema once more, for servers that did not check
// them, and what a schema cannot know. Claims are the ones that exist.
func Validate(cluster *v1alpha1.ApiServerCluster, claims []corev1.PersistentVolumeClaim) error {
	var errs []error
	if !namePattern.MatchString(cluster.Name) || len(cluster.Name) > 45 {
		errs = append(errs, errors.New("metadata.name becomes part of host names: at most 45 lower-case letters, digits and -, beginning with a letter"))
	}
	if replicas := Replicas(cluster); replicas < 1 || replicas > 100 {
		errs = append(errs, fmt.Errorf("spec.replicas %d must be between 1 and 100", replicas))
	}
	errs = append(errs, validateEtcd(cluster), validateStorage(cluster, claims))
	if err := errors.Join(errs...); err != nil {
		return errors.Join(err, setExtra(config.Default(), cluster.Spec.ExtraArgs))
	}
	return CheckExtraArgs(cluster)
}

func validateEtcd(cluster *v1alpha1.ApiServerCluster) error {
	etcd, voters := cluster.Spec.Etcd, Voters(cluster)
	switch {
	case etcd.Embedded != nil && etcd.External != nil:
		return errors.New("spec.etcd is either embedded or external")
	case etcd.External != nil && cluster.Status.Membership != nil:
		return errors.New("spec.etcd cannot be switched from embedded to external")
	case etcd.External == nil && cluster.Status.Membership == nil && cluster.Status.Replicas > 0:
		return errors.New("spec.etcd cannot be switched from external to embedded")
	case etcd.External != nil && len(etcd.External.Endpoints) == 0:
		return errors.New("spec.etcd.external.endpoints must not be empty")
	case etcd.External == nil && voters != 1 && voters != 3 && voters != 5:
		return fmt.Errorf("spec.etcd.embedded.members %d must be 1, 3 or 5", voters)
	case voters > Replicas(cluster):
		return fmt.Errorf("spec.etcd.embedded.members %d must not exceed spec.replicas %d", voters, Replicas(cluster))
	}
	return nil
}

func validateStorage(cluster *v1alpha1.ApiServerCluster, claims []corev1.PersistentVolumeClaim) error {
	storage := cluster.Spec.Storage
	wanted := StorageSize(cluster)
	if wanted.Sign() < 0 {
		return errors.New("spec.storage.size must be positive")
	}
	for _, claim := range claims {
		if size := claim.Spec.Resources.Requests[corev1.ResourceStorage]; wanted.Cmp(size) < 0 {
			return fmt.Errorf("spec.storage.size %s is less than the %s that claim %s has; it can only grow", wanted.String(), size.String(), claim.Name)
		}
		if class := claim.Spec.StorageClassName; storage.Class != nil && class != nil && *class != *storage.Class {
			return fmt.Errorf("spec.storage.class %s is not the %s of claim %s; it cannot change", *storage.Class, *class, claim.Name)
		}
	}
	return nil
}
