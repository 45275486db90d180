package upstream

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"quorate.dev/apiserver/config"
)

// firstAdoptable is the oldest commit whose clusters later operators adopt unchanged; earlier commits have other names
// in the API. It counts as the previous release until there is a release.
const firstAdoptable = "10f2742"

// ErrNoHistory is returned if the clone does not have the history of the repository.
var ErrNoHistory = errors.New("the repository has no history")

// Release is a former version of this project.
type Release struct {
	Name   string // name of a tag or a commit
	Root   string // directory of the sources
	Binary string
}

// Previous returns the newest release before the present commit, built from the history of the repository. The caller
// must remove its Root.
func Previous(ctx context.Context) (*Release, error) {
	here, err := inspect(ctx)
	if err != nil {
		return nil, err
	}
	r := &Release{Name: firstAdoptable}
	if tag, err := run(ctx, here.root, "git", "describe", "--tags", "--abbrev=0", "HEAD^"); err == nil {
		r.Name = strings.TrimSpace(string(tag))
	}
	if _, err := run(ctx, here.root, "git", "cat-file", "-e", r.Name+"^{commit}"); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoHistory, err)
	}
	return r, r.build(ctx, here)
}

// PreviousMinor returns the last version of this project before its move to the present minor version of Kubernetes,
// built from the history of the repository. The caller must remove its Root.
func PreviousMinor(ctx context.Context) (*Release, error) {
	here, err := inspect(ctx)
	if err != nil {
		return nil, err
	}
	present := `-Gk8s\.io/kubernetes v1\.` + config.KubernetesMinor + `\.`
	moves, err := run(ctx, here.root, "git", "log", "--format=%H", present, "--", "go.mod")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoHistory, err)
	}
	commits := strings.Fields(string(moves))
	if len(commits) == 0 {
		return nil, fmt.Errorf("%w: no commit moves to Kubernetes 1.%s", ErrNoHistory, config.KubernetesMinor)
	}
	former, err := run(ctx, here.root, "git", "rev-parse", "--verify", commits[len(commits)-1]+"^")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoHistory, err)
	}
	r := &Release{Name: strings.TrimSpace(string(former))}
	return r, r.build(ctx, here)
}

// build extracts the sources of the release from the history of a workspace and builds its binary.
func (r *Release) build(ctx context.Context, here *workspace) (err error) {
	if r.Root, err = os.MkdirTemp("", "quorate-previous-"); err != nil {
		return err
	}
	if err := extract(ctx, here.root, r.Name, r.Root); err != nil {
		return err
	}
	r.Binary = filepath.Join(r.Root, "quorate")
	former := &workspace{root: r.Root}
	return former.build(ctx, r.Binary, "quorate.dev", "-s -w")
}

// extract writes the files of a commit into a directory.
func extract(ctx context.Context, root, commit, directory string) error {
	archive := exec.CommandContext(ctx, "git", "-C", root, "archive", commit)
	unpack := exec.CommandContext(ctx, "tar", "-x", "-C", directory)
	var err error
	if unpack.Stdin, err = archive.StdoutPipe(); err != nil {
		return err
	}
	if err := unpack.Start(); err != nil {
		return err
	}
	return errors.Join(archive.Run(), unpack.Wait())
}
