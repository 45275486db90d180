// Package upstream builds Kubernetes' binaries, etcd and this project's binary from the module graph, and runs them as
// processes with their certificates.
package upstream

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"quorate.dev/release/kubernetes"
)

// Prebuilt is the environment variable with a directory of prebuilt binaries. A binary that is not in the directory is
// built.
const Prebuilt = "QUORATE_GENUINE_DIR"

// kubernetesModule is the module of Kubernetes' binaries.
const kubernetesModule = kubernetes.Path

// Binary returns the path of the program k8s.io/kubernetes/cmd/NAME. It is built at most once for each module graph and
// toolchain.
func Binary(ctx context.Context, name string) (string, error) {
	if path, ok := prebuilt(name); ok {
		return path, nil
	}
	workspace, err := inspect(ctx)
	if err != nil {
		return "", err
	}
	version, err := workspace.module(ctx, "Version", kubernetesModule)
	if err != nil {
		return "", err
	}
	return workspace.buildOnce(ctx, name, kubernetesModule+"/cmd/"+name, versionFlags(version))
}

// Etcd returns the path of etcd.
func Etcd(ctx context.Context) (string, error) {
	if path, ok := prebuilt("etcd"); ok {
		return path, nil
	}
	workspace, err := inspect(ctx)
	if err != nil {
		return "", err
	}
	return workspace.buildOnce(ctx, "etcd", "quorate.dev/test/upstream/etcd", "-s -w")
}

// ours is the path of our own binary, once this process has built it.
var ours struct {
	sync.Mutex
	path string
}

// Quorate returns the path of our own binary. The first call builds it from the sources.
func Quorate(ctx context.Context) (string, error) {
	if path, ok := prebuilt("quorate"); ok {
		return path, nil
	}
	ours.Lock()
	defer ours.Unlock()
	if ours.path != "" {
		return ours.path, nil
	}
	path, err := buildQuorate(ctx)
	ours.path = path
	return path, err
}

func buildQuorate(ctx context.Context) (string, error) {
	workspace, err := inspect(ctx)
	if err != nil {
		return "", err
	}
	target := filepath.Join(workspace.cache, "quorate-"+digest([]byte(workspace.root)))
	unlock, err := lock(target + ".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if err := workspace.build(ctx, target, "quorate.dev", "-s -w"); err != nil {
		return "", err
	}
	return target, lookAtSources(workspace.root)
}

// lookAtSources calls Stat for the sources of the program, so that `go test` does not use a cached result when they
// have changed: cached results depend on files that the test process itself has accessed, and not on files of the
// compiler that it has started. Hidden directories have no sources. A stopped sandbox leaves links to a binary in
// .quorate that no longer exists, and the files of a running one change all the time.
func lookAtSources(root string) error {
	return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != root && (strings.HasPrefix(entry.Name(), ".") || path == filepath.Join(root, "test")):
			return filepath.SkipDir
		case entry.IsDir() || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		_, err = os.Stat(path)
		return err
	})
}

func prebuilt(name string) (string, bool) {
	directory := os.Getenv(Prebuilt)
	if directory == "" {
		return "", false
	}
	path := filepath.Join(directory, name)
	_, err := os.Stat(path)
	return path, err == nil
}

// workspace has the directory of a module, usually this one, and the directory in which its binaries are cached.
type workspace struct {
	root  string
	cache string
	// flags are additional flags of go build and go list.
	flags []string
}

// inspect returns the workspace. It works in every directory of the module.
func inspect(ctx context.Context) (*workspace, error) {
	environment, err := goEnvironment(ctx)
	if err != nil {
		return nil, err
	}
	root := filepath.Dir(environment["GOMOD"])
	sums, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		return nil, fmt.Errorf("not inside the module: %w", err)
	}
	user, err := os.UserCacheDir()
	if err != nil {
		return nil, err
	}
	key := digest(sums, []byte(environment["GOVERSION"]), []byte(environment["CGO_ENABLED"]),
		[]byte(environment["GOOS"]), []byte(environment["GOARCH"]))
	cache := filepath.Join(user, "quorate", key)
	return &workspace{root: root, cache: cache}, os.MkdirAll(cache, 0o755)
}

// goEnvironment returns the variables of `go env` that builds depend on.
func goEnvironment(ctx context.Context) (map[string]string, error) {
	output, err := run(ctx, "", "go", "env", "-json", "GOMOD", "GOVERSION", "CGO_ENABLED", "GOOS", "GOARCH")
	if err != nil {
		return nil, err
	}
	var environment map[string]string
	if err := json.Unmarshal(output, &environment); err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	return environment, nil
}

// digest returns a hash that is short, but long enough to distinguish the checkouts and toolchains of one user.
func digest(parts ...[]byte) string {
	sum := sha256.Sum256(bytes.Join(parts, []byte{0}))
	return hex.EncodeToString(sum[:8])
}

// module returns a field of `go list -m`.
func (w *workspace) module(ctx context.Context, field, module string) (string, error) {
	arguments := slices.Concat([]string{"list", "-m", "-f", "{{." + field + "}}"}, w.flags, []string{module})
	output, err := run(ctx, w.root, "go", arguments...)
	return strings.TrimSpace(string(output)), err
}

// versionFlags returns the linker flags of a Kubernetes release. Without them, a binary reports the version
// v0.0.0-master.
func versionFlags(version string) string {
	const variable = " -X k8s.io/component-base/version."
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	flags := "-s -w" + variable + "gitVersion=" + version + variable + "gitTreeState=clean"
	if len(parts) == 3 {
		flags += variable + "gitMajor=" + parts[0] + variable + "gitMinor=" + parts[1]
	}
	return flags
}

// buildOnce builds a binary unless it exists. The name of its directory contains a hash of all inputs of the build.
func (w *workspace) buildOnce(ctx context.Context, name, source, linkerFlags string) (string, error) {
	target := filepath.Join(w.cache, name)
	unlock, err := lock(target + ".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(target); err == nil {
		return target, nil
	}
	partial := target + ".partial"
	if err := w.build(ctx, partial, source, linkerFlags); err != nil {
		return "", err
	}
	return target, os.Rename(partial, target)
}

func (w *workspace) build(ctx context.Context, target, source, linkerFlags string) error {
	arguments := slices.Concat([]string{"build", "-o", target, "-ldflags", linkerFlags}, w.flags, []string{source})
	_, err := run(ctx, w.root, "go", arguments...)
	return err
}

func run(ctx context.Context, directory, name string, arguments ...string) ([]byte, error) {
	command := exec.CommandContext(ctx, name, arguments...)
	command.Dir = directory
	var problems bytes.Buffer
	command.Stderr = &problems
	output, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w\n%s", name, strings.Join(arguments, " "), err, problems.Bytes())
	}
	return output, nil
}

// lock waits until no other process holds the lock of a file. The kernel releases the lock when the process exits.
func lock(path string) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
		file.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { file.Close() }, nil
}
