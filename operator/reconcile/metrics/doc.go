// Package metrics exports metrics about clusters. Metrics has values that a reconciliation observes and no object
// stores, such as the expiry of certificates and the size of databases. StateCollector derives metrics from the status
// of the clusters when it is scraped.
//
// # Data
//
// Metrics has, for each cluster, the values of the last reconciliation that determined them. A reconciliation that
// could not read the members or the certificates leaves the former values, so that an alert on a certificate does not
// disappear because the operator cannot read it. Counters, such as defragmentations, begin with 0 when the operator
// starts.
//
// # Invariants
//
//   - Metrics is safe for concurrent use. Its lock is held only while maps are accessed, also in Collect, which is
//     called for each scrape and sends no request.
//   - The number of series is bounded by the number of clusters, members, Secrets and APIServices. Forget removes the
//     series of a deleted cluster.
//   - Only the operator with the leader lease reconciles, so that only its Metrics has values. All operators export the
//     state of the clusters.
//
// The package reads the clusters from a cache (StateCollector) and writes nothing. After a restart of the operator,
// Metrics is empty until each cluster is reconciled once, which happens immediately. Decisions never depend on metrics.
package metrics
