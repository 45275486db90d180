package plugin

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/terminal"
)

// TestBackupsAreCheckedFirst checks that a backup that cannot be restored leads to an error before a cluster is
// created, or an existing one is stopped.
func TestBackupsAreCheckedFirst(t *testing.T) {
	for name, test := range map[string]struct {
		backup     string
		change     func(*v1alpha1.ApiServerBackup)
		identities string
		want       string
	}{
		"a missing backup": {
			"tuesday", func(*v1alpha1.ApiServerBackup) {}, "", "ApiServerBackup tuesday does not exist",
		},
		"a failed backup": {
			"monday", func(b *v1alpha1.ApiServerBackup) { b.Status.Phase = v1alpha1.BackupFailed },
			"", "only a completed backup",
		},
		"a running backup": {
			"monday", func(b *v1alpha1.ApiServerBackup) { b.Status.Phase = v1alpha1.BackupRunning },
			"", "only a completed backup",
		},
		"no identities": {
			"monday", func(b *v1alpha1.ApiServerBackup) { b.Status.Encrypted = true }, "", "set --identities-secret",
		},
		"unexpected identities": {"monday", func(*v1alpha1.ApiServerBackup) {}, "keys", "leave out --identities-secret"},
	} {
		t.Run(name, func(t *testing.T) {
			used := sets.New[string]()
			tool := &tool{
				streams:   streams{out: terminal.NewWriter(&bytes.Buffer{}), err: terminal.NewWriter(&bytes.Buffer{})},
				namespace: "default", client: recorded(t, used), now: time.Now,
			}
			backup := &v1alpha1.ApiServerBackup{}
			if err := tool.client.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "monday"}, backup); err != nil {
				t.Fatal(err)
			}
			test.change(backup)
			if err := tool.client.Update(t.Context(), backup); err != nil {
				t.Fatal(err)
			}
			errs := map[string]error{
				"restore": tool.restore(t.Context(), client.ObjectKey{Namespace: "default", Name: "copy"},
					restoreOptions{backup: test.backup, identities: test.identities}),
				"recover": tool.recover(t.Context(), client.ObjectKey{Namespace: "default", Name: "demo"},
					recoverOptions{backup: test.backup, identities: test.identities, yes: true}),
			}
			for command, err := range errs {
				if err == nil || !strings.Contains(err.Error(), test.want) {
					t.Errorf("%s: %v, want %q", command, err, test.want)
				}
			}
			if changed := used.Intersection(sets.New("create apiserverclusters", "patch apiserverclusters")); changed.Len() > 0 {
				t.Errorf("requests: %q", sets.List(changed))
			}
		})
	}
}

// TestUnverifiedSource checks which flags say how to verify that a backup was not replaced.
func TestUnverifiedSource(t *testing.T) {
	located := restoreOptions{destination: destination{claim: "backups"}, backupPath: "a/b", key: "key", digest: "digest"}
	from, err := located.source()
	if err != nil || from.From.Location.VerificationKey != "key" || from.From.Location.ManifestSHA256 != "digest" ||
		from.From.Verification != "" {
		t.Errorf("%+v, %v", from, err)
	}
	from, err = restoreOptions{backup: "monday", unverified: true}.source()
	if err != nil || from.From.Verification != v1alpha1.SkipVerification {
		t.Errorf("%+v, %v", from, err)
	}
	if r := (recoverOptions{backup: "monday", unverified: true}).request(); r.From.Verification !=
		v1alpha1.SkipVerification {
		t.Errorf("%+v", r)
	}
}

// TestRestoreWithTheSpecOfAnAdoptedCluster checks that requests in the spec of another cluster, which the API server
// rejects for a restored cluster or which would take effect again, are not copied.
func TestRestoreWithTheSpecOfAnAdoptedCluster(t *testing.T) {
	tool := &tool{
		streams:   streams{out: terminal.NewWriter(&bytes.Buffer{}), err: terminal.NewWriter(&bytes.Buffer{})},
		namespace: "default", client: recorded(t, sets.New[string]()), now: time.Now,
	}
	other := &v1alpha1.ApiServerCluster{}
	if err := tool.client.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "demo"}, other); err != nil {
		t.Fatal(err)
	}
	other.Spec.Image = "quorate:2"
	other.Spec.Adopt = &v1alpha1.Adoption{ClusterUID: "former"}
	other.Spec.Recovery = &v1alpha1.Recovery{RequestID: "one"}
	if err := tool.client.Update(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	copied := client.ObjectKey{Namespace: "default", Name: "copy"}
	if err := tool.restore(t.Context(), copied, restoreOptions{backup: "monday", specOf: "demo"}); err != nil {
		t.Fatal(err)
	}
	cluster := &v1alpha1.ApiServerCluster{}
	if err := tool.client.Get(t.Context(), copied, cluster); err != nil {
		t.Fatal(err)
	}
	if s := cluster.Spec; s.Adopt != nil || s.Recovery != nil || s.Image != "quorate:2" || s.Restore == nil {
		t.Errorf("got %+v", s)
	}
}
