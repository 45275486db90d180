package desired

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"quorate.dev/operator/api/v1alpha1"
)

// TestDeletionRulesAgree compares the errors of the CRD for spec.deletion and spec.adopt with the operator's errors.
func TestDeletionRulesAgree(t *testing.T) {
	evaluate := rules(t)
	final := func() *v1alpha1.FinalBackup {
		return &v1alpha1.FinalBackup{
			Destination: v1alpha1.BackupDestination{Volume: &v1alpha1.VolumeDestination{ClaimName: "backups"}},
		}
	}
	encrypted := final()
	encrypted.Encryption = &v1alpha1.BackupEncryption{SecretRef: corev1.LocalObjectReference{Name: "keys"}}
	external := v1alpha1.Etcd{
		External: &v1alpha1.ExternalEtcd{Endpoints: []string{"http://127.0.0.1:2379"}, Prefix: "/registry"},
	}
	adopt := &v1alpha1.Adoption{ClusterUID: "former"}
	for name, test := range map[string]struct {
		spec v1alpha1.ApiServerClusterSpec
		want string // part of the error; "": valid
	}{
		"protected": {
			v1alpha1.ApiServerClusterSpec{Deletion: v1alpha1.Deletion{Protected: true, Policy: v1alpha1.RetainData}}, "",
		},
		"final backup": {v1alpha1.ApiServerClusterSpec{Deletion: v1alpha1.Deletion{FinalBackup: final()}}, ""},
		"final backup of an external etcd": {
			v1alpha1.ApiServerClusterSpec{Etcd: external, Deletion: v1alpha1.Deletion{FinalBackup: final()}},
			"needs an embedded etcd",
		},
		"final backup without the keys": {
			v1alpha1.ApiServerClusterSpec{Encryption: &v1alpha1.Encryption{}, Deletion: v1alpha1.Deletion{FinalBackup: final()}},
			"deletion.finalBackup.encryption is required",
		},
		"final backup with the keys": {
			v1alpha1.ApiServerClusterSpec{Encryption: &v1alpha1.Encryption{},
				Deletion: v1alpha1.Deletion{FinalBackup: encrypted}}, "",
		},
		"final backup and retained keys": {
			v1alpha1.ApiServerClusterSpec{
				Encryption: &v1alpha1.Encryption{}, Deletion: v1alpha1.Deletion{FinalBackup: final(), Policy: v1alpha1.RetainData},
			}, "",
		},
		"adopt": {v1alpha1.ApiServerClusterSpec{Adopt: adopt}, ""},
		"adopt and restore": {
			v1alpha1.ApiServerClusterSpec{
				Adopt: adopt, Restore: &v1alpha1.Restore{From: v1alpha1.RestoreSource{BackupName: "b"}},
			},
			"mutually exclusive",
		},
	} {
		cluster := &v1alpha1.ApiServerCluster{ObjectMeta: metav1.ObjectMeta{Name: "demo", Namespace: "ns"}, Spec: test.spec}
		own := ""
		if err := Validate(cluster, nil); err != nil {
			own = err.Error()
		}
		spec, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&test.spec)
		if err != nil {
			t.Fatal(err)
		}
		for source, message := range map[string]string{"operator": own, "CRD": evaluate(spec)} {
			if (message == "") != (test.want == "") || !strings.Contains(message, test.want) {
				t.Errorf("%s: the %s says %q, want %q", name, source, message, test.want)
			}
		}
	}
}

// TestAdoptAfterBootstrap checks that a cluster that has its own volumes does not adopt others.
func TestAdoptAfterBootstrap(t *testing.T) {
	cluster := &v1alpha1.ApiServerCluster{ObjectMeta: metav1.ObjectMeta{Name: "demo", Namespace: "ns"}}
	cluster.Spec.Adopt = &v1alpha1.Adoption{ClusterUID: "former"}
	cluster.Status.Membership = &v1alpha1.Membership{InitialMembers: []string{"demo-0"}}
	if err := Validate(cluster, nil); err == nil || !strings.Contains(err.Error(), "spec.adopt was set after") {
		t.Error(err)
	}
	cluster.Status.Adoption = &v1alpha1.AdoptionStatus{ClusterUID: "former"}
	if err := Validate(cluster, nil); err != nil {
		t.Errorf("an adopted cluster is invalid: %v", err)
	}
}

// TestRecord checks that a record contains what an adoption needs.
func TestRecord(t *testing.T) {
	former := &v1alpha1.ApiServerCluster{ObjectMeta: metav1.ObjectMeta{Name: "demo", Namespace: "ns", UID: "former"}}
	former.Status.Membership = &v1alpha1.Membership{Bootstrapped: true, NextOrdinal: 7}
	former.Status.Members = []v1alpha1.MemberStatus{{
		Name: "demo-0", Volume: "volume", Ready: true, UnhealthySince: &metav1.Time{},
	}}
	secret, err := Record{Cluster: former, Secrets: []string{"demo-service-account", "demo-client-ca"}}.Secret()
	if err != nil {
		t.Fatal(err)
	}
	record, err := ParseRecord(secret)
	if err != nil || record.Cluster.UID != "former" ||
		strings.Join(record.Secrets, " ") != "demo-client-ca demo-service-account" {
		t.Fatalf("%+v, %v", record, err)
	}
	status := AdoptedStatus(v1alpha1.ApiServerClusterStatus{}, record.Cluster)
	if m := status.Members[0]; status.Membership.NextOrdinal != 7 || m.Volume != "volume" ||
		m.Ready || m.UnhealthySince != nil {
		t.Errorf("%+v", status)
	}
}
