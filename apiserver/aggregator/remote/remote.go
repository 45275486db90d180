// Package remote keeps the discovery and OpenAPI documents of extension API servers.
//
// A Controller follows APIServices and downloads the documents of their servers in the background. The current Set is
// immutable; packages discovery and openapi merge it into this server's own documents when a client requests them.
// A server that is unreachable, slow or sends invalid documents affects its own groups only: their last valid
// documents stay, marked as stale.
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
	// Fetch sends a GET request as this server. The caller must close the body of the response. While the APIService
	// is unavailable, requests for OpenAPI documents fail at once.
	Fetch(ctx context.Context, path string, header http.Header) (*http.Response, error)
}

// Server identifies an extension API server. The documents of one server are downloaded once for all its APIServices.
type Server struct {
	Namespace, Name string
	Port            int32
	// Trust tells apart servers of one Service whose certificates are verified differently.
	Trust string
}

// APIService is the part of an APIService object that documents depend on.
type APIService struct {
	schema.GroupVersion
	Priority priority.Priority
	// Server and Backend are set for an extension API server, and zero for this server.
	Server  Server
	Backend Backend
	// Available is the condition. Of the APIServices of one server, an available one is used for requests.
	Available bool
	// Managed is set if this server creates and deletes the object.
	Managed bool
}

func (a *APIService) isRemote() bool { return a != nil && a.Backend != nil }

// Set is the state of all APIServices at one time, as far as it changes this server's own documents. It is immutable,
// and the same pointer as long as nothing changes. A nil Set changes nothing.
type Set struct {
	// Local are APIServices of this server whose priorities differ from the defaults, or whose group version may not
	// be served.
	Local map[schema.GroupVersion]priority.Priority
	// Removed are built-in group versions whose APIService was deleted. Legacy discovery does not list them.
	Removed map[schema.GroupVersion]bool
	// Remote are the group versions of extension API servers in the order in which their OpenAPI documents are merged.
	Remote []*Documents
}

// Documents are those of one group version of an extension API server.
type Documents struct {
	schema.GroupVersion
	Priority priority.Priority
	// Discovery is the last valid document. It has no resources if there was none.
	Discovery discoveryv2.APIVersionDiscovery
	// V2 is the OpenAPI version 2 document of the group version; nil if there is none.
	V2 *OpenAPIV2
	// V3 are the URLs of OpenAPI version 3 documents by path ("apis/apps/v1"), as in the server's index.
	V3 map[string]string
	// Converted is set if the server has no version 3 documents. They are then converted from version 2.
	Converted bool
}

// Find returns the documents of a group version, nil if it belongs to this server.
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

// Source returns the current Set.
type Source interface {
	Current() *Set
}

// None is the Source of a server without extension API servers.
type None struct{}

// Current implements Source.
func (None) Current() *Set { return nil }
