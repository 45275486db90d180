package upstream

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"quorate.dev/release/kubernetes"
)

// FormerMinors returns a release of each of the two Kubernetes minor versions before this server's, the newer first.
// Tests of the version skew run the programs of these releases.
func FormerMinors() []string { return []string{"v1.36.3", "v1.35.4"} }

// BinaryOf is like Binary, for a release of Kubernetes such as v1.36.3. The empty version is the release that this
// module requires. A program of another release is built in a module of its own, at most once for each toolchain, which
// takes ten minutes of CPU time and downloads the libraries of that release.
func BinaryOf(ctx context.Context, name, version string) (string, error) {
	if version == "" {
		return Binary(ctx, name)
	}
	if path, ok := prebuilt(name + "-" + version); ok {
		return path, nil
	}
	former, err := workspaceOf(ctx, version)
	if err != nil {
		return "", err
	}
	return former.buildOnce(ctx, name, kubernetesModule+"/cmd/"+name, versionFlags(version))
}

// workspaceOf returns a workspace whose module requires a release of Kubernetes. Its directory is in the cache and does
// not depend on this module, so that changes of this module's requirements do not cause builds.
func workspaceOf(ctx context.Context, version string) (*workspace, error) {
	environment, err := goEnvironment(ctx)
	if err != nil {
		return nil, err
	}
	user, err := os.UserCacheDir()
	if err != nil {
		return nil, err
	}
	key := digest([]byte(environment["GOVERSION"]), []byte(environment["CGO_ENABLED"]),
		[]byte(environment["GOOS"]), []byte(environment["GOARCH"]))
	cache := filepath.Join(user, "quorate", version+"-"+key)
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return nil, err
	}
	// -mod=mod lets go build add checksums to the module's go.sum.
	return &workspace{root: cache, cache: cache, flags: []string{"-mod=mod", "-p=2"}}, createModule(ctx, cache, version)
}

// createModule writes the go.mod of a module that requires a release of Kubernetes, unless it exists.
func createModule(ctx context.Context, directory, version string) error {
	file := filepath.Join(directory, "go.mod")
	unlock, err := lock(file + ".lock")
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	_, err = kubernetes.Module{Directory: directory}.Create(ctx, version)
	return err
}
