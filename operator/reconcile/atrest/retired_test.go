package atrest

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/encryption"
	"quorate.dev/operator/reconcile/owned/ownedtest"
	"quorate.dev/operator/reconcile/stages"
	"quorate.dev/operator/rotation"
)

// backupWith returns a backup of a cluster whose objects are encrypted with keys.
func backupWith(name, cluster string, phase v1alpha1.BackupPhase, keys ...string) client.Object {
	b := &v1alpha1.ApiServerBackup{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	b.Spec.ClusterName, b.Status.Phase, b.Status.EncryptionKeys = cluster, phase, keys
	return b
}

// names returns the names of the keys of retired schemes.
func names(retired encryption.Retired) string {
	var all []string
	for _, scheme := range retired {
		all = append(all, scheme.Provider.Name)
	}
	return strings.Join(all, " ")
}

// TestNeededByBackups checks which of the retired keys new and old are kept, so that backups can be restored.
func TestNeededByBackups(t *testing.T) {
	key := func(name string) encryption.Scheme {
		return encryption.Scheme{Resources: []string{"secrets"}, Provider: encryption.Provider{
			Kind: encryption.Secretbox, Name: name, Secret: "secret of " + name,
		}}
	}
	completed := func(name, cluster string, keys ...string) client.Object {
		return backupWith(name, cluster, v1alpha1.BackupCompleted, keys...)
	}
	for name, test := range map[string]struct {
		backups []client.Object
		want    string
	}{
		"no backup":            {nil, ""},
		"backup with a key":    {[]client.Object{completed("a", "demo", "secretbox:v1:old")}, "old"},
		"key of another kind":  {[]client.Object{completed("a", "demo", "aescbc:v1:old")}, ""},
		"backup without keys":  {[]client.Object{completed("a", "demo")}, ""},
		"failed backup":        {[]client.Object{backupWith("a", "demo", v1alpha1.BackupFailed, "secretbox:v1:old")}, ""},
		"another cluster":      {[]client.Object{completed("a", "other", "secretbox:v1:old")}, ""},
		"another's is running": {[]client.Object{backupWith("a", "other", v1alpha1.BackupRunning)}, ""},
		"two backups": {[]client.Object{
			completed("a", "demo", "secretbox:v1:old"),
			completed("b", "demo", "secretbox:v1:new", "secretbox:v1:current"),
		}, "new old"},
		"a backup is running": {[]client.Object{
			completed("a", "demo", "secretbox:v1:old"),
			backupWith("b", "demo", v1alpha1.BackupRunning),
		}, "new old"},
		"a backup was just created": {[]client.Object{backupWith("a", "demo", "")}, "new old"},
	} {
		h := ownedtest.NewHost(t, append(test.backups, ownedtest.NewCluster())...)
		kept, err := NeededByBackups(t.Context(), h.Reader, h.Cluster(), encryption.Retired{key("new"), key("old")})
		if err != nil || names(kept) != test.want {
			t.Errorf("%s: keeps %q, %v, want %q", name, names(kept), err, test.want)
		}
	}
}

// TestRetiredKey checks that the key that a rotation has replaced is kept as long as a backup needs it.
func TestRetiredKey(t *testing.T) {
	later := ownedtest.Now().Add(time.Hour)
	h := ownedtest.NewHost(t, ownedtest.NewCluster(external, encrypted("secrets"), func(c *v1alpha1.ApiServerCluster) {
		c.Spec.Encryption.Keys.RotateBefore = &metav1.Time{Time: ownedtest.Now().Add(time.Minute)}
	}))
	rotate := func(now time.Time) (keys Keys) {
		t.Helper()
		for _, stage := range []rotation.Stage{rotation.TrustBoth, rotation.Reissue, rotation.DropOld, rotation.None} {
			h.Must(stages.Enter(t.Context(), h.Objects, h.Cluster(), stages.Encryption, rotation.Decision{Next: stage}, now))
			var err error
			keys, err = ensure(h, now)
			h.Must(err)
		}
		return keys
	}
	retired := func() string {
		t.Helper()
		secret := &corev1.Secret{}
		h.Read("demo-"+desired.EncryptionSecret, secret)
		kept, err := encryption.ParseRetired(secret.Data[desired.RetiredKeysKey])
		h.Must(err)
		return names(kept)
	}
	first := rotate(ownedtest.Now()).State.Current.Provider.Name
	if got := retired(); got != "" {
		t.Errorf("the first key replaces %q", got)
	}
	h.CreateAll(backupWith("monday", "demo", v1alpha1.BackupCompleted, "secretbox:v1:"+first))
	second := rotate(later).State.Current.Provider.Name
	if got := retired(); second == first || got != first {
		t.Errorf("%q has replaced %q, kept is %q", second, first, got)
	}
	h.Delete("monday", &v1alpha1.ApiServerBackup{})
	keys, err := ensure(h, later)
	h.Must(err)
	if got := retired(); got != "" || keys.State.Current.Provider.Name != second {
		t.Errorf("without the backup, %q is kept", got)
	}
}
