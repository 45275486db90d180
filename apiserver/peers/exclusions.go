package peers

import (
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// exclusionTime is how long a group version stays excluded after its CustomResourceDefinition or APIService has been
// deleted, because peers may still list it. The value is kube-apiserver's.
const exclusionTime = 5 * time.Minute

// exclusions are the group versions of custom resources and extension API servers. Requests for them are not forwarded
// to peers, because every replica serves them, or will soon.
type exclusions struct {
	bySource map[string][]schema.GroupVersion
	uses     map[schema.GroupVersion]int
	deleted  map[schema.GroupVersion]time.Time
}

func newExclusions() exclusions {
	return exclusions{
		bySource: map[string][]schema.GroupVersion{}, uses: map[schema.GroupVersion]int{},
		deleted: map[schema.GroupVersion]time.Time{},
	}
}

// set replaces the group versions of a CustomResourceDefinition or an APIService, and reports whether the exclusions
// may have changed.
func (e *exclusions) set(source string, versions []schema.GroupVersion, now time.Time) bool {
	before := e.bySource[source]
	if len(before) == 0 && len(versions) == 0 {
		return false
	}
	for _, gv := range versions {
		e.uses[gv]++
	}
	for _, gv := range before {
		if e.uses[gv]--; e.uses[gv] == 0 {
			delete(e.uses, gv)
			e.deleted[gv] = now
		}
	}
	e.bySource[source] = versions
	if len(versions) == 0 {
		delete(e.bySource, source)
	}
	return true
}

// expire removes the group versions whose exclusion has expired, and reports whether there were any.
func (e *exclusions) expire(now time.Time) bool {
	before := len(e.deleted)
	maps.DeleteFunc(e.deleted, func(_ schema.GroupVersion, at time.Time) bool { return now.Sub(at) > exclusionTime })
	return len(e.deleted) < before
}

func (e *exclusions) has(gv schema.GroupVersion) bool {
	_, deleted := e.deleted[gv]
	return deleted || e.uses[gv] > 0
}
