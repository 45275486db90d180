package main

import (
	"maps"
	"slices"
)

// inventory has the facts of a release: by section, and in it by name. A fact's value is text that changes if and only
// if something changes that matters to Quorate.
type inventory map[string]map[string]string

// set adds a fact.
func (i inventory) set(section, name, value string) {
	if i[section] == nil {
		i[section] = map[string]string{}
	}
	i[section][name] = value
}

// change is one difference between two releases.
type change struct {
	name          string
	before, after string // "": the release does not have it
}

// compare returns the differences by section, each sorted by name.
func compare(before, after inventory) map[string][]change {
	sections := map[string][]change{}
	for _, s := range sectionOrder {
		old, recent := before[s.id], after[s.id]
		names := slices.Collect(maps.Keys(recent))
		for name := range old {
			if _, kept := recent[name]; !kept {
				names = append(names, name)
			}
		}
		slices.Sort(names)
		for _, name := range names {
			if old[name] != recent[name] {
				sections[s.id] = append(sections[s.id], change{name, old[name], recent[name]})
			}
		}
	}
	return sections
}

// section is a kind of facts.
type section struct {
	id, title string
	// advice describes the work that a change in this section causes.
	advice string
}

// The sections whose facts come from the sources. The inspector has the names of the others.
const (
	sectionDependencies = "dependencies"
	sectionResources    = "resources"
	sectionFilters      = "filters"
	sectionHooks        = "hooks"
	sectionMetrics      = "metrics"
	sectionStrategies   = "strategies"
	sectionFiles        = "files"
	sectionLibraries    = "libraries"
	sectionOthers       = "others"
)

// sectionOrder lists the sections in the order in which their changes are worked on: first the changes without which
// the code does not compile, last the changes that only a running server shows.
var sectionOrder = []section{
	{
		sectionDependencies, "Dependencies",
		"go.mod follows the versions that kube-apiserver is built with; test/architecture compares them.",
	},
	{
		"gates", "Feature gates",
		"A gate that is on by default is honoured in both positions; a gate that is gone leaves no trace here.",
	},
	{"flags", "Flags and their defaults", "apiserver/config has the same flags, or a reason in docs/flags.md."},
	{"versions", "Groups, versions and resources", "apiserver/builtin/enablement serves the same by default."},
	{sectionResources, "Resources in discovery", "apiserver/builtin defines them; the differential compares discovery."},
	{
		"storage", "Storage versions and paths in etcd",
		"apiserver/builtin stores them at the same path and in the same version.",
	},
	{"admission", "Admission plugins and their order", "apiserver/admission/plugins has the same order."},
	{sectionFilters, "Filters of requests", "apiserver/filters has the same chain, or a reason for the difference."},
	{"rbac", "Bootstrap roles and bindings", "They come from the library; tests of roles and docs may name them."},
	{"flowcontrol", "Flow schemas and priority levels", "They come from the library; docs/fairness.md names them."},
	{"priorityclasses", "Priority classes", "apiserver/system creates them."},
	{sectionHooks, "Health checks and start-up hooks", "apiserver/startup has hooks of the same names."},
	{sectionMetrics, "Metrics", "test/metrics compares the families that both servers have."},
	{sectionStrategies, "Strategies and REST storages",
		"apiserver/builtin uses the strategies and mirrors the storages: names, verbs, subresources, hooks.",
	},
	{sectionFiles, "Files of packages that Quorate replaces",
		"Each change needs an equivalent here or a reason.",
	},
	{sectionLibraries, "Packages that Quorate links",
		"The behaviour comes with the library; what calls it here may have to change. One line for each package, " +
			"without generated clients and API types.",
	},
	{sectionOthers, "Packages that Quorate does not link",
		"kube-apiserver links them. One line for each package."},
}
