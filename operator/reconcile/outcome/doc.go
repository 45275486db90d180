// Package outcome collects the results of the steps of one reconciliation, and ends the reconciliation: it publishes
// the status and requests the next reconciliation.
//
// # Life of an Outcome
//
//   - Steps return typed results and errors. The runner, package reconcile, merges them into an Outcome. Steps do not
//     read an Outcome; only the runner reads MayChange.
//   - Publish computes the status with package status, writes it if it differs, also after errors, and records an event
//     for each condition whose status has changed.
//   - Result requests the next reconciliation: with backoff after an error or a conflict, immediately after a change,
//     and otherwise when the next thing becomes due.
//
// # Reads and writes
//
// The package writes the status of the ApiServerCluster, with an optimistic lock, and events. Steps write some fields
// of the status themselves, before they act on them; other fields, which nothing acts on, they only set in the cluster
// in memory, and Publish writes them.
//
// # Invariants
//
//   - Each reconciliation that runs the steps publishes a status, whatever fails. Errors are part of it.
//   - MayChange only changes from true to false in a reconciliation: an invalid spec or a lost Secret that a step finds
//     stops all later steps that apply the spec.
//   - A conflict or an outdated observation is not an error. It repeats the reconciliation, with growing delays, and
//     appears in no condition.
//   - Every cluster is reconciled at least every five minutes, also if nothing is known to be due and no object
//     changes.
//
// # Crashes
//
// An Outcome lives for one reconciliation and stores nothing outside of the status. If the operator stops before
// Publish, the next reconciliation computes the same status. Timeouts that span reconciliations are based on times in
// the status.
//
// # Intervals
//
// A reconciliation follows immediately after an action or a stored intent; after ShortWait, or longWait once the
// condition Progressing has not changed for a minute, while something is awaited that no watch reports; after
// quietInterval in a quiet cluster; and otherwise after ResyncInterval, or earlier if a step has requested it
// (RequeueAt). The limits keep the load of the hosting cluster and of etcd low if a state lasts.
package outcome
