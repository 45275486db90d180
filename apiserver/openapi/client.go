package openapi

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/openapi"

	"quorate.dev/apiserver/resource"
)

// Client is a client-go OpenAPI client of a Handler in the same process. Upstream's MutatingAdmissionPolicy plugin
// calls Paths every five seconds. Paths is cheap: while the catalog has not changed it only compares pointers, and it
// never builds a document.
type Client struct {
	handler *Handler

	mu      sync.Mutex
	catalog *resource.Catalog // catalog that paths was built from
	paths   map[string]openapi.GroupVersion
}

var _ openapi.Client = &Client{}

// Client returns a client of the handler.
func (h *Handler) Client() *Client { return &Client{handler: h} }

// Paths implements openapi.Client. It returns the paths of all versions that have resources. Callers must not change
// the map.
func (c *Client) Paths() (map[string]openapi.GroupVersion, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	catalog := c.handler.catalogs.Current()
	if c.catalog == catalog {
		return c.paths, nil
	}
	paths := map[string]openapi.GroupVersion{}
	for _, d := range catalog.Definitions() {
		for _, v := range d.Versions {
			path := pathOf(resource.GroupVersion{Group: d.Group, Version: v.Name})
			if paths[path] == nil {
				paths[path] = newGroupVersion(c.handler, path)
			}
		}
	}
	c.catalog, c.paths = catalog, paths
	return paths, nil
}

// groupVersion implements openapi.GroupVersion.
type groupVersion struct {
	handler *Handler
	path    string
	url     func() string
}

func newGroupVersion(h *Handler, path string) *groupVersion {
	g := &groupVersion{handler: h, path: path}
	g.url = sync.OnceValue(func() string {
		contents, err := g.contents()
		if err != nil {
			return "" // Schema returns the error
		}
		return urlOf(path, contents.v3Tags[path])
	})
	return g
}

func (g *groupVersion) contents() (*contents, error) {
	return g.handler.contents.of(g.handler.catalogs.Current(), g.handler.archive, g.handler.clock.Now())
}

// ServerRelativeURL implements openapi.GroupVersion. It returns the URL that the document had at the first call.
func (g *groupVersion) ServerRelativeURL() string { return g.url() }

// Schema implements openapi.GroupVersion. It returns the current document.
func (g *groupVersion) Schema(contentType string) ([]byte, error) {
	if contentType != runtime.ContentTypeJSON {
		return nil, fmt.Errorf("OpenAPI of %s: unsupported media type %s", g.path, contentType)
	}
	contents, err := g.contents()
	if err != nil {
		return nil, err
	}
	if contents.v3Tags[g.path] == "" {
		return nil, fmt.Errorf("OpenAPI of %s: no document", g.path)
	}
	doc, err := g.handler.v3(contents, g.path, asJSON)
	if err != nil || doc.compressed == nil {
		return doc.plain, err
	}
	reader, err := gzip.NewReader(bytes.NewReader(doc.compressed))
	if err != nil {
		return nil, fmt.Errorf("OpenAPI of %s: decompress: %w", g.path, err)
	}
	plain, err := io.ReadAll(reader)
	if err != nil {
		return nil, fmt.Errorf("OpenAPI of %s: decompress: %w", g.path, err)
	}
	return plain, nil
}
