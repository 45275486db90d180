// Package credentials holds the content of the Secrets of one cluster as a value: authorities, certificates and keys.
// Its methods derive from it how the operator connects to API servers and to members, and what companions need.
//
// # Life of a Set
//
// Package certificates reads or creates the Secrets in each reconciliation and returns a Set. Later steps of the same
// reconciliation share it, so that all of them use the credentials of one stage of a rotation, also if a Secret changes
// in between. A Set is not changed after that, and not kept for the next reconciliation. If the cluster may not be
// changed, the Set has only what exists: an authority or a leaf may be missing, and connections that need it fail.
//
// # Invariants
//
//   - A Set contains private keys. It must not be logged, and no error or event contains parts of it. Hash covers
//     certificates and public keys only.
//   - The operator connects to the IP addresses of pods and verifies their certificates for a fixed name (ServerName),
//     because the DNS of the hosting cluster may be stale or not reachable from the operator.
//   - Clients have timeouts (requestTimeout, rewriteTimeout), so that a replica that does not respond delays a
//     reconciliation by a bounded time.
//
// The package reads and writes nothing in the hosting cluster, except for the clients that callers build from its
// configurations.
package credentials
