package aggregator

import (
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Table is the set of backends at one time. It is immutable.
type Table struct {
	byName map[string]*Backend
	byGV   map[schema.GroupVersion]*Backend
}

func newTable(byName map[string]*Backend) *Table {
	t := &Table{byName: make(map[string]*Backend, len(byName)), byGV: make(map[schema.GroupVersion]*Backend, len(byName))}
	for name, b := range byName {
		t.byName[name] = b
		t.byGV[schema.GroupVersion{Group: b.Group, Version: b.Version}] = b
	}
	return t
}

// Get returns the backend of an APIService; nil if there is none.
func (t *Table) Get(name string) *Backend { return t.byName[name] }

// Lookup returns the backend of a group version; nil if this server serves it.
func (t *Table) Lookup(gv schema.GroupVersion) *Backend { return t.byGV[gv] }

// legacy is the group version that owns all paths under /api, as in kube-aggregator.
var legacy = schema.GroupVersion{Version: "v1"}

// Route returns the backend of a path; nil if this server serves it.
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
