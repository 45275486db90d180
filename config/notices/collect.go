package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

// module is a linked module with the texts of its licences and notices.
type module struct {
	name    string            // path and version
	root    string            // directory
	notices map[string]string // texts by file name, relative to root
}

var (
	// notice matches the names of files that must be distributed with a binary. licence matches files that permit its
	// use.
	notice  = regexp.MustCompile(`(?i)^(un)?(licen[cs]es?|copying|copyright|notices?|patents)([-._].*)?$`)
	licence = regexp.MustCompile(`(?i)^(un)?(licen[cs]es?|copying|copyright)([-._].*)?$`)
)

// collect reads the notices of the modules to which packages belong, sorted by module name. Third-party code in a
// module has its licence in its own directory, so collect reads every directory from a linked package up to the root of
// its module.
func collect(packages []linkedPackage) ([]*module, error) {
	modules := map[string]*module{}
	for _, p := range packages {
		name, root := origin(p)
		if name == "" {
			continue
		}
		m := modules[name]
		if m == nil {
			m = &module{name: name, root: root, notices: map[string]string{}}
			modules[name] = m
		}
		for directory := p.Dir; ; directory = filepath.Dir(directory) {
			if err := m.read(directory); err != nil {
				return nil, err
			}
			if directory == root {
				break
			}
			if directory == filepath.Dir(directory) {
				return nil, fmt.Errorf("%s is not below the root %q of %s", p.Dir, root, name)
			}
		}
	}
	var errs []error
	sorted := slices.SortedFunc(maps.Values(modules), func(a, b *module) int { return strings.Compare(a.name, b.name) })
	for _, m := range sorted {
		if !m.licensed() {
			errs = append(errs, fmt.Errorf("linked module %s has no licence in %s", m.name, m.root))
		}
	}
	return sorted, errors.Join(errs...)
}

// origin returns the name and the directory of the module of a package. The name is "" for this project.
func origin(p linkedPackage) (name, root string) {
	switch m := p.Module; {
	case p.Standard:
		// go list gives the standard library's own vendored packages no Root if the main module has a vendor directory.
		return "Go " + strings.TrimPrefix(runtime.Version(), "go"),
			strings.TrimSuffix(p.Dir, filepath.Join("/src", p.ImportPath))
	case m == nil, m.Main:
		return "", ""
	case m.Replace != nil:
		return m.Replace.Path + " " + m.Replace.Version, cmp.Or(m.Replace.Dir, vendored(p))
	case m.Dir == "":
		return m.Path + " " + m.Version, vendored(p)
	default:
		return m.Path + " " + m.Version, m.Dir
	}
}

// vendored returns the directory in vendor/ that contains the module of a package.
func vendored(p linkedPackage) string {
	return strings.TrimSuffix(p.Dir, strings.TrimPrefix(p.ImportPath, p.Module.Path))
}

// read adds the notices in one directory to the module.
func (m *module) read(directory string) error {
	entries, err := os.ReadDir(directory)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.IsDir() || !isNotice(entry.Name()) {
			continue
		}
		file := filepath.Join(directory, entry.Name())
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(m.root, file)
		if err != nil {
			return err
		}
		m.notices[filepath.ToSlash(relative)] = string(text)
	}
	return nil
}

// isNotice reports whether a file is a licence or notice. Source code with such a name is not.
func isNotice(name string) bool { return notice.MatchString(name) && filepath.Ext(name) != ".go" }

func (m *module) licensed() bool {
	for name := range m.notices {
		if licence.MatchString(name) { // licence in the root directory
			return true
		}
	}
	return false
}
