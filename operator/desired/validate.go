package desired

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"

	corev1 "k8s.io/api/core/v1"

	"quorate.dev/apiserver/config"
	"quorate.dev/operator/api/v1alpha1"
)

var namePattern = regexp.MustCompile(`^[a-z]([-a-z0-9]*[a-z0-9])?$`)

// Validate returns the errors in a spec: errors that the rules of the CRD detect, because an object may have been
// stored without them, and errors that only the operator can detect. claims are the existing claims of the cluster.
func Validate(cluster *v1alpha1.ApiServerCluster, claims []corev1.PersistentVolumeClaim) error {
	var errs []error
	if !namePattern.MatchString(cluster.Name) || len(cluster.Name) > 45 {
		errs = append(errs, errors.New("metadata.name becomes part of DNS names: at most 45 lower-case letters, digits and "+
			"-, beginning with a letter"))
	}
	if replicas := cluster.ReplicaCount(); replicas < 0 || replicas > 100 {
		errs = append(errs, fmt.Errorf("spec.replicas %d must be between 0 and 100", replicas))
	}
	_, pauseErr := cluster.PausedUntil()
	_, windowsErr := Windows(cluster)
	errs = append(errs, pauseErr, windowsErr, validateEtcd(cluster), validateRestore(cluster),
		validateStorage(cluster, claims),
		validateAggregation(cluster), validateExtension(cluster), validateCompanions(cluster), validateEncryption(cluster),
		validateNames(cluster), validateDeletion(cluster))
	if err := errors.Join(errs...); err != nil {
		return errors.Join(err, setExtra(config.Default(), cluster.Spec.ExtraArgs))
	}
	if err := CheckExtraArgs(cluster); err != nil {
		return err
	}
	return validatePatch(cluster)
}

// dnsName matches the DNS names in certificates that clients accept.
var dnsName = regexp.MustCompile(`^(\*\.)?[A-Za-z0-9_][-A-Za-z0-9_]*(\.[A-Za-z0-9_][-A-Za-z0-9_]*)*$`)

// lastLabelIsNumber matches names whose last label is a number, such as the mistyped address 10.0.0.300.
var lastLabelIsNumber = regexp.MustCompile(`(^|\.)[0-9]+$`)

// validateNames returns the errors in spec.extraSANs. No client accepts a certificate with an invalid name.
func validateNames(cluster *v1alpha1.ApiServerCluster) error {
	var errs []error
	for _, name := range cluster.Spec.ExtraSANs {
		address, err := netip.ParseAddr(name)
		isAddress, isName := err == nil && address.Zone() == "", dnsName.MatchString(name) &&
			!lastLabelIsNumber.MatchString(name)
		if !isAddress && !isName {
			errs = append(errs, fmt.Errorf("spec.extraSANs: %q is not a DNS name or IP address", name))
		}
	}
	return errors.Join(errs...)
}

// validatePatch returns the errors in spec.patches.
func validatePatch(cluster *v1alpha1.ApiServerCluster) error {
	if cluster.Spec.Patches.Pod == nil {
		return nil
	}
	_, err := ExamplePod(cluster, cluster.Spec.Image, Configuration{})
	return err
}

// validateEtcd returns the errors in spec.etcd.
func validateEtcd(cluster *v1alpha1.ApiServerCluster) error {
	etcd, voters := cluster.Spec.Etcd, cluster.VoterCount()
	switch {
	case etcd.Embedded != nil && etcd.External != nil:
		return errors.New("spec.etcd is either embedded or external, not both")
	case etcd.External != nil && cluster.Status.Membership != nil:
		return errors.New("spec.etcd cannot be switched from embedded to external")
	case etcd.External == nil && cluster.Status.Membership == nil && cluster.Status.Replicas > 0:
		return errors.New("spec.etcd cannot be switched from external to embedded")
	case etcd.External != nil && len(etcd.External.Endpoints) == 0:
		return errors.New("spec.etcd.external.endpoints must not be empty")
	case etcd.External == nil && voters != 1 && voters != 3 && voters != 5:
		return fmt.Errorf("spec.etcd.embedded.members %d must be 1, 3 or 5", voters)
	case voters > cluster.ReplicaCount() && !cluster.Hibernated():
		return fmt.Errorf("spec.etcd.embedded.members %d must not exceed spec.replicas %d", voters, cluster.ReplicaCount())
	}
	return nil
}

// validateRestore returns an error if spec.restore was removed before the restore was completed: the volume may already
// have data whose keys the cluster does not have.
func validateRestore(cluster *v1alpha1.ApiServerCluster) error {
	restored := cluster.Status.Restore
	if cluster.Spec.Restore != nil || restored == nil || restored.Completed || cluster.Bootstrapped() {
		return nil
	}
	return errors.New("spec.restore was removed before the restore was completed; delete the cluster and create it again")
}

// validateDeletion returns the errors in spec.deletion and spec.adopt.
func validateDeletion(cluster *v1alpha1.ApiServerCluster) error {
	var errs []error
	if final := cluster.Spec.Deletion.FinalBackup; final != nil {
		if cluster.ExternalEtcd() {
			errs = append(errs, errors.New("spec.deletion.finalBackup needs an embedded etcd"))
		}
		if cluster.Spec.Encryption != nil && final.Encryption == nil && !cluster.RetainsData() {
			errs = append(errs,
				errors.New("spec.deletion.finalBackup.encryption is required with spec.encryption, unless deletion.policy is "+
					"Retain: the keys of the stored objects are deleted with the cluster, and only an encrypted backup contains them"))
		}
	}
	if cluster.Spec.Adopt != nil && cluster.Spec.Restore != nil {
		errs = append(errs, errors.New("spec.adopt and spec.restore are mutually exclusive"))
	}
	if !cluster.Adopted() && cluster.Status.Membership != nil {
		errs = append(errs, errors.New("spec.adopt was set after the cluster had volumes of its own; remove it, or delete "+
			"the cluster and create it again"))
	}
	return errors.Join(errs...)
}

// validateStorage returns the errors in spec.storage, compared with the existing claims.
func validateStorage(cluster *v1alpha1.ApiServerCluster, claims []corev1.PersistentVolumeClaim) error {
	storage := cluster.Spec.Storage
	desired := cluster.StorageSize()
	if desired.Sign() < 0 {
		return errors.New("spec.storage.size must be positive")
	}
	for _, claim := range claims {
		if size := claim.Spec.Resources.Requests[corev1.ResourceStorage]; desired.Cmp(size) < 0 {
			return fmt.Errorf("spec.storage.size %s is less than the %s of claim %s; it can only grow",
				desired.String(), size.String(), claim.Name)
		}
		if class := claim.Spec.StorageClassName; storage.Class != nil && class != nil && *class != *storage.Class {
			return fmt.Errorf("spec.storage.class %s differs from %s of claim %s; it is immutable",
				*storage.Class, *class, claim.Name)
		}
	}
	return nil
}
