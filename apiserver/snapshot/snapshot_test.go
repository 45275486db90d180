package snapshot

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"quorate.dev/apiserver/etcd"
	"quorate.dev/apiserver/etcd/etcdtest"
)

// fixture is a running member with some data, and a snapshot of the member.
type fixture struct {
	client *clientv3.Client
	file   string
	info   Info
	// last is the revision of the last change before the snapshot.
	last int64
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	flags := etcdtest.Flags(t)
	member := etcdtest.Start(t, flags)
	f := &fixture{client: member.Client(), file: filepath.Join(t.TempDir(), "snapshot.db")}
	for key, value := range map[string]string{
		"/registry/secrets/a": "k8s:enc:aescbc:v1:key1:xyz", "/registry/secrets/b": "k8s:enc:kms:v2:plugin:xyz",
		"/registry/configmaps/a": "plain", "/registry/configmaps/b": "plain",
		"/registry/secrets/c": "k8s:enc:aescbc:v1:old:xyz",
	} {
		must(t)(f.client.Put(t.Context(), key, value))
	}
	lease := must(t)(f.client.Grant(t.Context(), 1000)).(*clientv3.LeaseGrantResponse)
	must(t)(f.client.Put(t.Context(), "/registry/events/a", "event", clientv3.WithLease(lease.ID)))
	must(t)(f.client.Put(t.Context(), "/registry/secrets/c", "plain"))
	// The last change is a deletion at the compacted revision.
	response := must(t)(f.client.Delete(t.Context(), "/registry/configmaps/b")).(*clientv3.DeleteResponse)
	f.last = response.Header.Revision
	must(t)(f.client.Compact(t.Context(), f.last, clientv3.WithCompactPhysical()))
	config, err := etcd.LocalConfig(t.Context(), flags.DataDirectory)
	if err != nil {
		t.Fatal(err)
	}
	config.Logger = zap.NewNop()
	if f.info, err = Save(t.Context(), config, f.file); err != nil {
		t.Fatal(err)
	}
	return f
}

