package controlplane

import (
	"context"
	"fmt"
	"testing"

	internalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/test/upstream"
)

// TestStorageVersionsAreCollected runs kube-controller-manager's storage-version-garbage-collector. The
// collector must remove the entries of servers without an identity Lease, and keep the entry of the running server.
func TestStorageVersionsAreCollected(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	directory := t.TempDir()
	const gates = "--feature-gates=StorageVersionAPI=true,APIServerIdentity=true"
	c := start(t, directory, servers["quorate"], gates, "--runtime-config=internal.apiserver.k8s.io/v1alpha1=true")
	s := &stepTest{T: t, cluster: c, namespace: "default"}
	versions := c.typed.InternalV1alpha1().StorageVersions()
	gone := internalv1alpha1.ServerStorageVersion{
		APIServerID: "apiserver-gone", EncodingVersion: "v0",
		DecodableVersions: []string{"v0"}, ServedVersions: []string{"v0"},
	}
	pods, err := versions.Get(t.Context(), "core.pods", meta.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(pods.Status.StorageVersions) != 1 {
		t.Fatalf("the server has recorded %+v", pods.Status)
	}
	own := pods.Status.StorageVersions[0].APIServerID
	pods.Status.StorageVersions = append(pods.Status.StorageVersions, gone)
	pods.Status.CommonEncodingVersion = nil
	if _, err := versions.UpdateStatus(t.Context(), pods, meta.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	old, err := versions.Create(t.Context(), &internalv1alpha1.StorageVersion{
		ObjectMeta: meta.ObjectMeta{Name: "example.com.old"},
	}, meta.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	old.Status.StorageVersions = []internalv1alpha1.ServerStorageVersion{gone}
	old.Status.CommonEncodingVersion = &gone.EncodingVersion
	if _, err := versions.UpdateStatus(t.Context(), old, meta.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}

	manager, err := upstream.Client{
		Directory: directory, PKI: c.pki, Server: c.config, Arguments: []string{gates},
	}.StartControllerManager(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	manager.StopAfter(t)
	s.await("the entries of gone servers to be removed", func(ctx context.Context) error {
		list, err := versions.List(ctx, meta.ListOptions{})
		if err != nil {
			return err
		}
		for _, item := range list.Items {
			entries, common := item.Status.StorageVersions, item.Status.CommonEncodingVersion
			if len(entries) != 1 || entries[0].APIServerID != own || common == nil || *common != entries[0].EncodingVersion {
				return fmt.Errorf("%s has the status %+v", item.Name, item.Status)
			}
		}
		if len(list.Items) < 50 {
			t.Errorf("only %d StorageVersions are left", len(list.Items))
		}
		return nil
	})
}
