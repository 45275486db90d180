// Package aggregator forwards requests to the extension API servers behind APIServices. It takes the place of
// kube-aggregator's proxyHandler and its map of APIServices (k8s.io/kube-aggregator/pkg/apiserver).
//
// An APIService owns its group version. If it names a Service, the server behind that Service serves all paths of the
// group version, even if this server has built-in kinds or custom resources of the group version. An APIService without
// a Service belongs to this server.
//
// # Data structures
//
//   - Backend: the server of one APIService, as spec and status of the APIService describe it. Immutable.
//   - Table: all Backends by the names and group versions of their APIServices. Immutable; requests read the
//     current one without a lock.
//   - Aggregator: the current Table, and the changes to it.
//   - connections: the connections to one server, for all Backends with the same Service and the same verification
//     of its serving certificate (poolKey), and the number of requests in flight on them. pools counts the Backends
//     that use each.
//   - Certificate: the front-proxy client certificate. Extension API servers trust the user in the headers of a
//     request that is sent with this certificate.
//
// # Life of an APIService
//
// One goroutine follows the APIServices and calls Aggregator.Set for each observed APIService. Set builds a Backend,
// acquires its connections, releases the connections of the previous Backend, and publishes a new Table. A change of
// the APIService that does not change the poolKey, such as a change of its status, keeps the connections. When all
// APIServices that existed at the start have been observed, Known publishes the first Table. Package
// controllers/availability calls Backend.Probe and writes the condition Available; this package only reads the
// condition.
//
// # Life of a request
//
// The filter chain calls Route, once per request. While the first Table is missing, Route waits for it at most
// knownTimeout, and only for paths of resources in a group, because another server may own them. Backend.ServeHTTP
// responds with 503 if the APIService is not available, and with 429 if too many requests of the server are in
// flight. Otherwise it forwards the request with the user in the headers of the front proxy, after removing those
// the client sent. An upgrade gets a separate connection, and outlives the deadline of its request once the server has
// accepted it (type upgrade).
//
// Package aggregator/remote downloads discovery and OpenAPI documents with Backend.Fetch.
//
// # Invariants
//
//   - The current Table has the state of every APIService whose Set has returned, except before Known.
//   - connections.uses is the number of Backends in Aggregator.backends that have these connections; while Set
//     runs, it may include one more.
//   - No new request uses a transport with a former client certificate once Certificate.Reload has returned.
//   - A server receives only users that this server has authenticated: headers of the front proxy that a client sends
//     are removed.
//
// Connections are closed when no APIService names the server any more, or when the client certificate changes: idle
// ones immediately, others after their last request, at the latest when they have been idle for 90 seconds.
//
// # Locks
//
// The order is Aggregator.mu before pools.mu. No lock is held during a request to an extension API server. The lock of
// an upgrade guards only its connection.
//
// # What may block
//
// Set, Known, Table, Table.Route and Certificate.Reload, apart from reading its files, do not wait for a server.
// Aggregator.Route waits at most knownTimeout, Probe at most probeTimeout, and Fetch and ServeHTTP until their contexts
// end. All of them may be called from any goroutine.
//
// # Rejected alternatives
//
//   - A handler per APIService, registered in a mux, like kube-aggregator's proxyHandlers. A Table that is replaced as
//     a whole is consistent for one request and needs no lock.
package aggregator
