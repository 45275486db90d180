package aggregator

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
)

// APIService is one observed APIService. It is immutable.
type APIService struct {
	Name            string
	Group           string
	Version         string
	GroupPriority   int32 // spec.groupPriorityMinimum
	VersionPriority int32
	ResourceVersion string
	// Backend is the other server that serves the group version; nil if this server does.
	Backend *Backend
}

// Table is the set of APIServices at one time. It is immutable.
type Table struct {
	services []*APIService // sorted by name
	groups   [][]*APIService
	backends []*Backend // in the order of services
	byGV     map[schema.GroupVersion]*Backend
	replaced chan struct{}
}

func newTable(services []*APIService) *Table {
	t := &Table{services: services, byGV: map[schema.GroupVersion]*Backend{}, replaced: make(chan struct{})}
	t.groups = sortedByGroupAndVersion(services)
	for _, s := range services {
		if s.Backend != nil {
			t.backends = append(t.backends, s.Backend)
			t.byGV[schema.GroupVersion{Group: s.Group, Version: s.Version}] = s.Backend
		}
	}
	return t
}

// Lookup returns the backend of a group version, if another server serves it.
func (t *Table) Lookup(group, version string) (*Backend, bool) {
	b, ok := t.byGV[schema.GroupVersion{Group: group, Version: version}]
	return b, ok
}

// All returns the backends, sorted by the names of their APIServices. The caller must not change the slice.
func (t *Table) All() []*Backend { return t.backends }

// APIServices returns all APIServices, also those that this server serves, sorted by name. The caller must not change
// the slice.
func (t *Table) APIServices() []*APIService { return t.services }

// Groups returns all APIServices by group in kube-aggregator's order (SortedByGroupAndVersion): the group whose APIService
// has the highest group priority first, then by name; within a group by version priority, then by version. The caller
// must not change the slices.
func (t *Table) Groups() [][]*APIService { return t.groups }

// Replaced returns a channel that is closed when the aggregator has a newer table.
func (t *Table) Replaced() <-chan struct{} { return t.replaced }

// sortedByGroupAndVersion mirrors kube-aggregator's function of this name.
func sortedByGroupAndVersion(services []*APIService) [][]*APIService {
	sorted := slices.Clone(services)
	slices.SortFunc(sorted, func(a, b *APIService) int {
		return cmp.Or(cmp.Compare(b.GroupPriority, a.GroupPriority), cmp.Compare(a.Name, b.Name))
	})
	var groups [][]*APIService
	index := map[string]int{}
	for _, s := range sorted {
		i, ok := index[s.Group]
		if !ok {
			i = len(groups)
			index[s.Group] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], s)
	}
	for _, group := range groups {
		slices.SortFunc(group, func(a, b *APIService) int {
			return cmp.Or(cmp.Compare(b.VersionPriority, a.VersionPriority),
				-version.CompareKubeAwareVersionStrings(a.Version, b.Version))
		})
	}
	return groups
}
