package differential

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
)

// Extensions are extension API servers that serve constant documents, for APIServices in scripts. ${port.NAME} is the
// port of a server; a Service of type ExternalName leads to it.
type Extensions struct {
	servers map[string]*httptest.Server
	dead    string // a port on which no server listens
	plain   []byte // certificate of the authority of the server "plain"; see backend.go
}

// extensionDocuments are the documents of each server, by path.
var extensionDocuments = map[string]map[string]extensionDocument{
	// Aggregated discovery and OpenAPI version 3.
	"current": {
		"/apis": {aggregatedForm("v2"),
			`{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","metadata":{},"items":[` +
				`{"metadata":{"name":"current.example.com"},"versions":[` +
				`{"version":"v1","resources":[{"resource":"things","responseKind":{"group":"","version":"","kind":"Thing"},"scope":"Namespaced","singularResource":"thing","verbs":["get","list"],` +
				`"subresources":[{"subresource":"status","verbs":["get"]}]}],"freshness":"Current"},` +
				`{"version":"v2","resources":[{"resource":"things","scope":"Namespaced","singularResource":"thing","verbs":["list"]}],"freshness":"Current"}]},` +
				`{"metadata":{"name":"batch"},"versions":[{"version":"v1","resources":[{"resource":"shadows","responseKind":{"kind":"Shadow"},"scope":"Cluster","verbs":["get"]}]}]}]}`},
		"/apis/current.example.com/v1": {"application/json",
			`{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"current.example.com/v1",` +
				`"resources":[{"name":"things","singularName":"thing","namespaced":true,"kind":"Thing","verbs":["get","list"]}]}`},
		"/apis/current.example.com/v2": {
			"application/json",
			`{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"current.example.com/v2","resources":[]}`,
		},
		"/apis/batch/v1": {
			"application/json", `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"batch/v1","resources":[]}`,
		},
		"/openapi/v2": {"application/json", extensionV2("current.example.com", "Thing", "current")},
		"/openapi/v3": {
			"application/json",
			`{"paths":{"apis/current.example.com/v1":{"serverRelativeURL":"/openapi/v3/apis/current.example.com/v1?hash=ABC"}}}`,
		},
		"/openapi/v3/apis/current.example.com/v1": {"application/json",
			`{"openapi":"3.0.0","info":{"title":"t","version":"v"},"paths":{"/apis/current.example.com/v1/things":` +
				`{"get":{"x-kubernetes-action":"list","x-kubernetes-group-version-kind":{"group":"current.example.com","version":"v1","kind":"Thing"},"responses":{"200":{"description":"OK"}}}}},` +
				`"components":{"schemas":{"Thing":{"description":"Thing is a thing.","type":"object","x-kubernetes-group-version-kind":[{"group":"current.example.com","version":"v1","kind":"Thing"}],` +
				`"properties":{"size":{"description":"Size in millimetres.","type":"integer"}}}}}}`},
	},
	// The beta form of aggregated discovery.
	"beta": {
		"/apis": {aggregatedForm("v2beta1"),
			`{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2beta1","metadata":{},"items":[` +
				`{"metadata":{"name":"beta.example.com"},"versions":[{"version":"v1","resources":[{"resource":"betas","responseKind":{"group":"beta.example.com","version":"v1","kind":"Beta"},"scope":"Cluster","verbs":["get"]}]}]}]}`},
		"/apis/beta.example.com/v1": {
			"application/json",
			`{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"beta.example.com/v1","resources":[]}`,
		},
	},
	// Legacy discovery and OpenAPI version 2 only.
	"legacy": {
		"/apis": {"application/json", `{"kind":"APIGroupList","apiVersion":"v1","groups":[]}`},
		"/apis/legacy.example.com/v1": {"application/json",
			`{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"legacy.example.com/v1","resources":[` +
				`{"name":"olds/status","namespaced":true,"kind":"Old","verbs":["get"]},` +
				`{"name":"olds","singularName":"old","namespaced":true,"kind":"Old","verbs":["get","list"],"shortNames":["o"],"categories":["all"]},` +
				`{"name":"orphans/scale","namespaced":true,"group":"autoscaling","version":"v1","kind":"Scale","verbs":["get"]},` +
				`{"name":"olds/log","namespaced":true,"kind":"","verbs":["get"]}]}`},
		"/openapi/v2": {"application/json", extensionV2("legacy.example.com", "Old", "legacy")},
	},
	// The availability probe succeeds, but the documents are invalid.
	"garbage": {
		"/apis":                        {aggregatedForm("v2"), `garbage`},
		"/apis/garbage.example.com/v1": {"application/json", `garbage`},
		"/openapi/v2":                  {"application/json", `garbage`},
		"/openapi/v3":                  {"application/json", `garbage`},
	},
}

