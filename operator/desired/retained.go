package desired

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"quorate.dev/operator/api/v1alpha1"
)

// Keys of the Secret RecordSecret, which stores a Record.
const (
	recordClusterKey = "cluster.yaml"
	recordSecretsKey = "secrets"
)

// Record describes a deleted cluster whose data was retained. It holds the information that a new cluster cannot derive
// from the retained volumes and Secrets: the spec and status of the cluster, among them the members and their state,
// and the names of the retained Secrets.
type Record struct {
	Cluster *v1alpha1.ApiServerCluster // the cluster when the operator began to delete its objects
	Secrets []string                   // names of the retained Secrets
}

// Secret returns the Secret in which the record is stored.
func (r Record) Secret() (*corev1.Secret, error) {
	former := &v1alpha1.ApiServerCluster{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "ApiServerCluster"},
		ObjectMeta: metav1.ObjectMeta{
			Name: r.Cluster.Name, Namespace: r.Cluster.Namespace, UID: r.Cluster.UID, Labels: r.Cluster.Labels,
		},
		Spec: r.Cluster.Spec, Status: r.Cluster.Status,
	}
	text, err := yaml.Marshal(former)
	if err != nil {
		return nil, err
	}
	return secret(r.Cluster, RecordSecret, corev1.SecretTypeOpaque, map[string][]byte{
		recordClusterKey: text, recordSecretsKey: []byte(strings.Join(slices.Sorted(slices.Values(r.Secrets)), "\n")),
	}), nil
}

// ParseRecord returns the record that is stored in a Secret.
func ParseRecord(s *corev1.Secret) (Record, error) {
	r := Record{Cluster: &v1alpha1.ApiServerCluster{}, Secrets: strings.Fields(string(s.Data[recordSecretsKey]))}
	if err := yaml.Unmarshal(s.Data[recordClusterKey], r.Cluster); err != nil {
		return r, fmt.Errorf("key %s of Secret %s: %w", recordClusterKey, s.Name, err)
	}
	if r.Cluster.UID == "" {
		return r, fmt.Errorf("key %s of Secret %s has no cluster", recordClusterKey, s.Name)
	}
	return r, nil
}

// AdoptedStatus returns the status of a cluster that adopts the data of a former one. It copies the fields that cannot
// be observed. All members become not ready, and lose unhealthySince: while they did not run, they were not unhealthy,
// and must not be replaced because of that time.
func AdoptedStatus(
	next v1alpha1.ApiServerClusterStatus, former *v1alpha1.ApiServerCluster,
) v1alpha1.ApiServerClusterStatus {
	status := former.Status.DeepCopy()
	next.Image, next.Voters, next.Members, next.Membership = status.Image, status.Voters, status.Members, status.Membership
	next.Restore, next.Recovery, next.Rotations = status.Restore, status.Recovery, status.Rotations
	for i := range next.Members {
		next.Members[i].Ready, next.Members[i].UnhealthySince = false, nil
	}
	return next
}
