package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// changedFiles returns the changed files of the packages that kube-apiserver links and Quorate does not, without
// generated files.
func changedFiles(ctx context.Context, before, after *release, linked map[string]bool) ([]change, error) {
	var changes []change
	for _, p := range union(before.packages, after.packages) {
		if linked[p] {
			continue
		}
		for _, file := range union(fileSet(before.packages[p]), fileSet(after.packages[p])) {
			if strings.HasPrefix(file, "zz_generated") || strings.HasSuffix(file, ".pb.go") {
				continue
			}
			c, err := compareFile(ctx, before.packages[p], after.packages[p], file)
			if err != nil {
				return nil, err
			}
			if c.before != c.after {
				c.name = path.Join(strings.TrimPrefix(p, "k8s.io/"), file)
				changes = append(changes, c)
			}
		}
	}
	slices.SortFunc(changes, func(a, b change) int { return cmp.Compare(a.name, b.name) })
	return changes, nil
}

func fileSet(p *sourcePackage) map[string]bool {
	files := map[string]bool{}
	if p != nil {
		for _, name := range p.GoFiles {
			files[name] = true
		}
	}
	return files
}

// union returns the sorted keys of both maps.
func union[V any](a, b map[string]V) []string {
	var keys []string
	for key := range a {
		keys = append(keys, key)
	}
	for key := range b {
		if _, found := a[key]; !found {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// compareFile returns how many lines of a file changed. The name of the change is empty.
func compareFile(ctx context.Context, before, after *sourcePackage, name string) (change, error) {
	switch {
	case before == nil || !fileSet(before)[name]:
		return change{after: "new"}, nil
	case after == nil || !fileSet(after)[name]:
		return change{before: "gone"}, nil
	}
	old, recent := filepath.Join(before.Dir, name), filepath.Join(after.Dir, name)
	output, err := exec.CommandContext(ctx, "git", "diff", "--no-index", "--numstat", old, recent).Output()
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) {
		return change{}, fmt.Errorf("compare %s: %w", old, err)
	}
	fields := strings.Fields(string(output))
	if len(fields) < 2 {
		return change{}, nil
	}
	return change{before: "-" + fields[1], after: "+" + fields[0]}, nil
}
