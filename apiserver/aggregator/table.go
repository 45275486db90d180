package aggregator

import (
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Table has all Backends at one time. It is immutable.
type Table struct {
	byName map[string]*Backend
	byGV   map[schema.GroupVersion]*Backend
}

// newTable returns a table of the given Backends, whose map it copies. The names of APIServices contain their group
// versions, so that no two Backends have the same one.
func newTable(byName map[string]*Backend) *Table {
	t := &Table{byName: make(map[string]*Backend, len(byName)), byGV: make(map[schema.GroupVersion]*Backend, len(byName))}
	for name, b := range byName {
		t.byName[name] = b
		t.byGV[schema.GroupVersion{Group: b.Group, Version: b.Version}] = b
	}
	return t
}

// Get returns the Backend of an APIService, nil if this server serves its group version or there is no such
// APIService.
func (t *Table) Get(name string) *Backend { return t.byName[name] }

// Lookup returns the Backend of a group version, nil if this server serves it.
func (t *Table) Lookup(gv schema.GroupVersion) *Backend { return t.byGV[gv] }

// legacy is the group version whose APIService owns all paths under /api, as in kube-aggregator.
var legacy = schema.GroupVersion{Version: "v1"}

// Route returns the Backend of a path, nil if this server serves the path. Paths of a group without a version, such as
// /apis/GROUP, belong to this server, which merges the discovery of all versions.
func (t *Table) Route(path string) *Backend {
	if len(t.byGV) == 0 {
		return nil
	}
	if path == "/api" || strings.HasPrefix(path, "/api/") {
		return t.byGV[legacy]
	}
	rest, ok := strings.CutPrefix(path, "/apis/")
	if !ok {
		return nil
	}
	group, rest, _ := strings.Cut(rest, "/")
	version, _, _ := strings.Cut(rest, "/")
	if group == "" {
		return nil
	}
	return t.byGV[schema.GroupVersion{Group: group, Version: version}]
}
