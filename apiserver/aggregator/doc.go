// Package aggregator knows the API servers behind APIServices and forwards requests to them.
//
// An APIService owns its group and version. If it names a Service, another server has all paths of that group version,
// whatever this server could serve there: its Backend wins over built-in kinds and custom resources. An APIService
// without a Service belongs to this server.
//
// Ownership:
//   - Aggregator.Set is called for each observed APIService, by the one goroutine that follows them. It replaces the
//     Table, which is immutable.
//   - filters and router look up the Backend of a request in the current Table, once per request, and Backend serves it.
//   - discovery and openapi read other servers' documents with Backend.Fetch. They decide when: a Table has a channel
//     that is closed when it is replaced.
//   - controllers/availability probes the servers and writes the Available condition of APIServices. This package only
//     reads the condition.
//   - A connection pool belongs to the spec of an APIService: Tables share it until the spec or the client certificate
//     changes. Then the idle connections are closed, and those in use when their requests end.
package aggregator
