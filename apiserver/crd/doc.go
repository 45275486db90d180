// Package crd turns CustomResourceDefinitions (CRDs) into resource definitions: it sets their conditions, builds the
// codecs and strategies of custom resources, and publishes the served set in the catalog. It takes the place of
// apiextensions-apiserver's crdHandler (pkg/apiserver/customresource_handler.go) and of its controllers for naming,
// establishing, non-structural schemas, API approval and finalizing (pkg/controller), whose conditions, reasons and
// messages it keeps. Custom resources themselves are served by the same registry and handlers as built-in kinds.
//
// # Data structures
//
//   - Controller: watches the CRDs. Each replica runs one.
//   - record: the controller's state of one CRD: the names that it owns, which conditions hold, and its Definition.
//     Once it is in Controller.records, a record does not change, apart from its permission, which has an atomic field.
//   - Builder: builds a resource.Definition from a CRD. Definitions are immutable; a changed CRD gets a new one.
//   - custom: the parts of a Definition that all versions share: storage version, conversion webhook, type converter.
//   - version: one version: its schema as compressed JSON, and the structural schema and validators compiled from it,
//     which are built on first use and dropped when they are idle (package lazy).
//   - customCodec, strategy, scaleView, table: the parts of a resource.Version, on top of version.
//   - permission: the revision at which a CRD is known to permit the creation of objects. The definitions of one CRD,
//     old and new, share it.
//
// # Life of a CustomResourceDefinition
//
// Follow calls observe with each state of the CRD. observe describes it in a record, builds its Definition if anything
// that the Definition depends on has changed, and queues the CRD if its status may have to be written. work takes one
// CRD at a time from the queue and writes the conditions: NamesAccepted, then Established. Conditions depend only on
// stored state, so that replicas which decide at the same time write the same.
//
// A CRD passes these stages, each of which is reached by observing the status written in the previous one:
//
//	created             no record.definition, nothing is served
//	names accepted      a Definition without served versions; the next write of the status sets Established
//	established         the Definition has served versions; publish puts it into the catalog
//	terminating         creates are refused; finalize deletes the objects and then removes the finalizer
//	gone                removeRecord releases the names, and publish removes the Definition
//
// publish publishes all Definitions together; changes that arrive during a publication are merged into the next one.
// A client that has seen Established may reach another replica; Await makes a replica catch up first.
//
// # Life of an object
//
// customCodec.Decode parses the body of a request into an unstructured object. coerce does what decoding into a Go type
// would do: it validates metadata and drops unknown fields. setDefaults adds the defaults of the schema. The internal
// version of a custom resource is the served version, so that strategy works on the same object: it validates the types
// by the schema (bounded.go), list types, the embedded metadata, and the CEL rules (rules.go). Store converts the
// object to the storage version and encodes it. A read decodes the stored bytes, coerces and defaults them with the
// schema of the version that they are stored in, and converts them to the requested version (conversion.go;
// docs/howto/follow-a-conversion.md).
//
// # Invariants
//
//   - The schema of a version never changes; for a changed CRD, a new custom is built.
//   - A name is accepted only if no other CRD of the group is known to have accepted it. No status is written before
//     all existing CRDs have been observed (whenKnown).
//   - A Definition has served versions only if the condition Established is stored.
//   - An object is created only while its CRD, in storage, is established and not terminating (permission.go and the
//     registry), so that the finalizer finds all objects.
//   - Stored objects remain readable in any version, served or not: a Definition knows all versions of its CRD.
//   - The CPU time and memory of one object are bounded: the number of schema violations (maxViolations), the size of
//     defaults (maxAdded), the CPU time of rules (maxRuleCPU), the digits of quantities in rules. Of these,
//     apiextensions-apiserver bounds only the rules, by CEL's estimate of their cost.
//
// # Locks
//
// Controller.lock guards records and the counters of publications. It is never held during a write to storage, a
// publication or a compilation. observe is called by one goroutine, work is another, publishChanges a third.
// Definitions and everything below are safe for concurrent use: they are immutable except for their lazy.Values, whose
// first caller builds the value while the others wait.
//
// # What may block
//
// The first request of a version, and the first after idle time, compiles the schema, which takes longer the more CEL
// rules it has. Load and Store call conversion webhooks; call returns when its context ends. Convert and
// ConvertToVersion, through which field managers convert, take no context and wait up to the timeout of the webhook.
// Await waits for the watch stream and a publication. observe, and therefore Follow, never waits for storage or
// webhooks.
//
// # Rejected alternatives
//
//   - A handler per CRD with separate storage, like crdHandler: each version would have a watch cache. Here the cache
//     holds stored bytes, which all versions share.
//   - Compiling schemas when a CRD is observed: a server with many CRDs, most of which have no traffic, would start
//     late and hold all compiled schemas in memory.
//   - Setting Established together with NamesAccepted: a CRD whose Definition cannot be built would be established.
//     Upstream has a separate EstablishingController too. With several replicas it waits five seconds, so that all of
//     them have observed the CRD; here a replica that lags catches up when a request needs it (Await).
package crd
