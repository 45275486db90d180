// Package admission runs the steps between the authorization of a write and its storage: plugins may change or reject
// the object, and reservers allocate resources outside the object, such as the cluster IPs of a Service.
//
// # The path of a write
//
// The registry calls a Chain with the Attributes of one write:
//
//	Admit     the mutators of all plugins, in order, and once again if a webhook or policy asks for it after another
//	          plugin has changed the object; then a create gets its generated name
//	Reserve   the reservers, in order
//	          ... the strategy of the resource prepares and validates the object ...
//	Validate  the validators of all plugins, in order
//	          ... the registry stores the object ...
//	Commit    the reservers, after an update or a deletion is stored
//	Rollback  the reservers in reverse order, if anything after Reserve has failed
//
// A create needs no Commit, because there is no old object whose reservations could be released. A deletion has no new
// object and skips Reserve; its Commit releases the reservations of the deleted object. CONNECT requests store nothing
// and have only the steps Admit and Validate. Creates that run an action (bindings, evictions, tokens, reviews) have
// these two steps as well: the action calls Validate when it has completed the body. An update that loses a
// compare-and-swap starts again at Admit with new Attributes, because its old object has changed.
//
// A plugin is either upstream's, adapted by Upstream, or a native one (package native). Package plugins has
// kube-apiserver's order. Attributes implements upstream's admission.Attributes, so that upstream's plugins need no
// copy of it.
//
// Webhooks and policies are upstream's plugins too. They convert objects with the Scheme of the Definition, and find
// other resources that serve the same objects in the catalog (interfaces). Their dispatchers look at every
// configuration and copy the object first; Plugin.Selector skips them for writes that no rule of their configurations
// selects. If a webhook or policy makes the managed fields invalid, Admit restores the fields from before admission.
//
// # Invariants
//
//   - Objects are in the internal version. A Mutator may change only Attributes.Object, and NamespaceLifecycle sets
//     Attributes.NamespaceRevision; Attributes.Old is shared with the cache, and a Validator changes nothing.
//   - The first error ends a step and is the response to the client.
//   - After a Reserve that has succeeded, Rollback is called if and only if the object is not stored. The context of
//     the request may have ended when Rollback or Commit is called.
//   - The server's own writes have Attributes.Internal set. Only plugins with Plugin.Internal see such writes: plugins
//     that protect objects which the server depends on, such as the default namespace. All reservers see them, because
//     allocations do not depend on the user.
//   - A dry run reserves nothing, and neither Commit nor Rollback may release anything.
//   - A value that is added as an audit annotation is never overwritten.
//   - Plugins run concurrently for different writes. One write runs its plugins one after the other; only the audit
//     annotations may be added concurrently. They have a lock, and no other lock is taken while it is held.
//
// # Rejected alternatives
//
// Webhook and policy dispatchers of our own: their semantics are hundreds of details, and most of the time is spent in
// the calls of webhooks and in CEL. Only the decision that no rule selects a write is made for every write; it is our
// own code.
//
// Storage with callbacks, like BeginCreate and AfterDelete of kube-apiserver's registry: the reservations of a write
// would be spread over the hooks of each storage. Reservers have one contract, and the registry guarantees that each
// reservation ends with Commit or Rollback.
//
// A separate list of validators, as kube-apiserver's interfaces suggest: a plugin that mutates and validates would be
// in two lists that must agree.
package admission
