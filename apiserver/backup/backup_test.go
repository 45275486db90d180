package backup

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/util/wait"

	"quorate.dev/apiserver/backup/format"
	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/test/upstream"
)

// destination is a place for backups: its flags, and the directory that has its files, where they can be damaged.
type destination struct {
	flags []string
	files string
}

// destinations returns a directory, and a bucket of an S3 server that this function starts.
func destinations(t *testing.T) map[string]destination {
	t.Helper()
	volume := t.TempDir()
	result := map[string]destination{"directory": {[]string{"--directory", volume}, volume}}
	server := upstream.StartS3(t)
	t.Setenv(accessKeyVariable, upstream.S3AccessKey)
	t.Setenv(secretKeyVariable, upstream.S3SecretKey)
	flags := []string{
		"--s3-endpoint", server.URL, "--s3-bucket", upstream.S3Bucket, "--s3-path-style", "--s3-region", "us-east-1",
	}
	result["S3"] = destination{flags, server.Directory}
	return result
}

// run runs the command and returns its output.
func run(t *testing.T, d destination, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	command := newCommand(&out, io.Discard)
	command.SetArgs(append(args, d.flags...))
	err := command.ExecuteContext(t.Context())
	return out.String(), err
}

func mustRun(t *testing.T, d destination, args ...string) (result format.Result) {
	t.Helper()
	out, err := run(t, d, args...)
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	if err := json.Unmarshal([]byte(out), &result); err != nil {
		t.Fatalf("%v printed %q: %v", args, out, err)
	}
	return result
}

func wantError(t *testing.T, want string, d destination, args ...string) {
	t.Helper()
	if out, err := run(t, d, args...); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v: got %q and %v, want an error with %q", args, out, err, want)
	}
}

func TestBackups(t *testing.T) {
	flags := etcdtest.Flags(t)
	member := etcdtest.Start(t, flags)
	if _, err := member.Client().Put(t.Context(), "/registry/a", strings.Repeat("value", 1000)); err != nil {
		t.Fatal(err)
	}
	keys := newAgeKeys(t)
	for name, d := range destinations(t) {
		t.Run(name, func(t *testing.T) {
			testPlain(t, d, flags.DataDirectory)
			testEncrypted(t, d, flags.DataDirectory, keys)
			testDamage(t, d, flags.DataDirectory)
			testReplaced(t, d, flags.DataDirectory, keys)
		})
	}
}

func testPlain(t *testing.T, d destination, member string) {
	t.Helper()
	resultFile := filepath.Join(t.TempDir(), "result")
	create := []string{
		"create", "--data-dir", member, "--path", "default/demo/plain", "--uid", "1", "--namespace", "default",
		"--cluster", "demo",
	}
	made := mustRun(t, d, append(create, "--result-file", resultFile)...)
	m := made.Manifest
	if m.Cluster != "demo" || m.Snapshot.Keys != 1 || m.StoredBytes != m.Snapshot.SizeBytes ||
		m.Encrypted() || m.Created.IsZero() {
		t.Errorf("created %+v", m)
	}
	reported, err := os.ReadFile(resultFile)
	if again := mustRun(t, d, create...); err != nil || again.Manifest.StoredSHA256 != m.StoredSHA256 ||
		!bytes.Contains(reported, []byte(m.StoredSHA256)) {
		t.Errorf("repeated: %+v, want %+v; result file %s, %v", again, made, reported, err)
	}
	create[slices.Index(create, "1")] = "2"
	wantError(t, "contains another backup", d, create...)

	directory := filepath.Join(t.TempDir(), "etcd")
	restore := []string{
		"restore", "--path", "default/demo/plain", "--data-dir", directory, "--uid", "r", "--name", "demo-0",
	}
	wantError(t, "nothing is known that shows whether the backup was replaced", d, restore...)
	restore = append(restore, "--manifest-sha256", made.ManifestSHA256)
	first := mustRun(t, d, restore...)
	if first.Verification != format.VerifiedByManifestDigest || first.ManifestSHA256 != made.ManifestSHA256 ||
		made.VerificationKey != "" {
		t.Errorf("restored %+v", first)
	}
	if again := mustRun(t, d, restore...); again.Location != first.Location {
		t.Errorf("repeated restore: %+v, want %+v", again, first)
	}
	restore[slices.Index(restore, "r")] = "another"
	resumed := append(slices.Clone(restore), "--uid", "r", "--manifest-sha256", strings.Repeat("0", 64)) // another backup
	wantError(t, "already has the backup "+first.Location, d, resumed...)
	for range 2 { // a repeated attempt does not resume the failed one
		wantError(t, "already has the backup "+first.Location, d, restore...)
	}
	checkRestored(t, directory)

	listed, err := run(t, d, "list", "-o", "json")
	if err != nil || !strings.Contains(listed, `"path": "default/demo/plain"`) {
		t.Errorf("listed %s, %v", listed, err)
	}
	if _, err := run(t, d, "delete", "--path", "default/demo/plain", "--uid", "2"); err != nil {
		t.Error(err)
	}
	mustRun(t, d, append(create[:len(create):len(create)], "--uid", "1")...) // the backup was not deleted
	if _, err := run(t, d, "delete", "--path", "default/demo/plain", "--uid", "1"); err != nil {
		t.Error(err)
	}
	wantError(t, "not a complete backup", d, "restore", "--path", "default/demo/plain", "--data-dir",
		directory+"2", "--unverified")
	if table, err := run(t, d, "list"); err != nil || strings.Count(table, "\n") != 1 {
		t.Errorf("listed %q after the deletion, %v", table, err)
	}
}

