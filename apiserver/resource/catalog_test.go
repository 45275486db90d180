package resource

import "testing"

func define(source Source, group, plural string, versions ...string) *Definition {
	d := &Definition{Source: source, Group: group, Plural: plural}
	for _, name := range versions {
		d.Versions = append(d.Versions, &Version{Name: name})
	}
	return d
}

func TestCatalog(t *testing.T) {
	first := define(BuiltIn, "apps", "things", "v1", "v1beta1")
	later := define(Custom, "apps", "things", "v1", "v2")
	custom := define(Custom, "example.com", "widgets", "v1")
	core := define(BuiltIn, "", "pods", "v1")
	hidden := define(Custom, "apps", "gadgets", "v1")
	catalog := NewCatalog(first, later, custom, core, hidden)
	if m, ok := catalog.Lookup("apps", "v1", "things"); !ok || m.Definition != first {
		t.Errorf("got %+v, want the earlier definition", m)
	}
	if m, ok := catalog.Lookup("apps", "v2", "things"); ok {
		t.Errorf("got %+v: a custom resource is served in a group of built-in kinds", m)
	}
	if m, ok := catalog.Lookup("example.com", "v1", "widgets"); !ok || m.Definition != custom {
		t.Errorf("got %+v, want the custom resource", m)
	}
	if _, ok := catalog.Lookup("apps", "v9", "things"); ok {
		t.Error("found a version that is not served")
	}
	if m, ok := catalog.Find(first.GroupResource()); !ok || m.Version.Name != "v1" {
		t.Errorf("got %+v, want the preferred version", m)
	}
	if !catalog.BuiltIn("apps") || !catalog.BuiltIn("") || catalog.BuiltIn("example.com") || catalog.BuiltIn("nothing") {
		t.Error("groups of built-in kinds")
	}
	var names string
	for _, gv := range catalog.GroupVersions() {
		names += gv.Group + "/" + gv.Version
		for _, m := range gv.Resources {
			names += " " + m.Plural
		}
		names += "; "
	}
	if want := "/v1 pods; apps/v1 things; apps/v1beta1 things; apps/v2 things; example.com/v1 widgets; "; names != want {
		t.Errorf("got %s, want %s", names, want)
	}
}

// TestCatalogsShareGroups checks that only groups whose definitions differ are built again.
func TestCatalogsShareGroups(t *testing.T) {
	one, other := define(Custom, "one.example.com", "things", "v1"), define(Custom, "other.example.com", "things", "v1")
	before := NewCatalog(one, other)
	changed := define(Custom, "one.example.com", "things", "v1", "v2")
	after := before.With(changed, other)
	if before.Group("other.example.com") != after.Group("other.example.com") ||
		before.Group("one.example.com") == after.Group("one.example.com") {
		t.Error("groups must be shared if and only if they are equal")
	}
	if after.Successor(one) != changed || after.Successor(other) != other {
		t.Error("successors")
	}
	removed := after.With(other)
	if removed.Group("one.example.com") != nil || removed.Successor(one) != nil || len(removed.Groups()) != 1 {
		t.Error("a group without definitions remains")
	}
	if _, ok := removed.Lookup("one.example.com", "v1", "things"); ok {
		t.Error("found a resource that was removed")
	}
}

func TestResourceAt(t *testing.T) {
	stored := func(group, plural, path string) *Definition {
		d := define(BuiltIn, group, plural, "v1")
		d.StoragePath = path
		return d
	}
	catalog := NewCatalog(stored("", "nodes", "minions"), stored("", "services", "services/specs"),
		stored("events.k8s.io", "events", "events"),
		stored("", "events", "events"), stored("apps", "things", "things"), stored("", "endpoints", "services/endpoints"))
	for path, want := range map[string]string{
		"minions/a": "nodes", "services/specs/ns/a": "services",
		"services/endpoints/ns/a": "endpoints", "events/ns/a": "events", "things/ns/a": "things.apps",
		"example.com/widgets/ns/a": "widgets.example.com", "example.com/widgets/a": "widgets.example.com",
		"other/a": "other", "": "",
	} {
		if got := catalog.ResourceAt(path).String(); got != want {
			t.Errorf("%q: got %s, want %s", path, got, want)
		}
	}
}
