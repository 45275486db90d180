package builtintest

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"quorate.dev/apiserver/builtin/definition"
	builtinschema "quorate.dev/apiserver/builtin/schema"
	"quorate.dev/apiserver/resource"
)

// NewBuilder returns a builder that serves all versions of the kinds of legacyscheme.
func NewBuilder() *definition.Builder {
	return definition.NewBuilder(legacyscheme.Scheme, legacyscheme.Codecs,
		builtinschema.NewLoaderForAllVersions().For(legacyscheme.Scheme), ServesAll)
}

// ServesAll enables all API versions.
func ServesAll(schema.GroupVersionResource) bool { return true }

// AllVerbs are the verbs of most stored resources.
const AllVerbs = "create delete deletecollection get list patch update watch"

// Served is a row of a table of the resources that a group serves. All lists are separated by spaces unless the
// description of the field says otherwise.
type Served struct {
	Resource, Kind string
	// Versions are the served versions, the preferred version first.
	Versions string
	// ShortNames and Categories are the names for kubectl get.
	ShortNames, Categories string
	Namespaced             bool
	// Verbs are the verbs of the resource itself; the default is AllVerbs.
	Verbs string
	// Stored is the storage path and the version of stored objects, such as "deployments apps/v1"; empty if no objects are
	// stored.
	Stored string
	// ReturnsDeleted is set if the response to a deletion is the object instead of a Status in all versions except those
	// in ReturnsStatusIn.
	ReturnsDeleted  bool
	ReturnsStatusIn string
	// Fields are the selectable fields except metadata.name and metadata.namespace, sorted.
	Fields string
	// Columns are the names of the columns of a table after Name, separated by commas. Columns that only wide output has
	// are in parentheses.
	Columns string
	// Subresources are sorted. Each has its name, its kind if this is not the kind of the resource, its verbs if these are
	// not "get patch update", and "no table" if the endpoint is not served as a table.
	Subresources []string
}

// CheckServed fails the test if the definitions of a group differ from the table.
func CheckServed(t *testing.T, definitions []*resource.Definition, want []Served) {
	t.Helper()
	got := make([]Served, 0, len(definitions))
	for _, d := range definitions {
		got = append(got, describe(t, d))
	}
	for i := range want {
		want[i].Verbs = cmp.Or(want[i].Verbs, AllVerbs)
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("the group serves other resources (-want +got):\n%s", diff)
	}
}

// describe returns the row of a resource, which must have the same endpoints in all versions.
func describe(t *testing.T, d *resource.Definition) Served {
	t.Helper()
	row := Served{
		Resource: d.Plural, Kind: d.Kind, ShortNames: strings.Join(d.ShortNames, " "),
		Categories: strings.Join(d.Categories, " "), Namespaced: d.Namespaced,
	}
	if d.StoragePath != "" && !computed(d) {
		row.Stored = d.StoragePath + " " + d.StorageVersion.String()
	}
	for i, v := range d.Versions {
		row.Versions = strings.TrimSpace(row.Versions + " " + v.Name)
		verbs, subresources := strings.Join(v.Endpoints[""].Verbs, " "), describeSubresources(v)
		if i > 0 && (verbs != row.Verbs || !slices.Equal(subresources, row.Subresources)) {
			t.Errorf("%s has other endpoints in %s: %s, %v", d.Plural, v.Name, verbs, subresources)
		}
		row.Verbs, row.Subresources = verbs, subresources
	}
	row.ReturnsDeleted, row.ReturnsStatusIn = deletionResponses(d)
	if len(d.Versions) == 0 || d.StoragePath == "" {
		return row
	}
	row.Fields, row.Columns = selectable(t, d), columns(t.Context(), t, d.Versions[0])
	return row
}

// deletionResponses reports whether deletions in some version return the object, and the versions in which they
// return a Status if so.
func deletionResponses(d *resource.Definition) (object bool, status string) {
	var others []string
	for _, v := range d.Versions {
		object = object || v.ReturnsDeleted
		if !v.ReturnsDeleted {
			others = append(others, v.Name)
		}
	}
	if !object {
		return false, ""
	}
	return true, strings.Join(others, " ")
}

// computed reports whether the objects of a resource are computed on each read.
func computed(d *resource.Definition) bool {
	return len(d.Versions) > 0 && d.Versions[0].Endpoints[""].Compute != nil
}

func describeSubresources(v *resource.Version) []string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(v.Endpoints)) {
		if name == "" {
			continue
		}
		e, words := v.Endpoints[name], []string{name}
		if e.Kind != v.Kind {
			words = append(words, e.Kind.GroupVersion().String()+"."+e.Kind.Kind)
		}
		if verbs := strings.Join(e.Verbs, " "); verbs != "get patch update" {
			words = append(words, verbs)
		}
		if e.NoTable {
			words = append(words, "(no table)")
		}
		all = append(all, strings.Join(words, " "))
	}
	return all
}

// selectable returns the selectable fields of a resource that field selectors of its preferred version accept.
func selectable(t *testing.T, d *resource.Definition) string {
	t.Helper()
	set := Must[fields.Set](t)(d.Fields(d.Versions[0].Codec.New()))
	var names []string
	for _, name := range slices.Sorted(maps.Keys(set)) {
		if name == "metadata.name" || name == "metadata.namespace" {
			continue
		}
		if _, _, err := d.Versions[0].FieldLabel(name, ""); err == nil {
			names = append(names, name)
		}
	}
	if _, ok := set["metadata.name"]; !ok {
		t.Errorf("%s are not selectable by name", d.Plural)
	}
	if _, ok := set["metadata.namespace"]; !ok && d.Namespaced {
		t.Errorf("%s are not selectable by namespace", d.Plural)
	}
	return strings.Join(names, " ")
}

func columns(ctx context.Context, t *testing.T, v *resource.Version) string {
	t.Helper()
	table, err := v.Table.ConvertToTable(ctx, v.Codec.New(), nil)
	if err != nil {
		t.Fatalf("%s: %v", v.Kind.Kind, err)
	}
	var names []string
	for _, column := range table.ColumnDefinitions[1:] {
		name := column.Name
		if column.Priority > 0 {
			name = "(" + name + ")"
		}
		names = append(names, name)
	}
	return strings.Join(names, ", ")
}