func checkRestored(t *testing.T, directory string) {
	t.Helper()
	flags := etcdtest.Flags(t)
	flags.DataDirectory, flags.Name = directory, "demo-0"
	response, err := etcdtest.Start(t, flags).Client().Get(t.Context(), "/registry/a")
	if err != nil || len(response.Kvs) != 1 || len(response.Kvs[0].Value) != 5000 || response.Header.Revision < 1e9 {
		t.Errorf("the restored etcd has %v, %v", response, err)
	}
}

// ageKeys has files with the recipients and the identities of two keys.
type ageKeys struct{ recipients, identities, others string }

func newAgeKeys(t *testing.T) ageKeys {
	t.Helper()
	directory := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(directory, name)
		if err := os.WriteFile(file, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	var pairs []*age.X25519Identity
	for range 2 {
		pair, err := age.GenerateX25519Identity()
		if err != nil {
			t.Fatal(err)
		}
		pairs = append(pairs, pair)
	}
	return ageKeys{
		write("recipients", pairs[0].Recipient().String()), write("identities", pairs[0].String()),
		write("others", pairs[1].String()),
	}
}

func testEncrypted(t *testing.T, d destination, member string, keys ageKeys) {
	t.Helper()
	recipients, err := os.ReadFile(keys.recipients)
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := format.Seal(format.Keys{ServiceAccountPrivate: []byte("private")}, recipients)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(sealedKeysVariable, base64.StdEncoding.EncodeToString(sealed))
	made := mustRun(t, d, "create", "--data-dir", member, "--path", "default/demo/encrypted",
		"--recipients-file", keys.recipients)
	stored, err := os.ReadFile(filepath.Join(d.files, "default/demo/encrypted", made.Manifest.File))
	if err != nil || bytes.Contains(stored, []byte("/registry/a")) || !made.Manifest.Encrypted() {
		t.Errorf("the stored file is not encrypted: %v, %+v", err, made)
	}
	directory := filepath.Join(t.TempDir(), "etcd")
	restore := []string{"restore", "--path", "default/demo/encrypted", "--data-dir", directory, "--name", "demo-0",
		"--manifest-sha256", made.ManifestSHA256}
	wantError(t, "identities to decrypt it are required", d, restore...)
	wantError(t, "no identity matches", d, append(restore, "--identities-file", keys.others)...)
	restored := mustRun(t, d, append(restore, "--identities-file", keys.identities)...)
	checkRestored(t, directory)
	identities, err := os.ReadFile(keys.identities)
	if err != nil {
		t.Fatal(err)
	}
	if opened, err := format.Open(restored.Manifest.SealedKeys, identities); err != nil ||
		string(opened.ServiceAccountPrivate) != "private" {
		t.Errorf("opened %+v, %v", opened, err)
	}
}

// A backup that was damaged in its store is not restored, and leaves no data directory.
func testDamage(t *testing.T, d destination, member string) {
	t.Helper()
	made := mustRun(t, d, "create", "--data-dir", member, "--path", "damaged")
	file := filepath.Join(d.files, "damaged", made.Manifest.File)
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	// A damaged manifest, or a file of another program, does not hide the backups.
	other := filepath.Join(d.files, "other", format.ManifestFile)
	if err := errors.Join(os.Mkdir(filepath.Dir(other), 0o700), os.WriteFile(other, []byte("["), 0o600)); err != nil {
		t.Fatal(err)
	}
	if listed, err := run(t, d, "list"); err != nil || !strings.Contains(listed, "damaged") {
		t.Errorf("listed %q, %v", listed, err)
	}
	content[len(content)/2] ^= 1
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
	directory := filepath.Join(t.TempDir(), "etcd")
	wantError(t, "is damaged", d, "restore", "--path", "damaged", "--data-dir", directory, "--unverified")
	if _, err := os.Stat(directory); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the restore left a data directory: %v", err)
	}
}