func must(t *testing.T) func(any, error) any {
	t.Helper()
	return func(value any, err error) any {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func TestSaveVerifyRestore(t *testing.T) {
	f := newFixture(t)
	if f.info.Revision != f.last || f.info.Keys != 5 || len(f.info.SHA256) != 64 {
		t.Errorf("saved %+v, want revision %d and 5 keys", f.info, f.last)
	}
	if want := []string{"aescbc:v1:key1", "kms:v2:plugin"}; !slices.Equal(f.info.EncryptionKeys, want) {
		t.Errorf("encryption keys %v, want %v", f.info.EncryptionKeys, want)
	}
	later := must(t)(f.client.Put(t.Context(), "later", "lost")).(*clientv3.PutResponse).Header

	flags := etcdtest.Flags(t)
	flags.DataDirectory = filepath.Join(t.TempDir(), "etcd")
	options := RestoreOptions{
		Snapshot: f.file, Directory: flags.DataDirectory, Name: flags.Name, PeerURL: "http://127.0.0.1:1", Token: "new",
		RevisionBump: DefaultRevisionBump,
	}
	expectNothing(t, options, f.info.SHA256)
	if err := os.MkdirAll(flags.DataDirectory+".restoring/member", 0o700); err != nil { // left by an interrupted restore
		t.Fatal(err)
	}
	options.SHA256 = f.info.SHA256
	info, err := Restore(t.Context(), options)
	if err != nil || info.SHA256 != f.info.SHA256 {
		t.Fatalf("restored %+v, %v", info, err)
	}
	if _, err := Restore(t.Context(), options); err == nil || !strings.Contains(err.Error(), "is not empty") {
		t.Errorf("second restore: %v", err)
	}
	restored := etcdtest.Start(t, flags).Client()
	list := must(t)(restored.Get(t.Context(), "", clientv3.WithPrefix())).(*clientv3.GetResponse)
	if list.Count != 5 || list.Header.Revision < f.last+DefaultRevisionBump {
		t.Errorf("%d keys at revision %d, want 5 at %d or later", list.Count, list.Header.Revision,
			f.last+DefaultRevisionBump)
	}
	if list.Header.ClusterId == later.ClusterId || list.Header.MemberId == later.MemberId {
		t.Errorf("the restored member has the IDs of the former one: %v", list.Header)
	}
	// A watch that continues from the last revision of the former cluster must fail rather than miss changes.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	event := <-restored.Watch(ctx, "", clientv3.WithPrefix(), clientv3.WithRev(later.Revision+1))
	if !errors.Is(event.Err(), rpctypes.ErrCompacted) {
		t.Errorf("watch from revision %d: %v, want %v", later.Revision+1, event.Err(), rpctypes.ErrCompacted)
	}
	leases := must(t)(restored.Leases(t.Context())).(*clientv3.LeaseLeasesResponse).Leases
	if len(leases) != 1 {
		t.Fatalf("%d leases, want 1", len(leases))
	}
	left := must(t)(restored.TimeToLive(t.Context(), leases[0].ID)).(*clientv3.LeaseTimeToLiveResponse)
	if left.TTL <= 0 || left.GrantedTTL != 1000 {
		t.Errorf("the restored lease has %+v, want a TTL of at most 1000", left)
	}
}

// expectNothing checks that no data directory is written if the expected SHA-256 differs from the SHA-256 of the
// snapshot, or if the context is canceled at any point of the restore.
func expectNothing(t *testing.T, options RestoreOptions, sum string) {
	t.Helper()
	options.SHA256 = strings.Repeat("0", len(sum))
	if _, err := Restore(t.Context(), options); err == nil || !strings.Contains(err.Error(), "has the SHA-256 "+sum) {
		t.Errorf("restored with another SHA-256: %v", err)
	}
	options.SHA256 = sum
	for _, part := range []string{"Verifying", "Writing"} {
		canceled, cancel := context.WithCancelCause(t.Context())
		cause := errors.New("canceled while " + part)
		options.Progress = func(began string) {
			if strings.HasPrefix(began, part) {
				cancel(cause)
			}
		}
		if _, err := Restore(canceled, options); !errors.Is(err, cause) {
			t.Errorf("%s: %v, want %v", part, err, cause)
		}
	}
	if left, err := filepath.Glob(options.Directory + "*"); err != nil || len(left) > 0 {
		t.Errorf("left files: %q, %v", left, err)
	}
}

func TestDamagedSnapshots(t *testing.T) {
	f := newFixture(t)
	content, err := os.ReadFile(f.file)
	if err != nil {
		t.Fatal(err)
	}
	flipped := slices.Clone(content)
	flipped[len(flipped)/2] ^= 1
	for name, damaged := range map[string][]byte{
		"empty": {}, "a flipped bit": flipped, "half": content[:len(content)/2], "no checksum": content[:len(content)-32],
		"only a checksum":         content[len(content)-32:],
		"another page at the end": append(slices.Clone(content), make([]byte, 512)...),
	} {
		file := filepath.Join(t.TempDir(), "damaged.db")
		if err := os.WriteFile(file, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Verify(t.Context(), file); !errors.Is(err, ErrChecksum) {
			t.Errorf("%s: %v, want %v", name, err, ErrChecksum)
		}
		directory := filepath.Join(t.TempDir(), "etcd")
		options := RestoreOptions{Snapshot: file, Directory: directory, Name: "a", PeerURL: "http://127.0.0.1:1", Token: "t"}
		if _, err := Restore(t.Context(), options); !errors.Is(err, ErrChecksum) {
			t.Errorf("restore of %s: %v, want %v", name, err, ErrChecksum)
		}
		if _, err := os.Stat(directory); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("restore of %s left a directory: %v", name, err)
		}
	}
}
