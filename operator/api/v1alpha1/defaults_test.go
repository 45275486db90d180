package v1alpha1

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

func TestVoterCount(t *testing.T) {
	members := func(n int32) Etcd { return Etcd{Embedded: &EmbeddedEtcd{Members: ptr.To(n)}} }
	for _, c := range []struct {
		replicas *int32
		etcd     Etcd
		want     int
	}{
		{nil, Etcd{}, 3},
		{ptr.To[int32](1), Etcd{}, 1},
		{ptr.To[int32](2), Etcd{}, 1},
		{ptr.To[int32](4), Etcd{}, 3},
		{ptr.To[int32](5), Etcd{}, 5},
		{ptr.To[int32](100), Etcd{}, 5},
		{ptr.To[int32](5), Etcd{Embedded: &EmbeddedEtcd{}}, 5},
		{ptr.To[int32](5), members(1), 1},
		{ptr.To[int32](5), Etcd{External: &ExternalEtcd{}}, 0},
	} {
		cluster := &ApiServerCluster{Spec: ApiServerClusterSpec{Replicas: c.replicas, Etcd: c.etcd}}
		if got := cluster.VoterCount(); got != c.want {
			t.Errorf("VoterCount() of %d replicas, etcd %+v: %d, want %d", cluster.ReplicaCount(), c.etcd, got, c.want)
		}
	}
}

func TestStorageSize(t *testing.T) {
	cluster := &ApiServerCluster{}
	if got := cluster.StorageSize(); got.String() != "8Gi" {
		t.Errorf("StorageSize() without a value: %s, want 8Gi", got.String())
	}
	cluster.Spec.Storage.Size = resource.MustParse("20Gi")
	if got := cluster.StorageSize(); got.String() != "20Gi" {
		t.Errorf("StorageSize(): %s, want 20Gi", got.String())
	}
}

func TestBootstrapped(t *testing.T) {
	cluster := &ApiServerCluster{}
	if cluster.Bootstrapped() {
		t.Error("a cluster without status is bootstrapped")
	}
	cluster.Status.Membership = &Membership{Bootstrapped: true}
	if !cluster.Bootstrapped() {
		t.Error("a cluster with status.membership.bootstrapped is not bootstrapped")
	}
}
