// Package client is the access of the server's own code (actions, admission plugins, controllers, informers) to the
// registry in the same process: reads and writes of objects in the internal version (resource.Client), and Follow for
// all later changes. It takes the place of the loopback client of kube-apiserver, whose requests are encoded,
// authenticated, authorized and decoded.
//
// Each controller writes through a Client of its name (Client.Named), so that its writes of each object are limited and
// counted. Writes have audit events like the writes of HTTP requests.
//
// # Life of a write
//
// The key is resolved in the current catalog, in the preferred version of its resource. The context gets the
// RequestInfo that an HTTP request would have, because upstream's strategies read it, and the name of the controller,
// which the registry's limit uses. The registry then runs the same steps as for a client, except authorization, the
// soft quota and the admission plugins without Plugin.Internal. An update calls its function once for each attempt,
// with a copy of the object that the attempt starts from; its audit event has the object of the last attempt.
//
// # Life of a follower
//
// Follow lists and watches with one watch of the registry. It remembers the last entry of each path (known), so that
// after a restart of the watch it can report objects that were deleted in between, and does not report unchanged
// objects again. Its functions are called in the goroutine of Follow, one at a time. They may take long: a watch that
// falls behind expires, is restarted, and continues with the current state. AwaitFollowed lets another goroutine wait
// until everything that was stored before the call has been handled.
//
// # What may block
//
// Reads with Cached wait only while the cache of the collection is being initialized, all others for etcd; writes wait
// as package registry describes. A Client has no lock and may be used by any number of goroutines. A function that is
// called by Follow must not call AwaitFollowed for the same Progress: it would wait for itself.
package client
