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

	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/resource"
)

// contents describes the documents of one catalog. It is immutable.
type contents struct {
	catalog *resource.Catalog
	// v3Tags has the entity tags of version 3 documents by path ("apis/apps/v1").
	v3Tags map[string]string
	// custom has the custom resources whose documents are generated from definitions, by path.
	custom map[string][]*customResource
	// customGroups has the groups of custom resources by name.
	customGroups map[string]*customGroup
	// changed has the version 3 documents of built-in resources that differ from their archived form, by path. Contents
	// with the same document share it.
	changed map[string]*changedDocument
	// served has the built-in resources that are served, as group/version/plural.
	served map[string]bool
	// whole is set if exactly the built-in resources that are served by default are served, with their enumerations and
	// without CBOR.
	whole bool
	// cbor is set if the documents of built-in resources have the media types of CBOR.
	cbor bool
	// v2Tag is the entity tag of the version 2 document.
	v2Tag string
	// index is the document that lists the version 3 documents.
	index []byte
	// made is the time of the documents' header Last-Modified.
	made time.Time
}

// contentsCache caches the contents of the current catalog.
type contentsCache struct {
	lock    sync.Mutex
	current *contents
}

// of returns the contents of a catalog, which it builds if they are not cached.
func (c *contentsCache) of(catalog *resource.Catalog, archive *archive, now time.Time) (*contents, error) {
	c.lock.Lock()
	defer c.lock.Unlock()
	if c.current != nil && c.current.catalog == catalog {
		return c.current, nil
	}
	made, err := newContents(catalog, archive.index, c.current)
	if err != nil {
		return nil, err
	}
	made.made = now
	c.current = made
	return made, nil
}

// newContents returns the contents of a catalog. earlier, which may be nil, is the contents of a former catalog; the
// descriptions of unchanged groups are taken from it.
func newContents(catalog *resource.Catalog, built archiveIndex, earlier *contents) (*contents, error) {
	c := &contents{
		catalog: catalog, v3Tags: map[string]string{}, custom: map[string][]*customResource{},
		customGroups: map[string]*customGroup{}, changed: map[string]*changedDocument{}, served: map[string]bool{},
		cbor: request.ServesCBOR(),
	}
	present := map[string]bool{}
	for _, group := range catalog.Groups() {
		for _, gv := range group.Versions {
			present[pathOf(gv)] = true
			if gv.Group != "" {
				present["apis/"+gv.Group] = true
			}
			c.addBuiltIn(pathOf(gv), gv, built, earlier)
		}
		c.addCustom(group, earlier)
	}
	for path, tag := range built.V3 {
		if !isVersionPath(path) && (present[path] || !isGroupPath(path)) {
			c.addDocument(path, tag, c.cbor, earlier)
		}
	}
	v2 := c.builtInTag(built.V2)
	if c.whole = !built.noEnumerations && !c.cbor && c.byDefault(built); !c.whole {
		v2 = c.derivedTag(v2, slices.Sorted(maps.Keys(c.served)))
	}
	c.v2Tag = c.mergedTag(v2)
	return c, c.makeIndex()
}

// addBuiltIn adds the built-in resources of a version.
func (c *contents) addBuiltIn(path string, gv resource.GroupVersion, built archiveIndex, earlier *contents) {
	var served []string
	for _, m := range gv.Resources {
		if m.Source == resource.BuiltIn {
			served = append(served, gv.Group+"/"+gv.Version+"/"+m.Plural)
		}
	}
	tag, ok := built.V3[path]
	if len(served) == 0 || !ok {
		return
	}
	for _, name := range served {
		c.served[name] = true
	}
	reduced := slices.ContainsFunc(built.Resources[path], func(name string) bool { return !c.serves(name) })
	if reduced || built.noEnumerations {
		tag = c.derivedTag(tag, served)
	}
	c.addDocument(path, tag, reduced || built.noEnumerations || c.cbor, earlier)
}

// addDocument adds the version 3 document of built-in resources, given the tag that it has without CBOR. A document
// that differs from its archived form is shared with earlier contents, which may be nil, if these have it.
func (c *contents) addDocument(path, tag string, differs bool, earlier *contents) {
	tag = c.builtInTag(tag)
	c.v3Tags[path] = tag
	switch {
	case !differs:
	case earlier != nil && earlier.changed[path] != nil && earlier.v3Tags[path] == tag:
		c.changed[path] = earlier.changed[path]
	default:
		c.changed[path] = &changedDocument{}
	}
}

// addCustom adds the custom resources of a group in versions without built-in resources.
func (c *contents) addCustom(group *resource.Group, earlier *contents) {
	of := earlier.customGroup(group)
	if len(of.versions) == 0 {
		return
	}
	c.customGroups[group.Name] = of
	for _, version := range of.versions {
		if _, builtIn := c.v3Tags[version.path]; builtIn {
			continue
		}
		c.custom[version.path] = version.resources
		c.v3Tags[version.path] = version.tag
	}
}

// customGroup returns the custom resources of a group. Custom resources whose definitions have not changed are shared
// with c, the contents of a former catalog, which may be nil.
func (c *contents) customGroup(group *resource.Group) *customGroup {
	var earlier *customGroup
	if c != nil {
		earlier = c.customGroups[group.Name]
	}
	if earlier != nil && earlier.source == group {
		return earlier
	}
	return newCustomGroup(group, earlier)
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

// builtInTag returns the entity tag of an archived document, which differs if the media types of CBOR are added to it.
func (c *contents) builtInTag(archived string) string {
	if c.cbor {
		return c.derivedTag(archived, []string{"cbor"})
	}
	return archived
}

// derivedTag returns the entity tag of a document that is derived from an archived one, given the tag of the archived
// document, and the names of the served resources or of another property in which they differ.
func (c *contents) derivedTag(archived string, properties []string) string {
	return fmt.Sprintf("%X", sha512.Sum512([]byte(archived+" "+strings.Join(properties, " "))))
}

// isVersionPath reports whether a path belongs to a group version, such as "apis/apps/v1".
func isVersionPath(path string) bool {
	return strings.HasPrefix(path, "api/") || strings.HasPrefix(path, "apis/") && strings.Count(path, "/") == 2
}

func pathOf(gv resource.GroupVersion) string {
	if gv.Group == "" {
		return "api/" + gv.Version
	}
	return "apis/" + gv.Group + "/" + gv.Version
}

// isGroupPath reports whether a path belongs to a group or a group version.
func isGroupPath(path string) bool {
	return strings.HasPrefix(path, "apis/") || strings.HasPrefix(path, "api/")
}

// mergedTag returns the entity tag of the version 2 document with custom resources, given the tag of its built-in
// part.
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
