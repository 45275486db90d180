package apiserver

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/client-go/kubernetes"

	"quorate.dev/apiserver/controllers/storageversions"
	"quorate.dev/apiserver/startup"
)

// storageVersionHooks returns the hook that records storage versions, if they are recorded.
func (s *cluster) storageVersionHooks() startup.Sequence {
	if s.storageVersions == nil {
		return nil
	}
	return startup.Sequence{{
		Name: hookStorageVersions, Restarts: true, After: []string{hookIdentity}, Run: s.recordStorageVersions,
	}}
}

// recordStorageVersions runs the recorder of storage versions until ctx ends. The hook is done, and the server live and
// ready, when all storage versions are recorded.
func (s *cluster) recordStorageVersions(ctx context.Context, done func()) error {
	client, err := kubernetes.NewForConfig(s.loopback.config(s.userAgent(), "storage-versions"))
	if err != nil {
		return fmt.Errorf("prepare the client for storage versions: %w", err)
	}
	return s.storageVersions.Run(ctx, storageversions.Options{
		Client: client.InternalV1alpha1().StorageVersions(), ServerID: serverID(), Clock: s.clock,
		Logger: s.logger.WithName("storage-versions"),
	}, done)
}

// awaitStorageVersions changes the order of hooks so that storage versions are recorded early. The identity Lease,
// which recording needs, waits only for its namespace. Hooks that stop the server if their first writes fail for long
// run after hookStorageVersions; all other hooks repeat their writes until these are permitted. Invariant: nothing that
// hookStorageVersions needs may depend on a hook in failFast.
func awaitStorageVersions(sequence startup.Sequence) {
	failFast := []string{
		hookClusterPolicy, hookPriorityClasses, hookFlowControl, hookKubernetesService, hookServiceCIDR,
	}
	for i, hook := range sequence {
		switch {
		case hook.Name == hookIdentity:
			sequence[i].After = []string{hookNamespaces}
		case slices.Contains(failFast, hook.Name):
			sequence[i].After = append(slices.Clone(hook.After), hookStorageVersions)
		}
	}
}
