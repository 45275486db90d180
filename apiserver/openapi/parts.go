package openapi

import (
	"crypto/sha512"
	"fmt"

	openapiv2 "github.com/google/gnostic-models/openapiv2"
	"google.golang.org/protobuf/proto"

	"quorate.dev/apiserver/crd"
	"quorate.dev/apiserver/deflate"
	"quorate.dev/apiserver/lazy"
	"quorate.dev/apiserver/resource"
)

// customGroup has the custom resources of one group.
type customGroup struct {
	source   *resource.Group
	versions []customVersion
}

type customVersion struct {
	path      string
	tag       string // entity tag of the version 3 document
	resources []*customResource
}

// customResource is one version of a custom resource with its parts of documents. The parts are compressed. They are
// built when a document that contains them is requested, and dropped when no such document was requested for some
// time (lazy.Set).
type customResource struct {
	resource.Match
	v2, v3   lazy.Value[jsonParts]
	protobuf lazy.Value[deflate.Part]
}

// newCustomGroup returns the custom resources of a group. Custom resources whose definitions have not changed are taken
// from earlier, which may be nil, with their parts of documents.
func newCustomGroup(group *resource.Group, earlier *customGroup) *customGroup {
	known := map[*resource.Version]*customResource{}
	if earlier != nil {
		for _, version := range earlier.versions {
			for _, r := range version.resources {
				known[r.Version] = r
			}
		}
	}
	g := &customGroup{source: group}
	for _, gv := range group.Versions {
		version := customVersion{path: pathOf(gv), tag: revisionTag(gv)}
		for _, m := range gv.Resources {
			if m.Source != resource.Custom {
				continue
			}
			r := known[m.Version]
			if r == nil || r.Definition != m.Definition {
				r = &customResource{Match: m}
			}
			version.resources = append(version.resources, r)
		}
		if len(version.resources) > 0 {
			g.versions = append(g.versions, version)
		}
	}
	return g
}

// revisionTag returns the entity tag of a document of custom resources. It is derived from the revisions of their
// definitions, so that it can be determined without building the document.
func revisionTag(gv resource.GroupVersion) string {
	sum := sha512.New()
	for _, m := range gv.Resources {
		if m.Source != resource.Custom {
			continue
		}
		_, _ = fmt.Fprintf(sum, "%s %s %s %s %v\n", m.Plural, m.Kind, m.ListKind, m.Revision, m.Namespaced) // never fails
	}
	return fmt.Sprintf("%X", sum.Sum(nil))
}

// jsonParts has the members of a document's objects of paths and of schemas, without a comma before the first member.
type jsonParts struct{ paths, schemas deflate.Part }

// comma is put between parts.
var comma = literal(",")

// literal compresses a constant.
func literal(text string) deflate.Part {
	part, err := deflate.Compress([]byte(text))
	if err != nil {
		panic(err) // writing to memory does not fail
	}
	return part
}

// partsV3 returns the parts of the version 3 document that belong to a custom resource.
func (h *Handler) partsV3(r *customResource) (jsonParts, error) {
	return r.v3.Get(h.idle, func() (jsonParts, error) { return h.jsonParts(crd.V3, r.Match, nil) })
}

// partsV2 returns the parts of the version 2 document that belong to a custom resource. If its models are renamed,
// the parts depend on other resources and are not kept.
func (h *Handler) partsV2(r *customResource, renamed map[string]string) (jsonParts, error) {
	if isRenamed(r.Match, renamed) {
		return h.jsonParts(crd.V2, r.Match, renamed)
	}
	return r.v2.Get(h.idle, func() (jsonParts, error) { return h.jsonParts(crd.V2, r.Match, nil) })
}

// protobufV2 returns the part of the version 2 document in protobuf that belongs to a custom resource.
func (h *Handler) protobufV2(r *customResource, renamed map[string]string) (deflate.Part, error) {
	if isRenamed(r.Match, renamed) {
		return h.protobufPart(r.Match, renamed)
	}
	return r.protobuf.Get(h.idle, func() (deflate.Part, error) { return h.protobufPart(r.Match, nil) })
}

// isRenamed reports whether a model of a custom resource is renamed.
func isRenamed(m resource.Match, renamed map[string]string) bool {
	for _, model := range []string{crd.ModelName(m.Version.Kind), listModel(m)} {
		if _, ok := renamed[model]; ok {
			return true
		}
	}
	return false
}

// written returns a writer with the paths and schemas of one custom resource.
func (h *Handler) written(dialect crd.Dialect, m resource.Match, renamed map[string]string) (*writer, error) {
	t, err := h.archive.template(h.idle)
	if err != nil {
		return nil, err
	}
	w := newWriter(dialect, t)
	w.renamed = renamed
	return w, w.add(m)
}

func (h *Handler) jsonParts(
	dialect crd.Dialect, m resource.Match, renamed map[string]string,
) (parts jsonParts, err error) {
	w, err := h.written(dialect, m, renamed)
	if err != nil {
		return parts, err
	}
	if parts.paths, err = members(w.paths); err != nil {
		return parts, err
	}
	parts.schemas, err = members(w.schemas)
	return parts, err
}

// protobufPart returns a protobuf document with the paths and models of one custom resource, which is appended to the
// encoding of the other resources: protobuf merges a repeated message by appending to its repeated fields.
func (h *Handler) protobufPart(m resource.Match, renamed map[string]string) (deflate.Part, error) {
	w, err := h.written(crd.V2, m, renamed)
	if err != nil {
		return deflate.Part{}, err
	}
	encoded, err := appendValue(nil, object{
		"swagger": "2.0", "info": customInfo(), "paths": w.paths, "definitions": w.schemas,
	})
	if err != nil {
		return deflate.Part{}, err
	}
	parsed, err := openapiv2.ParseDocument(encoded)
	if err != nil {
		return deflate.Part{}, fmt.Errorf("parse OpenAPI: %w", err)
	}
	merged, err := proto.Marshal(&openapiv2.Document{Paths: parsed.Paths, Definitions: parsed.Definitions})
	if err != nil {
		return deflate.Part{}, fmt.Errorf("encode OpenAPI: %w", err)
	}
	return deflate.Compress(merged)
}
