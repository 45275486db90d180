package etcdctl

import (
	"bytes"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"quorate.dev/apiserver/config"
	"quorate.dev/apiserver/etcd/etcdtest"
)

// run runs the command and returns what it prints.
func run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	command := newCommand(&out)
	command.SetArgs(args)
	err := command.ExecuteContext(t.Context())
	return out.String(), err
}

// mustRun runs the command and parses the JSON that it prints.
func mustRun[T any](t *testing.T, args ...string) (result T) {
	t.Helper()
	out, err := run(t, append(args, "-o", "json")...)
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return parse[T](t, out)
}

func parse[T any](t *testing.T, out string) (result T) {
	t.Helper()
	if err := json.Unmarshal([]byte(out), &result); err != nil {
		t.Fatalf("%q: %v", out, err)
	}
	return result
}

// Each command reaches a member by its data directory and by its URL.
func TestCommands(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	url := "http://" + listener.Addr().String()
	listener.Close()
	flags := etcdtest.Flags(t)
	flags.ListenClientURLs, flags.AllowInsecureTransport = []string{url}, true
	member := etcdtest.Start(t, flags)
	if _, err := member.Client().Put(t.Context(), "key", "value"); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string][]string{flags.DataDirectory: {"--data-dir", flags.DataDirectory},
		url: {"--endpoints", url}} {
		with := func(args ...string) []string { return append(args, target...) }
		shown := mustRun[[]memberStatus](t, with("status")...)
		if len(shown) != 1 || shown[0].Endpoint != name || shown[0].Role != "leader" || shown[0].QuotaBytes != 2<<30 ||
			shown[0].SizeBytes == 0 {
			t.Errorf("status of %s: %+v", name, shown)
		}
		table, err := run(t, with("status")...)
		if lines := strings.Split(strings.TrimSpace(table), "\n"); err != nil || len(lines) != 2 ||
			!strings.HasPrefix(lines[0], "ENDPOINT") || !strings.Contains(lines[1], "2048.0 MiB (0%)") {
			t.Errorf("status of %s: %q, %v", name, table, err)
		}
		if alarms := mustRun[[]alarm](t, with("alarm", "list")...); len(alarms) != 0 {
			t.Errorf("alarms of %s: %+v", name, alarms)
		}
		if out, err := run(t, with("alarm", "disarm")...); err != nil || out != "No alarms\n" {
			t.Errorf("disarming the alarms of %s: %q, %v", name, out, err)
		}
		if done := mustRun[[]defragmented](t, with("defrag")...); len(done) != 1 || done[0].Endpoint != name ||
			done[0].AfterBytes == 0 {
			t.Errorf("defragmenting %s: %+v", name, done)
		}
		checkSnapshot(t, with)
	}
}

func checkSnapshot(t *testing.T, with func(...string) []string) {
	t.Helper()
	directory := t.TempDir()
	file := filepath.Join(directory, "snapshot.db")
	s := mustRun[snapshotFile](t, with("snapshot", "save", file)...)
	info, err := os.Stat(file)
	if err != nil || s.File != file || s.SizeBytes != info.Size() || info.Mode().Perm() != 0o600 || s.Keys != 1 {
		t.Fatalf("the snapshot is %+v, the file %v, %v", s, info, err)
	}
	if files, err := os.ReadDir(directory); err != nil || len(files) != 1 {
		t.Errorf("left in the directory: %v, %v", files, err)
	}
	if verified := mustRun[snapshotFile](t, "snapshot", "status", file); verified.SHA256 != s.SHA256 {
		t.Errorf("status of the snapshot is %+v, want %+v", verified, s)
	}
	restored := filepath.Join(directory, "restored")
	other := strings.Repeat("0", len(s.SHA256))
	if out, err := run(t, "restore", file, "--sha256", other, "--data-dir", restored); err == nil ||
		!strings.Contains(err.Error(), s.SHA256) {
		t.Errorf("restored with another SHA-256: %q, %v", out, err)
	}
	if r := mustRun[snapshotFile](t, "restore", file, "--sha256", s.SHA256, "--data-dir", restored); r.SHA256 != s.SHA256 {
		t.Errorf("restored %+v, want %+v", r, s)
	}
	unverified := filepath.Join(directory, "unverified")
	if r := mustRun[snapshotFile](t, "restore", file, "--unverified", "--data-dir", unverified); r.SHA256 != s.SHA256 {
		t.Errorf("restored %+v, want %+v", r, s)
	}
	member := etcdtest.Start(t, config.Member{
		Name: "default", DataDirectory: restored, InitialClusterState: "new", InitialClusterToken: "x", UnsafeNoFsync: true,
		SnapshotCount: 1000, HeartbeatInterval: 100 * time.Millisecond, ElectionTimeout: time.Second,
	})
	if got, err := member.Client().Get(t.Context(), "key"); err != nil || len(got.Kvs) != 1 || got.Header.Revision < 1e9 {
		t.Errorf("read from the restored member: %v, %v", got, err)
	}
}

func TestErrors(t *testing.T) {
	directory := t.TempDir()
	for name, test := range map[string]struct{ args, want string }{
		"no target":                {"status", "--data-dir or --endpoints is required"},
		"two targets":              {"status --data-dir x --endpoints http://127.0.0.1:1", "mutually exclusive"},
		"a format":                 {"status --data-dir x -o yaml", `--output "yaml" must be json`},
		"an unknown command":       {"compact --data-dir x", `unknown command "compact"`},
		"an unknown alarm command": {"alarm disram --data-dir x", `unknown command "disram"`},
		"an unknown file command":  {"snapshot stauts --data-dir x", `unknown command "stauts"`},
		"no member": {
			"status --data-dir " + directory, "no etcd member runs on the data directory " + directory,
		},
		"no listener": {"status --endpoints http://127.0.0.1:1",
			"http://127.0.0.1:1: get the status: connection error"},
		"no listener, alarms": {"alarm list --endpoints http://127.0.0.1:1", "connection refused"},
		"no listener, defrag": {"defrag --endpoints http://127.0.0.1:1", "connection refused"},
		"no listener, save":   {"snapshot save --endpoints http://127.0.0.1:1 " + directory + "/x", "connection refused"},
		"several to save": {"snapshot save --endpoints http://127.0.0.1:1,http://127.0.0.1:2 " + directory + "/x",
			"must name exactly one member"},
		"no file to save to": {"snapshot save --data-dir x", "takes one argument, the file to write"},
		"no snapshot":        {"snapshot status " + directory + "/none", "no such file"},
		"no data directory":  {"restore x --unverified", "--data-dir is required"},
		"an unverified snapshot": {
			"restore x --data-dir " + directory + "/new", "one of --sha256 and --unverified is required",
		},
		"a contradiction": {"restore x --sha256 0 --unverified --data-dir " + directory + "/new",
			"one of --sha256 and --unverified is required"},
		"nothing to restore": {
			"restore " + directory + "/none --unverified --data-dir " + directory + "/new", "no such file",
		},
		"a missing authority": {"status --endpoints https://127.0.0.1:1 --cacert " + directory + "/ca.crt", "no such file"},
		"one of two listeners": {"status --endpoints http://127.0.0.1:1,http://127.0.0.1:2",
			"http://127.0.0.1:2: get the status"},
	} {
		t.Run(name, func(t *testing.T) {
			if out, err := run(t, strings.Fields(test.args)...); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v and %q, want %q", err, out, test.want)
			}
		})
	}
	if files, _ := os.ReadDir(directory); len(files) > 0 {
		t.Errorf("failed commands left %v", files)
	}
}
