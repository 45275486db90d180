package registry

import (
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

// matches reports whether an entry is selected.
func (s Selection) matches(e *watchcache.Entry) (bool, error) {
	if s.Label != nil && !s.Label.Empty() && !s.Label.Matches(e.Labels()) {
		return false, nil
	}
	if s.Field == nil || s.Field.Empty() {
		return true, nil
	}
	set, err := e.Fields()
	if err != nil {
		return false, err
	}
	return s.Field.Matches(set), nil
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
