package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"go/scanner"
	"go/token"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// changedFiles returns the changes of the packages that kube-apiserver links, by section: one change for each file of
// strategies, storages and replaced packages, and one for each other package. Generated files, and files in which only
// comments changed, are left out.
func changedFiles(ctx context.Context, before, after *release, linked map[string]bool) (map[string][]change, error) {
	sections := map[string][]change{}
	for _, p := range union(before.packages, after.packages) {
		section := sectionOf(p, linked[p])
		if section == "" {
			continue
		}
		var changes []change
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
		if section == sectionLibraries || section == sectionOthers {
			changes = summarized(strings.TrimPrefix(p, "k8s.io/"), changes)
		}
		sections[section] = append(sections[section], changes...)
	}
	for _, changes := range sections {
		slices.SortFunc(changes, func(a, b change) int { return cmp.Compare(a.name, b.name) })
	}
	return sections, nil
}

// strategies matches the packages of strategies and storages.
var strategies = regexp.MustCompile(`^k8s\.io/(kubernetes|apiextensions-apiserver|kube-aggregator)/pkg/registry/`)

// replaced matches the packages whose functions Quorate implements itself. It links many of them nevertheless, because
// packages of strategies import them.
var replaced = regexp.MustCompile(`^k8s\.io/(apiserver/pkg/(endpoints|registry/generic|server|storage)|` +
	`apiextensions-apiserver/pkg/(apiserver|controller)|kube-aggregator/pkg/(apiserver|controllers)|` +
	`kubernetes/(cmd/kube-apiserver|pkg/controlplane|pkg/kubeapiserver))(/|$)`)

// generated matches the packages of generated clients, and of the types of the API, which come with the library.
var generated = regexp.MustCompile(`^k8s\.io/api/|` +
	`^k8s\.io/(client-go|.*/pkg/client)/` +
	`(applyconfigurations?|informers|kubernetes|listers|clientset|clientset_generated)(/|$)`)

// sectionOf returns the section with the changes of a package; empty: the changes are left out.
func sectionOf(importPath string, linked bool) string {
	switch {
	case strategies.MatchString(importPath):
		return sectionStrategies
	case generated.MatchString(importPath):
		return ""
	case replaced.MatchString(importPath):
		return sectionFiles
	case linked:
		return sectionLibraries
	}
	return sectionOthers
}

// summarized returns the changes of a package as one change, or none if there are none.
func summarized(name string, changes []change) []change {
	if len(changes) == 0 {
		return nil
	}
	var files []string
	for _, c := range changes {
		files = append(files, strings.Join(strings.Fields(path.Base(c.name)+" "+c.before+" "+c.after), " "))
	}
	return []change{{name: name, after: strings.Join(files, ", ")}}
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

// compareFile returns how many lines of a file changed; none if only comments did. The name of the change is empty.
func compareFile(ctx context.Context, before, after *sourcePackage, name string) (change, error) {
	switch {
	case before == nil || !fileSet(before)[name]:
		return change{after: "new"}, nil
	case after == nil || !fileSet(after)[name]:
		return change{before: "gone"}, nil
	}
	old, recent := filepath.Join(before.Dir, name), filepath.Join(after.Dir, name)
	if same, err := sameCode(old, recent); err != nil || same {
		return change{}, err
	}
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

// sameCode reports whether two Go files have the same tokens apart from comments.
func sameCode(a, b string) (bool, error) {
	before, err := os.ReadFile(a)
	if err != nil {
		return false, err
	}
	after, err := os.ReadFile(b)
	if err != nil {
		return false, err
	}
	return slices.Equal(tokens(before), tokens(after)), nil
}

// tokens returns the tokens of Go source without comments.
func tokens(source []byte) []string {
	var s scanner.Scanner
	files := token.NewFileSet()
	s.Init(files.AddFile("", files.Base(), len(source)), source, nil, 0)
	var all []string
	for {
		_, kind, literal := s.Scan()
		if kind == token.EOF {
			return all
		}
		all = append(all, kind.String()+" "+literal)
	}
}
