package reconcile

import (
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/desired"
)

// spec validates the spec of a cluster.
func (c *Checks) spec(p *pass) error {
	claims := make([]string, 0, len(p.state.Claims))
	for _, claim := range p.state.Claims {
		claims = append(claims, claim.Name+" "+claim.ResourceVersion)
	}
	slices.Sort(claims)
	status := p.cluster.Status
	input := []any{p.cluster.UID, p.cluster.Annotations, status.Membership != nil, status.Replicas > 0, claims}
	return c.check("spec", p.cluster, input, func() checkResult {
		return checkResult{err: desired.Validate(p.cluster, p.state.Claims)}
	}).err
}

// version returns "" if the version of the present pods was read before: a version changes only with a pod.
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