type extensionDocument struct{ contentType, body string }

func aggregatedForm(version string) string {
	return "application/json;g=apidiscovery.k8s.io;v=" + version + ";as=APIGroupDiscoveryList"
}

// extensionV2 returns an OpenAPI version 2 document. Its definition Clash is different on each server, and its
// definition of the kind Time is the same as kube-apiserver's.
func extensionV2(group, kind, text string) string {
	return strings.NewReplacer("GROUP", group, "KIND", kind, "TEXT",
		text).Replace(`{"swagger":"2.0","info":{"title":"t","version":"v"},"paths":{` +
		`"/apis/":{"get":{"responses":{"200":{"description":"TEXT"}}}},` +
		`"/apis/GROUP/v1/things":{"get":{"parameters":[{"$ref":"#/parameters/p"}],"x-kubernetes-action":"list","x-kubernetes-group-version-kind":{"group":"GROUP","version":"v1","kind":"KIND"},` +
		`"produces":["application/json"],"responses":{"200":{"description":"OK","schema":{"$ref":"#/definitions/KIND"}}}}}},` +
		`"parameters":{"p":{"name":"TEXT","in":"query","type":"string"}},` +
		`"definitions":{"KIND":{"type":"object","description":"TEXT","properties":{"clash":{"description":"A clash.","$ref":"#/definitions/Clash"},` +
		`"status":{"$ref":"#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.Status"}},"x-kubernetes-group-version-kind":[{"group":"GROUP","version":"v1","kind":"KIND"}]},` +
		`"Clash":{"type":"object","properties":{"TEXT":{"type":"string"}}},` +
		`"io.k8s.apimachinery.pkg.apis.meta.v1.Status":{"type":"object","description":"of TEXT"}}}`)
}

// StartExtensions starts the servers. The caller must call Stop.
func StartExtensions() (*Extensions, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("find a port without a server: %w", err)
	}
	e := &Extensions{servers: map[string]*httptest.Server{}, dead: portOf("http://" + listener.Addr().String())}
	for name, documents := range extensionDocuments {
		e.servers[name] = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			d, ok := documents[r.URL.Path]
			if !ok {
				http.NotFound(w, r)
				return
			}
			w.Header().Set("Content-Type", d.contentType)
			w.Header().Set("Etag", `"`+name+`"`)
			_, _ = io.WriteString(w, d.body)
		}))
	}
	if e.servers["plain"], e.plain, err = startPlain(); err != nil {
		return nil, err
	}
	return e, listener.Close()
}

// Stop stops the servers.
func (e *Extensions) Stop() {
	for _, server := range e.servers {
		server.CloseClientConnections()
		server.Close()
	}
}

// variables returns the variables with which scripts configure APIServices.
func (e *Extensions) variables() map[string]string {
	variables := map[string]string{"port.dead": e.dead, "ca.plain": encodePEM(e.plain)}
	for name, server := range e.servers {
		variables["port."+name] = portOf(server.URL)
	}
	return variables
}

func portOf(address string) string {
	parsed, err := url.Parse(address)
	if err != nil {
		return ""
	}
	return parsed.Port()
}
