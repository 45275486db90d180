// Package remote keeps the discovery and OpenAPI documents of extension API servers.
//
// A Controller follows APIServices and downloads the documents of their servers in the background, with one poll per
// kind of document: discovery, OpenAPI version 2, and the index of OpenAPI version 3. It builds a Set from them,
// which is immutable. Packages discovery and openapi merge the current Set into this server's own documents when a
// client requests them; they never wait for an extension API server. kube-aggregator downloads in the same way, in
// its discoveryManager and OpenAPI controllers.
//
// A server that is unreachable, slow or sends invalid documents affects its own groups only. Its last valid documents
// stay, and discovery marks them as stale.
//
// # Data structures
//
//   - APIService: the part of an APIService object that documents depend on. Server: the identity of an extension API
//     server, which several APIServices may share.
//   - server: the APIServices and the last documents of one Server, guarded by Controller.lock.
//   - poll: the queues, workers and back-off for one kind of document.
//   - Set, Documents: the result for readers. Immutable.
//
// # Life of a document
//
// Observe attaches an APIService to its server and queues a download of each kind. A worker of the poll takes the
// server from a queue, copies its state under the lock (job), downloads and decodes without the lock, and stores the
// result (update), unless the server has no APIServices any more. If the result differs, the next call of Current
// builds a new Set. Downloads are conditional (If-None-Match), except after a group version was added or removed. After
// a success the server is queued again after the interval of the schedule, after a failure with a growing delay in a
// separate queue, so that servers that do not respond do not delay the others. When the last APIService of a server is
// detached, its documents are forgotten immediately, and the next download of each kind ends with errForget.
//
// # Invariants
//
//   - At most one download of each kind is in progress for one server (poll.busy).
//   - server.versions and server.v2.versions have only group versions that an APIService of the server names: a server
//     cannot add documents to groups that it was not given.
//   - The memory for documents is bounded for each server by the limits in fetch.go; decoded OpenAPI documents exist
//     one at a time (parsing), and large discovery documents maxLarge at a time.
//   - Completed is closed once, when discovery of every server that existed at the start has been attempted.
//
// # What may block
//
// Observe, Known and Current take only Controller.lock, under which nothing waits. Current builds the Set under the
// lock, in O(n log n) for n APIServices, once after a change. RunDiscovery, RunOpenAPIV2 and RunOpenAPIV3 block until
// their contexts end.
//
// Lock order: Controller.lock before poll.mu. Neither is held during a download. parsing is never held with lock.
package remote

import (
	"context"
	"net/http"

	discoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"quorate.dev/apiserver/builtin/priority"
)

// Backend sends requests to the extension API server of an APIService.
type Backend interface {
	// Fetch sends a GET request in the name of this server. The caller must close the body of the response. While the
	// APIService is not available, requests for OpenAPI documents fail immediately.
	Fetch(ctx context.Context, path string, header http.Header) (*http.Response, error)
}

// Server identifies an extension API server. The documents of one server are downloaded once for all of its
// APIServices.
type Server struct {
	Namespace, Name string
	Port            int32
	// Trust identifies the way of verifying the serving certificate. Servers of one Service differ if their Trust
	// does.
	Trust string
}

// APIService is the part of an APIService object that documents depend on.
type APIService struct {
	schema.GroupVersion
	Priority priority.Priority
	// Server and Backend are set for an extension API server, and zero for an APIService of this server.
	Server  Server
	Backend Backend
	// Available is the condition Available. Requests to a server use the Backend of an available APIService, if there
	// is one.
	Available bool
	// Managed is set if this server creates and deletes the object, so that its group version is served.
	Managed bool
}

func (a *APIService) isRemote() bool { return a != nil && a.Backend != nil }

// Set is the state of all APIServices at one time, as far as it changes this server's own documents. It is immutable,
// and remains the same pointer while nothing changes. A nil Set changes nothing.
type Set struct {
	// Local has the priorities of the group versions of this server that differ from the defaults, or that may not be
	// served.
	Local map[schema.GroupVersion]priority.Priority
	// Removed has the built-in group versions whose APIService was deleted. Legacy discovery does not list them.
	Removed map[schema.GroupVersion]bool
	// Remote has the documents of all group versions of extension API servers, in the order in which OpenAPI
	// documents are merged.
	Remote []*Documents
}

// Documents has the documents of one group version of an extension API server.
type Documents struct {
	schema.GroupVersion
	Priority priority.Priority
	// Discovery is the last valid discovery document. It has no resources if there was none.
	Discovery discoveryv2.APIVersionDiscovery
	// V2 is the OpenAPI version 2 document of the group version; nil if there is none.
	V2 *OpenAPIV2
	// V3 has the URLs of OpenAPI version 3 documents by path ("apis/apps/v1"), as in the server's index.
	V3 map[string]string
	// Converted is set if the server has no version 3 documents. They are then converted from the version 2 document.
	Converted bool
}

// Find returns the documents of a group version, nil if the group version belongs to this server.
func (s *Set) Find(gv schema.GroupVersion) *Documents {
	if s == nil {
		return nil
	}
	for _, remote := range s.Remote {
		if remote.GroupVersion == gv {
			return remote
		}
	}
	return nil
}

// Source provides the current Set.
type Source interface {
	Current() *Set
}

// None is the Source of a server without extension API servers.
type None struct{}

// Current implements Source.
func (None) Current() *Set { return nil }
