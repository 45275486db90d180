package openapi

import (
	"crypto/sha512"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"

	"quorate.dev/apiserver/resource"
)

// contents says which documents there are for one catalog.
type contents struct {
	catalog *resource.Catalog
	// v3Tags are the entity tags of the version 3 documents by path ("apis/apps/v1").
	v3Tags map[string]string
	// custom are the groups and versions whose documents are made from definitions.
	custom map[string]resource.GroupVersion
	// v2Tag is the entity tag of the version 2 document.
	v2Tag string
	// index is the document that lists the version 3 documents.
	index    []byte
	indexTag string
}

// contentsCache keeps the contents of the catalog in force.
type contentsCache struct {
	lock    sync.Mutex
	current *contents
}

func (c *contentsCache) of(catalog *resource.Catalog, archive *archive) (*contents, error) {
	c.lock.Lock()
	defer c.lock.Unlock()
	if c.current != nil && c.current.catalog == catalog {
		return c.current, nil
	}
	made, err := newContents(catalog, archive.index)
	if err != nil {
		return nil, err
	}
	c.current = made
	return made, nil
}

func newContents(catalog *resource.Catalog, built archiveIndex) (*contents, error) {
	c := &contents{catalog: catalog, v3Tags: map[string]string{}, custom: map[string]resource.GroupVersion{}}
	present := map[string]bool{}
	for _, gv := range catalog.GroupVersions() {
		path := pathOf(gv)
		present[path] = true
		if gv.Group != "" {
			present["apis/"+gv.Group] = true
		}
		if _, ok := built.V3[path]; ok {
			continue
		}
		gv.Resources = slices.DeleteFunc(slices.Clone(gv.Resources), func(m resource.Match) bool { return m.Source != resource.Custom })
		if len(gv.Resources) > 0 {
			c.custom[path] = gv
			c.v3Tags[path] = revisionTag(gv)
		}
	}
	for path, tag := range built.V3 {
		if present[path] || !ofGroup(path) {
			c.v3Tags[path] = tag
		}
	}
	c.v2Tag = c.mergedTag(built.V2)
	return c, c.makeIndex()
}

func pathOf(gv resource.GroupVersion) string {
	if gv.Group == "" {
		return "api/" + gv.Version
	}
	return "apis/" + gv.Group + "/" + gv.Version
}

// ofGroup tells the documents of groups, and of their versions, from those of other paths of the server.
func ofGroup(path string) bool {
	return strings.HasPrefix(path, "apis/") || strings.HasPrefix(path, "api/")
}

// revisionTag is the entity tag of a document before it is made.
func revisionTag(gv resource.GroupVersion) string {
	sum := sha512.New()
	for _, m := range gv.Resources {
		_, _ = fmt.Fprintf(sum, "%s %s %s %s %v\n", m.Plural, m.Kind, m.ListKind, m.Revision, m.Namespaced) // never fails
	}
	return fmt.Sprintf("%X", sum.Sum(nil))
}

func (c *contents) mergedTag(built string) string {
	if len(c.custom) == 0 {
		return built
	}
	sum := sha512.New()
	_, _ = io.WriteString(sum, built) // never fails
	for _, path := range slices.Sorted(maps.Keys(c.custom)) {
		_, _ = fmt.Fprintf(sum, "%s %s\n", path, c.v3Tags[path])
	}
	return fmt.Sprintf("%X", sum.Sum(nil))
}

func (c *contents) makeIndex() error {
	type entry struct {
		ServerRelativeURL string `json:"serverRelativeURL"`
	}
	paths := make(map[string]entry, len(c.v3Tags))
	for path, tag := range c.v3Tags {
		paths[path] = entry{urlOf(path, tag)}
	}
	index, err := json.Marshal(map[string]any{"paths": paths})
	if err != nil {
		return fmt.Errorf("encode index of OpenAPI documents: %w", err)
	}
	c.index = index
	c.indexTag = fmt.Sprintf("%X", sha512.Sum512(index))
	return nil
}
