// Package aggregator knows the extension API servers behind APIServices and forwards requests to them.
//
// An APIService owns its group and version. If it names a Service, the server behind that Service has all paths of the
// group version, whatever this server could serve there: its Backend wins over built-in kinds and custom resources.
// An APIService without a Service belongs to this server.
//
// Ownership:
//   - Aggregator.Set is called for each observed APIService, by the one goroutine that follows them. It replaces the
//     table of backends, which is immutable.
//   - filters looks up the Backend of a request, once; the Backend serves it in place of the router.
//   - aggregator/remote reads discovery and OpenAPI documents with Backend.Fetch.
//   - controllers/availability probes the servers and writes the condition Available of APIServices. This package only
//     reads the condition.
//   - Connections belong to a server and the way in which its certificate is verified. They are closed when no
//     APIService names that server any more, or when the client certificate changes: the idle ones at once, those in use
//     when their requests have ended.
package aggregator
