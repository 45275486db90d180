// Package selection decides which objects of a collection a list or a watch has, by the label and field selectors of
// the client, and as which event a watch sees a change.
//
// It works on the entries of the watch cache: labels are parsed once per object, names and the indexed field are known
// without decoding, and only other fields are read from the decoded object. If a conversion webhook converts the
// resource, clients select by the labels and fields of the converted object; conversion.go has the whole stage.
//
// # Data structures
//
//   - Selection: the selectors of a client, and the Shard that the client has requested. Filter: a Selection for one
//     target, which may name a single object.
//   - Page: the result of a list, with the number of entries that were read for it.
//   - Event: a change of the watch cache and the type under which one client sees it.
//
// # Invariants
//
//   - Filter.Selects agrees with storage.SelectionPredicate.Matches of kube-apiserver on the object that the client
//     sees. FuzzSelection compares the two.
//   - Neither Filter.Only, the index nor Filter.Scope excludes an object or event that Selects would select. They only
//     narrow down which entries are read and which watchers are woken.
//   - Events refer to the changes of the watch cache and to its entries, so that all watchers share their encodings.
//
// # What may block
//
// Only Prepare, and the functions that call it, wait for a conversion webhook; all others read memory. A Filter is
// immutable and safe for concurrent use. A scan checks its context every ScanInterval entries.
package selection

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/watchcache"
)

// Selection selects objects of a collection. A nil selector selects every object. The labels of a field selector are
// names in Definition.Fields: Version.FieldLabel has already converted the labels that the client has sent.
type Selection struct {
	Label labels.Selector
	Field fields.Selector
	Shard *Shard // nil: every object
}

// Everything reports whether all objects are selected.
func (s Selection) Everything() bool {
	return (s.Label == nil || s.Label.Empty()) && (s.Field == nil || s.Field.Empty()) && s.Shard == nil
}

// dependsOnOther reports whether the field selector depends on other fields than names and the given one.
func (s Selection) dependsOnOther(field string) bool {
	return slices.ContainsFunc(s.Field.Requirements(), func(r fields.Requirement) bool {
		return r.Field != "metadata.name" && r.Field != "metadata.namespace" && r.Field != field
	})
}

// Filter is the selection of one list or watch of a target. If the target has a name, only the object of that name is
// selected.
type Filter struct {
	Selection
	Target resource.Target
	// OutsideShard is called for each entry that the shard does not have; nil: it is not called.
	OutsideShard func()
}

// Selects reports whether an entry is selected, as clients of the target's version see it. It is false for nil. After
// Prepare it does not wait; without, it may call a conversion webhook for this single object.
func (f *Filter) Selects(ctx context.Context, e *watchcache.Entry) (bool, error) {
	return f.selects(ctx, e, nil)
}

// selects does the same as Selects, and remembers in known which sets of labels the label selector selects. known
// may be nil.
func (f *Filter) selects(ctx context.Context, e *watchcache.Entry, known *watchcache.KnownLabels) (bool, error) {
	if e == nil || (f.Target.Name != "" && e.Name() != f.Target.Name) {
		return false, nil
	}
	if f.Shard != nil {
		if in, err := f.inShard(e); !in || err != nil {
			return false, err
		}
	}
	if f.Target.ConvertsRemotely && f.Target.Version.Codec.Remote(e.Stored()) {
		return f.selectsConverted(ctx, e)
	}
	if f.Label != nil && !f.Label.Empty() && !known.Selects(f.Label, e) {
		return false, nil
	}
	if f.Field == nil || f.Field.Empty() {
		return true, nil
	}
	set, err := f.fields(e)
	if err != nil {
		return false, err
	}
	return f.Field.Matches(set), nil
}

// inShard reports whether the shard has an entry.
func (f *Filter) inShard(e *watchcache.Entry) (bool, error) {
	in, err := f.Shard.selects(e)
	if !in && err == nil && f.OutsideShard != nil {
		f.OutsideShard()
	}
	return in, err
}

// fields returns the fields of an entry that the field selector depends on. The field of the index needs no decoding.
func (f *Filter) fields(e *watchcache.Entry) (fields.Fields, error) {
	if f.Target.Index == nil || f.dependsOnOther(f.Target.Index.Field) {
		return e.Fields()
	}
	value, err := e.Field(f.Target.Index.Field)
	return indexedFields{entry: e, field: f.Target.Index.Field, value: value}, err
}

// indexedFields has the names of an entry and the field of its index, for selectors that use nothing else.
type indexedFields struct {
	entry        *watchcache.Entry
	field, value string
}

// Has implements fields.Fields.
func (f indexedFields) Has(string) bool { return true }

// Get implements fields.Fields.
func (f indexedFields) Get(field string) string {
	switch field {
	case f.field:
		return f.value
	case "metadata.name":
		return f.entry.Name()
	case "metadata.namespace":
		return f.entry.Namespace()
	}
	return ""
}

// Only returns the path of the only object that can be selected, if the field selector requires its name and, for a
// list of all namespaces, its namespace. The object need not exist, and other selectors may still reject it. It mirrors
// SelectionPredicate.MatchesSingle, which ignores the namespace of the selector.
func (f *Filter) Only() (path string, ok bool) {
	if f.Field == nil {
		return "", false
	}
	t := f.Target
	name, named := f.Field.RequiresExactMatch("metadata.name")
	if t.Namespaced && t.Namespace == "" {
		var inNamespace bool
		t.Namespace, inNamespace = f.Field.RequiresExactMatch("metadata.namespace")
		named = named && inNamespace && t.Namespace != ""
	}
	return t.Named(name).Path(), named && name != ""
}

// indexed returns the field and the value that the field selector requires of the resource's index.
func (f *Filter) indexed() (field, value string, ok bool) {
	if f.Field == nil || f.Target.Index == nil {
		return "", "", false
	}
	if value, ok = f.Field.RequiresExactMatch(f.Target.Index.Field); !ok {
		return "", "", false
	}
	return f.Target.Index.Field, value, true
}
