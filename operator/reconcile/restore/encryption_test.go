package restore

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"quorate.dev/apiserver/backup/format"
	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/encryption"
	"quorate.dev/operator/reconcile/atrest"
	"quorate.dev/operator/reconcile/owned"
)

// TestKeysOfBackupsAreKept checks that a rotation keeps the former key for as long as a backup that does not contain
// its own keys needs it, and that such a backup can be restored.
func TestKeysOfBackupsAreKept(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, corev1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	wanted := encryption.Scheme{Resources: []string{"secrets"}, Provider: encryption.Provider{Kind: encryption.Secretbox}}
	var schemes []encryption.Scheme
	for i := range 3 {
		created, err := wanted.WithKey(encryption.Scheme{}, true, time.Unix(int64(i), 0))
		if err != nil {
			t.Fatal(err)
		}
		schemes = append(schemes, created)
	}
	first := "secretbox:v1:" + schemes[0].Provider.Name
	backup := func(name, cluster string, phase v1alpha1.BackupPhase, encrypted bool) *v1alpha1.ApiServerBackup {
		b := &v1alpha1.ApiServerBackup{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
		b.Spec.ClusterName, b.Status.Phase = cluster, phase
		if phase == v1alpha1.BackupCompleted {
			b.Status.EncryptionKeys = []string{first}
		}
		if encrypted {
			b.Spec.Encryption = &v1alpha1.BackupEncryption{}
		}
		return b
	}
	cluster := &v1alpha1.ApiServerCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "demo"}}
	retired := encryption.Retired{schemes[1], schemes[0]}
	for name, test := range map[string]struct {
		backups []client.Object
		want    int
	}{
		"no backups":            {nil, 0},
		"a backup without keys": {[]client.Object{backup("a", "demo", v1alpha1.BackupCompleted, false)}, 1},
		"a backup in progress":  {[]client.Object{backup("a", "demo", v1alpha1.BackupRunning, false)}, 2},
		"an encrypted backup":   {[]client.Object{backup("a", "demo", v1alpha1.BackupCompleted, true)}, 1},
		"a failed backup":       {[]client.Object{backup("a", "demo", v1alpha1.BackupFailed, false)}, 0},
		"of another cluster":    {[]client.Object{backup("a", "other", v1alpha1.BackupCompleted, false)}, 0},
		"one completed, one begun": {
			[]client.Object{backup("a", "demo", v1alpha1.BackupCompleted, false), backup("b", "demo", "", false)}, 2,
		},
	} {
		reader := fake.NewClientBuilder().WithScheme(scheme).WithObjects(test.backups...).Build()
		kept, err := atrest.NeededByBackups(t.Context(), reader, cluster, retired)
		if err != nil || len(kept) != test.want {
			t.Errorf("%s: kept %d, %v", name, len(kept), err)
		}
	}
	former := desired.EncryptionKeys(cluster, encryption.State{Current: schemes[2]}, retired)
	former.Namespace = "ns"
	restored := &v1alpha1.ApiServerCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "copy"}}
	restored.Spec.Restore = &v1alpha1.Restore{}
	j := &job{
		Objects: owned.Objects{Reader: fake.NewClientBuilder().WithScheme(scheme).WithObjects(former).Build()},
		cluster: restored,
	}
	state, err := j.restoredEncryption(t.Context(), format.Manifest{
		Namespace: "ns", Cluster: "demo", Snapshot: format.Snapshot{EncryptionKeys: []string{first}},
	})
	if err != nil || state.Current.Provider != schemes[0].Provider || state.Changing() {
		t.Errorf("restored with %+v, %v", state, err)
	}
}