// A member whose snapshot is older than a linearizable read is not used.
func TestLaggingMembersAreSkipped(t *testing.T) {
	var endpoints []string
	for range 2 {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		flags := etcdtest.Flags(t)
		flags.ListenClientURLs, flags.AllowInsecureTransport = []string{"http://" + listener.Addr().String()}, true
		listener.Close()
		client := etcdtest.Start(t, flags).Client()
		for range len(endpoints) + 1 { // the second member has a later revision
			if _, err := client.Put(t.Context(), "key", "value"); err != nil {
				t.Fatal(err)
			}
		}
		endpoints = append(endpoints, flags.ListenClientURLs...)
	}
	c := &creation{etcd: clientv3.Config{Logger: zap.NewNop()}, now: time.Now, log: t.Logf}
	file := filepath.Join(t.TempDir(), "snapshot.db")
	if err := c.saveFrom(t.Context(), endpoints, 3, file); err != nil || c.manifest.Member != endpoints[1] {
		t.Errorf("saved from %s: %v, want %s", c.manifest.Member, err, endpoints[1])
	}
	if err := c.saveFrom(t.Context(), endpoints, 4, file); err == nil ||
		strings.Count(err.Error(), "the member lags") != 2 {
		t.Errorf("got %v, want an error for both members", err)
	}
}

func TestBackupErrors(t *testing.T) {
	d := destination{flags: []string{"--directory", t.TempDir()}}
	for want, args := range map[string]string{
		"one of --endpoints and --data-dir": "create --path x",
		"no etcd member runs":               "create --path x --data-dir " + t.TempDir(),
		"which needs a quorum":              "create --path x --endpoints http://127.0.0.1:1 --timeout 200ms",
		"--data-dir is required":            "restore --path x",
		"is not a complete backup":          "restore --path x --unverified --data-dir " + t.TempDir(),
		"--unverified excludes":             "restore --path x --unverified --manifest-sha256 0 --data-dir x",
		"the verification key \"x\"":        "restore --path x --verification-key x --data-dir x",
		"must be a relative path":           "delete --path ../x",
	} {
		wantError(t, want, d, strings.Fields(args)...)
	}
	wantError(t, "one of --directory and --s3-endpoint", destination{}, "list")
	wantError(t, "--s3-bucket is required", destination{}, "list", "--s3-endpoint", "http://127.0.0.1:1")
	t.Setenv(accessKeyVariable, "")
	wantError(t, "S3 credentials are missing", destination{}, "list", "--s3-endpoint", "http://127.0.0.1:1",
		"--s3-bucket", "b")
}

// If a member dies while its snapshot is transferred, either the backup fails, or it is complete and undamaged.
func TestBackupWhileTheMemberDies(t *testing.T) {
	endpoint, process := startEtcd(t)
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for i := range 40 {
		if _, err := client.Put(t.Context(), fmt.Sprint("/registry/", i), strings.Repeat("x", 1<<20)); err != nil {
			t.Fatal(err)
		}
	}
	volume, scratch := t.TempDir(), t.TempDir()
	d := destination{flags: []string{"--directory", volume}}
	finished := make(chan error, 1)
	go func() {
		command := newCommand(io.Discard, io.Discard)
		command.SetArgs([]string{
			"create", "--endpoints", endpoint, "--path", "a", "--scratch", scratch, "--directory", volume,
		})
		finished <- command.ExecuteContext(t.Context())
	}()
	transferring := func(context.Context) (bool, error) {
		files, err := filepath.Glob(filepath.Join(scratch, "*", "*.partial*"))
		return len(files) > 0 || len(finished) > 0, err
	}
	if err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, time.Minute, true, transferring); err != nil {
		t.Fatal(err)
	}
	if err := process.Kill(); err != nil {
		t.Fatal(err)
	}
	failed := <-finished
	listed, err := run(t, d, "list")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the backup returned %v", failed)
	if complete := strings.Count(listed, "\n") == 2; complete != (failed == nil) {
		t.Errorf("the backup returned %v, listed is %q", failed, listed)
	}
	if failed == nil {
		mustRun(t, d, "restore", "--path", "a", "--data-dir", filepath.Join(t.TempDir(), "etcd"), "--unverified")
	}
}

// startEtcd starts etcd as a process, which the caller may kill.
func startEtcd(t *testing.T) (endpoint string, process *os.Process) {
	t.Helper()
	upstream.NeedsProcesses(t)
	binary, err := upstream.Etcd(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var urls []string
	for range 2 {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		urls = append(urls, "http://"+listener.Addr().String())
		listener.Close()
	}
	command := exec.Command(binary, "--data-dir", t.TempDir(), "--listen-client-urls", urls[0],
		"--advertise-client-urls", urls[0], "--listen-peer-urls", urls[1], "--initial-advertise-peer-urls", urls[1],
		"--initial-cluster", "default="+urls[1], "--unsafe-no-fsync", "--log-level", "error")
	command.Stderr = os.Stderr
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	return urls[0], command.Process
}
