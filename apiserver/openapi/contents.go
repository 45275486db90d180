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
	"time"

	"quorate.dev/apiserver/resource"
)

// contents describe the documents of one catalog.
type contents struct {
	catalog *resource.Catalog
	// v3Tags are the entity tags of version 3 documents by path ("apis/apps/v1").
	v3Tags map[string]string
	// custom are the group versions whose documents are generated from definitions.
	custom map[string]resource.GroupVersion
	// partial are the paths of version 3 documents whose archived form has more than is served.
	partial map[string]bool
	// served are the built-in resources, as group/version/plural.
	served map[string]bool
	// whole is set if the served built-in resources are the default ones.
	whole bool
	// v2Tag is the entity tag of the version 2 document.
	v2Tag string
	// index is the document that lists the version 3 documents.
	index []byte
	// made is the Last-Modified time of the documents.
	made time.Time
}

// contentsCache caches the contents of the current catalog.
type contentsCache struct {
	lock    sync.Mutex
	current *contents
}

func (c *contentsCache) of(catalog *resource.Catalog, archive *archive, now time.Time) (*contents, error) {
	c.lock.Lock()
	defer c.lock.Unlock()
	if c.current != nil && c.current.catalog == catalog {
		return c.current, nil
	}
	made, err := newContents(catalog, archive.index)
	if err != nil {
		return nil, err
	}
	made.made = now
	c.current = made
	return made, nil
}

func newContents(catalog *resource.Catalog, built archiveIndex) (*contents, error) {
	c := &contents{
		catalog: catalog, v3Tags: map[string]string{}, custom: map[string]resource.GroupVersion{},
		partial: map[string]bool{}, served: map[string]bool{},
	}
	present := map[string]bool{}
	for _, gv := range catalog.GroupVersions() {
		path := pathOf(gv)
		present[path] = true
		if gv.Group != "" {
			present["apis/"+gv.Group] = true
		}
		if c.addBuiltIn(path, gv, built) {
			continue
		}
		gv.Resources = slices.DeleteFunc(slices.Clone(gv.Resources), func(m resource.Match) bool { return m.Source != resource.Custom })
		if len(gv.Resources) > 0 {
			c.custom[path] = gv
			c.v3Tags[path] = revisionTag(gv)
		}
	}
	for path, tag := range built.V3 {
		if !isVersionPath(path) && (present[path] || !isGroupPath(path)) {
			c.v3Tags[path] = tag
		}
	}
	v2 := built.V2
	if c.whole = c.byDefault(built); !c.whole {
		v2 = c.servedTag(v2, slices.Sorted(maps.Keys(c.served)))
	}
	c.v2Tag = c.mergedTag(v2)
	return c, c.makeIndex()
}

// customResources returns all custom resources by group, version and plural.
func (c *contents) customResources() []resource.Match {
	var all []resource.Match
	for _, path := range slices.Sorted(maps.Keys(c.custom)) {
		all = append(all, c.custom[path].Resources...)
	}
	return all
}

// addBuiltIn adds the built-in resources of a version and reports whether there are any.
func (c *contents) addBuiltIn(path string, gv resource.GroupVersion, built archiveIndex) bool {
	var served []string
	for _, m := range gv.Resources {
		if m.Source == resource.BuiltIn {
			served = append(served, gv.Group+"/"+gv.Version+"/"+m.Plural)
		}
	}
	tag, ok := built.V3[path]
	if len(served) == 0 || !ok {
		return false
	}
	for _, name := range served {
		c.served[name] = true
	}
	for _, name := range built.Resources[path] {
		c.partial[path] = c.partial[path] || !c.serves(name)
	}
	if c.partial[path] {
		tag = c.servedTag(tag, served)
	}
	c.v3Tags[path] = tag
	return true
}

// serves reports whether a resource, as group/version/plural, is served.
func (c *contents) serves(name string) bool { return c.served[name] }

// byDefault reports whether exactly the stable resources are served.
func (c *contents) byDefault(built archiveIndex) bool {
	for _, names := range built.Resources {
		for _, name := range names {
			if c.serves(name) == (strings.Contains(name, "/v1alpha") || strings.Contains(name, "/v1beta")) {
				return false
			}
		}
	}
	return true
}

// servedTag is the entity tag of a reduced document.
func (c *contents) servedTag(built string, served []string) string {
	return fmt.Sprintf("%X", sha512.Sum512([]byte(built+" "+strings.Join(served, " "))))
}

// isVersionPath reports whether a path is a version's.
func isVersionPath(path string) bool {
	return strings.HasPrefix(path, "api/") || strings.HasPrefix(path, "apis/") && strings.Count(path, "/") == 2
}

func pathOf(gv resource.GroupVersion) string {
	if gv.Group == "" {
		return "api/" + gv.Version
	}
	return "apis/" + gv.Group + "/" + gv.Version
}

// isGroupPath reports whether a path is a group's or version's.
func isGroupPath(path string) bool {
	return strings.HasPrefix(path, "apis/") || strings.HasPrefix(path, "api/")
}

// revisionTag is the entity tag of a document that is not built yet.
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

func (c *contents) makeIndex() (err error) {
	c.index, err = encodeIndex(c.urls())
	return err
}

// urls returns the URLs of all version 3 documents by path.
func (c *contents) urls() map[string]string {
	urls := make(map[string]string, len(c.v3Tags))
	for path, tag := range c.v3Tags {
		urls[path] = urlOf(path, tag)
	}
	return urls
}

func encodeIndex(urls map[string]string) ([]byte, error) {
	type entry struct {
		ServerRelativeURL string `json:"serverRelativeURL"`
	}
	paths := make(map[string]entry, len(urls))
	for path, url := range urls {
		paths[path] = entry{url}
	}
	index, err := json.Marshal(map[string]any{"paths": paths})
	if err != nil {
		return nil, fmt.Errorf("encode index of OpenAPI documents: %w", err)
	}
	return index, nil
}
