package reconcile

import (
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/encryption"
	"quorate.dev/operator/validation"
)

// spec validates the spec of a cluster.
func (c *Checks) spec(p *pass) error {
	claims := make([]string, 0, len(p.state.Claims))
	for _, claim := range p.state.Claims {
		claims = append(claims, claim.Name+" "+claim.ResourceVersion)
	}
	slices.Sort(claims)
	status := p.cluster.Status
	input := []any{
		p.cluster.UID, p.cluster.Annotations, status.Membership != nil, status.Replicas > 0, claims,
		status.Restore != nil && !status.Restore.Completed, p.cluster.Bootstrapped(),
	}
	return c.check("spec", p.cluster, input, func() checkResult {
		if err := desired.Validate(p.cluster, p.state.Claims); err != nil {
			return checkResult{err: err}
		}
		encrypted, err := exampleEncryption(p.cluster)
		if err != nil {
			return checkResult{err: err}
		}
		return checkResult{err: validation.CheckSpec(p.cluster, encrypted)}
	}).err
}

// exampleEncryption returns the encryption configuration of a spec with a placeholder key.
func exampleEncryption(cluster *v1alpha1.ApiServerCluster) ([]byte, error) {
	scheme, err := desired.EncryptionScheme(cluster).WithKey(encryption.Scheme{}, true, cluster.CreationTimestamp.Time)
	if err != nil {
		return nil, err
	}
	return encryption.State{Current: scheme}.Configuration()
}

// version returns "" if the version of the present pods was already read: the version changes only with a pod.
func (c *Checks) version(p *pass, read func() (string, error)) (string, error) {
	pods := make([]string, 0, len(p.state.Pods))
	for i := range p.state.Pods {
		pods = append(pods, string(p.state.Pods[i].UID))
	}
	slices.Sort(pods)
	key := client.ObjectKeyFromObject(p.cluster)
	c.mu.Lock()
	known := c.pods[key] != nil && slices.Equal(c.pods[key], pods) && p.cluster.Status.Version != ""
	c.mu.Unlock()
	if known {
		return "", nil
	}
	version, err := read()
	if version != "" {
		c.mu.Lock()
		c.pods[key] = pods
		c.mu.Unlock()
	}
	return version, err
}
