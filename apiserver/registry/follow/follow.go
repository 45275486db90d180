// Package follow describes how the server's own code follows objects: informers, controllers and feeds of other
// components. registry/client implements it with client.Client.Follow; packages below the registry get a Func.
//
// Following is a watch that does not end: it begins with the existing objects, and is restarted when its watch expires
// or the definition of its resource changes. Objects that are missing after a restart are reported as deleted. Of
// several changes of an object during a restart, only the last one is reported.
package follow

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"

	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/watchcache"
)

// Func follows the objects of a resource until ctx ends. A key with a namespace limits it to the objects of the
// namespace, a key with a name to one object. Func returns an error if the resource is not served, and the error of ctx
// when ctx ends.
type Func func(ctx context.Context, key resource.Key, options Options) error

// Options are the functions that are called with existing and changed objects, one call at a time. All are optional.
type Options struct {
	// Objects is called with every state of an object in the internal version, and with nil after a deletion. The called
	// function owns the object. The key is "namespace/name", or "name" for a resource without namespaces. Without Objects,
	// nothing is decoded.
	Objects func(key string, object runtime.Object)
	// Undecodable is called, in place of Objects, with the key of every state that cannot be decoded. Such states are also
	// logged.
	Undecodable func(key string)
	// Entries is called with the entries before and after each change. before is nil if the object is new, after is nil if
	// it was deleted.
	Entries func(before, after *watchcache.Entry)
	// Changed is called at the start, and whenever an object may have changed.
	Changed func()
	// Synced is called once, after the objects that existed at the start.
	Synced func()
	// Progress, unless it is nil, records which changes have been handled. Concurrent calls must not share it.
	Progress *Progress
}
