// Package admission is what happens to a write between its authorization and storage: plugins may change or reject the
// object, and reservers allocate what it needs outside of it.
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
// A create needs no Commit, because there is no old object whose reservations could be released. A deletion has no
// object and skips Reserve; its Commit releases what the object held. CONNECT requests, which store nothing, have only
// Admit and Validate. So have creates that run an action (bindings, evictions, tokens, reviews): the action calls Validate
// when it has completed the body. An update that loses a compare-and-swap starts again at Admit with new Attributes,
// because its old object has changed.
//
// Plugins are upstream's, adapted by Upstream, or native ones (package native). Package plugins has kube-apiserver's
// order. Attributes implements upstream's admission.Attributes, so that no plugin needs a copy.
//
// Webhooks and policies are upstream's plugins too. They convert objects with the Scheme of the Definition and find
// resources that share objects in the catalog (interfaces). Plugin.Selector skips them for writes that no rule of their
// configurations selects: their dispatchers look at every configuration and copy the object first. Managed fields that
// they make invalid are restored.
//
// # Invariants
//
//   - Objects are in the internal version. A Mutator may change only Attributes.Object; Attributes.Old is shared with the
//     cache, and a Validator changes nothing.
//   - The first error ends a step and is the response to the client.
//   - After a Reserve that has succeeded, Rollback is called if and only if the object is not stored. The context of the
//     request may have ended by then, and when Commit is called.
//   - The server's own writes have Attributes.Internal set. Only plugins with Plugin.Internal see them: those that protect
//     what the server depends on. All reservers see them, because allocations do not depend on the user.
//   - A dry run reserves nothing, and neither Commit nor Rollback may release anything.
//   - A value that is added as an audit annotation is never overwritten.
//   - Plugins run concurrently for different writes. One write runs its plugins one after the other; only the audit
//     annotations may be added concurrently, and have a lock, under which no other lock is taken.
//
// # Rejected alternatives
//
// Webhook and policy dispatchers of our own: their semantics are hundreds of details, and the time is spent in calls and
// in CEL. Only the decision that no rule selects a write is on the path of every write, and that one is ours.
//
// Storage with callbacks, as kube-apiserver's BeginCreate and AfterDelete: what a write reserves is then spread over
// the hooks of each storage. Reservers have one contract, and the registry guarantees its end.
//
// A second list for validators, as kube-apiserver's interfaces suggest: a plugin with both parts would have two places
// that must agree.
package admission
