package configuration

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/encryption"
	"quorate.dev/operator/observed"
	"quorate.dev/operator/validation"
)

// Checks caches the last result of each validation, because a validation takes milliseconds to seconds, and
// reconciliations of an unchanged cluster are frequent. It is safe for concurrent use.
type Checks struct {
	mu      sync.Mutex
	results map[types.NamespacedName]map[string]checkResult // by cluster and kind of check
	pods    map[types.NamespacedName][]string               // by cluster: UIDs of the pods whose version was read
}

type checkResult struct {
	input     [sha256.Size]byte
	static    string
	err       error
	transient bool // the result does not follow from the input alone, so that it is not cached
}

// NewChecks returns an empty cache.
func NewChecks() *Checks {
	return &Checks{results: map[types.NamespacedName]map[string]checkResult{}, pods: map[types.NamespacedName][]string{}}
}

// Forget drops the results for a deleted cluster.
func (c *Checks) Forget(key types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.results, key)
	delete(c.pods, key)
}

// files validates the files of a cluster; see validation.Check for the first result.
func (c *Checks) files(cluster *v1alpha1.ApiServerCluster, files map[string][]byte) (string, error) {
	result := c.check("files", cluster, files, func() checkResult {
		configuration := desired.Configuration{Files: files}
		var err error
		configuration.Encryption, err = exampleEncryption(cluster)
		if err != nil {
			return checkResult{err: err}
		}
		static, err := validation.Check(cluster, configuration)
		return checkResult{static: static, err: err}
	})
	return result.static, result.err
}

// pod validates the pod of a cluster with do, which returns the error of the pod and whether the hosting cluster has
// accepted it. Only an accepted pod is cached: a rejection may end without a change of the spec, for example when the
// user creates the PriorityClass that the pod names, and an unavailable API server says nothing about the pod.
func (c *Checks) pod(cluster *v1alpha1.ApiServerCluster, image string, do func() (accepted bool, err error)) error {
	return c.check("pod", cluster, image, func() checkResult {
		accepted, err := do()
		return checkResult{err: err, transient: !accepted}
	}).err
}

// check returns the last result of a kind of check if the spec and the input have not changed, else the result of do.
// The last successful and the last failed result are cached separately: while the user's files are invalid, every
// reconciliation checks these files and then the last valid files. Two reconciliations never check the same cluster at
// the same time, so no validation runs twice. The input is hashed, so that the cache does not keep the content of
// Secrets in memory.
func (c *Checks) check(kind string, cluster *v1alpha1.ApiServerCluster, input any, do func() checkResult) checkResult {
	text, err := json.Marshal([]any{cluster.Spec, input})
	if err != nil {
		return checkResult{err: fmt.Errorf("encode the input of a validation: %w", err)}
	}
	sum, key := sha256.Sum256(text), client.ObjectKeyFromObject(cluster)
	c.mu.Lock()
	last, found := c.results[key][kind]
	other, failed := c.results[key][kind+" failed"]
	c.mu.Unlock()
	switch {
	case found && last.input == sum:
		return last
	case failed && other.input == sum:
		return other
	}
	result := do()
	if result.transient {
		return result
	}
	result.input = sum
	if result.err != nil {
		kind += " failed"
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.results[key] == nil {
		c.results[key] = map[string]checkResult{}
	}
	c.results[key][kind] = result
	return result
}

// Spec validates the spec of a cluster, unless the spec and everything else that validation depends on are unchanged.
// The input lists exactly that: annotations, whether the cluster has ever run or is being restored, which makes some
// fields immutable, and the claims, whose size must not be reduced. A field of the status that validation uses but the
// input lacks would make the cached result outdated.
func (c *Checks) Spec(state *observed.State) error {
	claims := make([]string, 0, len(state.Claims))
	for _, claim := range state.Claims {
		claims = append(claims, claim.Name+" "+claim.ResourceVersion)
	}
	slices.Sort(claims)
	cluster := state.Cluster
	status := cluster.Status
	input := []any{
		cluster.UID, cluster.Annotations, status.Membership != nil, status.Replicas > 0, claims,
		status.Restore != nil && !status.Restore.Completed, cluster.Bootstrapped(),
	}
	return c.check("spec", cluster, input, func() checkResult {
		if err := desired.Validate(cluster, state.Claims); err != nil {
			return checkResult{err: err}
		}
		encrypted, err := exampleEncryption(cluster)
		if err != nil {
			return checkResult{err: err}
		}
		return checkResult{err: validation.CheckSpec(cluster, encrypted)}
	}).err
}

// exampleEncryption returns the EncryptionConfiguration that a spec leads to, with a placeholder as key. The scheme has
// the creation time of the cluster, but another random key in each call, so that the result must not be part of the
// input of a cached check.
func exampleEncryption(cluster *v1alpha1.ApiServerCluster) ([]byte, error) {
	scheme, err := desired.EncryptionScheme(cluster).WithKey(encryption.Scheme{}, true, cluster.CreationTimestamp.Time)
	if err != nil {
		return nil, err
	}
	return encryption.State{Current: scheme}.Configuration()
}

// VersionKnown reports whether the version of the present pods is already in the status: the version changes only with
// a pod.
func (c *Checks) VersionKnown(state *observed.State) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	pods := c.pods[client.ObjectKeyFromObject(state.Cluster)]
	return pods != nil && slices.Equal(pods, podsOf(state)) && state.Cluster.Status.Version != ""
}

// VersionRead records that the version of the present pods was read.
func (c *Checks) VersionRead(state *observed.State) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pods[client.ObjectKeyFromObject(state.Cluster)] = podsOf(state)
}

// podsOf returns the UIDs of the pods, sorted.
func podsOf(state *observed.State) []string {
	pods := make([]string, 0, len(state.Pods))
	for i := range state.Pods {
		pods = append(pods, string(state.Pods[i].UID))
	}
	slices.Sort(pods)
	return pods
}
