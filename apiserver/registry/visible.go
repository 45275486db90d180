package registry

import (
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"

	"quorate.dev/apiserver/watchcache"
)

// Internal decodes an entry as it is shown. The object belongs to the caller.
func (r *Registry) Decode(t Target, entry *watchcache.Entry) (runtime.Object, error) {
	return visibleState(t, state{data: entry.Stored(), revision: entry.Revision()}, false)
}

// visibleState decodes a state as clients, and the server's own parts, are shown it.
func visibleState(t Target, current state, undecorated bool) (runtime.Object, error) {
	internal, err := load(t, current)
	if err == nil && t.Decorate != nil && !undecorated && !t.Endpoint.Undecorated {
		t.Decorate(internal)
	}
	return internal, err
}

// Stored decodes what a write has left in storage, as it is shown. The object belongs to the caller.
func (r *Registry) Stored(t Target, result *Result) (runtime.Object, error) {
	return visibleState(t, state{data: result.Stored, revision: result.Revision}, result.Undecorated)
}

// Offer hands the encoding that was made for the answer to a write to the cache, for others who ask for it. What is not
// in storage is nobody else's business.
func (r *Registry) Offer(t Target, result *Result, format *watchcache.Format, item []byte) {
	if result.Rehearsed || result.Deleted {
		return
	}
	accessor, err := meta.Accessor(result.Object)
	if err != nil {
		return
	}
	r.cache(t.Match).Offer(t.named(accessor.GetName()).path(), result.Revision, format, item)
}
