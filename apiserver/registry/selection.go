package registry

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"quorate.dev/apiserver/watchcache"
)

// Selection selects objects of a collection. Nil selectors select everything. Field labels are those of
// Definition.Fields, already converted by Version.FieldLabel.
type Selection struct {
	Label labels.Selector
	Field fields.Selector
}

// everything reports whether all objects are selected.
func (s Selection) everything() bool {
	return (s.Label == nil || s.Label.Empty()) && (s.Field == nil || s.Field.Empty())
}

// matches reports whether an entry is selected, as clients of the target's version see it.
func (s Selection) matches(ctx context.Context, t Target, e *watchcache.Entry) (bool, error) {
	if t.ConvertsRemotely && t.Version.Codec.Remote(e.Stored()) {
		return s.matchesConverted(ctx, t, e)
	}
	if s.Label != nil && !s.Label.Empty() && !s.Label.Matches(e.Labels()) {
		return false, nil
	}
	if s.Field == nil || s.Field.Empty() {
		return true, nil
	}
	set, err := s.fields(t, e)
	if err != nil {
		return false, err
	}
	return s.Field.Matches(set), nil
}

// fields returns the fields of an entry that the field selector depends on. Those of the index need no decoding.
func (s Selection) fields(t Target, e *watchcache.Entry) (fields.Fields, error) {
	if t.Index == nil || s.dependsOnOther(t.Index.Field) {
		return e.Fields()
	}
	value, err := e.Field(t.Index.Field)
	return indexedFields{entry: e, field: t.Index.Field, value: value}, err
}

// indexedFields are the names of an entry and the field of its index.
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

// matchesConverted is matches for an object that a webhook converts.
func (s Selection) matchesConverted(ctx context.Context, t Target, e *watchcache.Entry) (bool, error) {
	if !s.needsConversion() {
		return s.Field == nil || s.Field.Matches(nameFields(e)), nil
	}
	labels, fields, err := e.Attributes(ctx, t.Match)
	if err != nil {
		return false, err
	}
	return (s.Label == nil || s.Label.Matches(labels)) && (s.Field == nil || s.Field.Matches(fields)), nil
}

// needsConversion reports whether the selectors depend on more than names, which conversion webhooks cannot change.
func (s Selection) needsConversion() bool {
	if s.Label != nil && !s.Label.Empty() {
		return true
	}
	return s.Field != nil && s.dependsOnOther("")
}

// dependsOnOther reports whether the field selector depends on other fields than names and the given one.
func (s Selection) dependsOnOther(field string) bool {
	return slices.ContainsFunc(s.Field.Requirements(), func(r fields.Requirement) bool {
		return r.Field != "metadata.name" && r.Field != "metadata.namespace" && r.Field != field
	})
}

func nameFields(e *watchcache.Entry) fields.Set {
	return fields.Set{"metadata.name": e.Name(), "metadata.namespace": e.Namespace()}
}

// prepare makes matches call no webhook for the entries.
func (s Selection) prepare(ctx context.Context, t Target, entries []*watchcache.Entry) error {
	if !t.ConvertsRemotely || !s.needsConversion() {
		return nil
	}
	return watchcache.PrepareAttributes(ctx, t.Match, entries)
}

// indexed returns the field and the value that the field selector requires of the resource's index.
func (s Selection) indexed(t Target) (field, value string, ok bool) {
	if s.Field == nil || t.Index == nil {
		return "", "", false
	}
	if value, ok = s.Field.RequiresExactMatch(t.Index.Field); !ok {
		return "", "", false
	}
	return t.Index.Field, value, true
}

// ascend visits the entries of a collection that may be selected, by the index if possible.
func (s Selection) ascend(
	t Target, snapshot *watchcache.Snapshot, collection, from string, visit func(*watchcache.Entry) bool,
) {
	field, value, ok := s.indexed(t)
	if !ok || !snapshot.AscendIndexed(field, value, collection, from, visit) {
		snapshot.Ascend(collection, from, visit)
	}
}

// only returns the path of the only object that can match, if the field selector requires its name.
func (s Selection) only(t Target) (path string, ok bool) {
	if s.Field == nil {
		return "", false
	}
	name, named := s.Field.RequiresExactMatch("metadata.name")
	if t.Namespaced && t.Namespace == "" {
		var inNamespace bool
		t.Namespace, inNamespace = s.Field.RequiresExactMatch("metadata.namespace")
		named = named && inNamespace && t.Namespace != ""
	}
	return t.named(name).path(), named && name != ""
}
