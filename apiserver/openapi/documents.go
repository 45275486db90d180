package openapi

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	openapiv2 "github.com/google/gnostic-models/openapiv2"
	openapiv3 "github.com/google/gnostic-models/openapiv3"
	"google.golang.org/protobuf/proto"

	"quorate.dev/apiserver/crd"
	"quorate.dev/apiserver/resource"
)

// v3 returns one version 3 document.
func (h *Handler) v3(c *contents, path string, form encoding) (document, error) {
	gv, custom := c.custom[path]
	if !custom {
		compressed, err := h.archive.gzipped("v3/" + path + form.suffix())
		return document{compressed: compressed, tag: c.v3Tags[path]}, err
	}
	content, err := h.customV3(gv)
	if err != nil || form == asJSON {
		return document{plain: content, tag: c.v3Tags[path]}, err
	}
	parsed, err := openapiv3.ParseDocument(content)
	if err != nil {
		return document{}, fmt.Errorf("parse OpenAPI of %s: %w", path, err)
	}
	binary, err := proto.Marshal(parsed)
	if err != nil {
		return document{}, fmt.Errorf("encode OpenAPI of %s: %w", path, err)
	}
	return document{plain: binary, tag: c.v3Tags[path]}, nil
}

// customV3 makes the document of the custom resources of one group and version, complete in itself.
func (h *Handler) customV3(gv resource.GroupVersion) ([]byte, error) {
	var t template
	if err := h.archive.decode("template.json", &t); err != nil {
		return nil, err
	}
	w := newWriter(crd.V3, t)
	scaled := false
	for _, m := range gv.Resources {
		if err := w.add(m); err != nil {
			return nil, err
		}
		scaled = scaled || m.Version.Endpoints["scale"] != nil
	}
	for name, schema := range t.V3.Schemas {
		if scaled || !strings.HasPrefix(name, autoscalingModels) {
			w.schemas[name] = schema
		}
	}
	content, err := json.Marshal(object{
		"openapi": "3.0.0", "info": customInfo(), "paths": w.paths, "components": object{"schemas": w.schemas},
	})
	if err != nil {
		return nil, fmt.Errorf("encode OpenAPI of %s/%s: %w", gv.Group, gv.Version, err)
	}
	return content, nil
}

func customInfo() object { return object{"title": "Kubernetes CRD Swagger", "version": "v0.1.0"} }

// mergedCache keeps the last version 2 document with custom resources in each encoding, compressed: making one
// costs milliseconds per custom resource.
type mergedCache struct {
	lock  sync.Mutex
	known map[encoding]document
}

// v2 returns the version 2 document.
func (h *Handler) v2(c *contents, form encoding) (document, error) {
	if len(c.custom) == 0 {
		compressed, err := h.archive.gzipped("v2" + form.suffix())
		return document{compressed: compressed, tag: c.v2Tag}, err
	}
	h.merged.lock.Lock()
	defer h.merged.lock.Unlock()
	if known := h.merged.known[form]; known.tag == c.v2Tag {
		return known, nil
	}
	content, err := h.mergedV2(c, form)
	if err != nil {
		return document{}, err
	}
	compressed, err := compress(content)
	if err != nil {
		return document{}, err
	}
	if h.merged.known == nil {
		h.merged.known = map[encoding]document{}
	}
	h.merged.known[form] = document{compressed: compressed, tag: c.v2Tag}
	return document{plain: content, compressed: compressed, tag: c.v2Tag}, nil
}

func (h *Handler) mergedV2(c *contents, form encoding) ([]byte, error) {
	var t template
	if err := h.archive.decode("template.json", &t); err != nil {
		return nil, err
	}
	w := newWriter(crd.V2, t)
	for _, path := range slices.Sorted(maps.Keys(c.custom)) {
		for _, m := range c.custom[path].Resources {
			if err := w.add(m); err != nil {
				return nil, err
			}
		}
	}
	built, err := h.archive.read("v2" + form.suffix())
	if err != nil {
		return nil, err
	}
	if form == asProtobuf {
		return appendProtobuf(built, w)
	}
	return insertJSON(built, h.archive.index, w)
}

// insertJSON puts paths and definitions into a document at the places known for it.
func insertJSON(built []byte, at archiveIndex, w *writer) ([]byte, error) {
	paths, err := members(w.paths)
	if err != nil {
		return nil, err
	}
	definitions, err := members(w.schemas)
	if err != nil {
		return nil, err
	}
	return slices.Concat(built[:at.Paths], paths, built[at.Paths:at.Definitions], definitions, built[at.Definitions:]), nil
}

// members encodes what is between the braces of an object, to be put after other members.
func members(of object) ([]byte, error) {
	encoded, err := json.Marshal(of)
	if err != nil {
		return nil, fmt.Errorf("encode OpenAPI: %w", err)
	}
	encoded[0] = ','
	return encoded[:len(encoded)-1], nil
}

// appendProtobuf relies on how protobuf merges: a message that comes again adds to its repeated fields.
func appendProtobuf(built []byte, w *writer) ([]byte, error) {
	encoded, err := json.Marshal(object{"swagger": "2.0", "info": customInfo(), "paths": w.paths, "definitions": w.schemas})
	if err != nil {
		return nil, fmt.Errorf("encode OpenAPI: %w", err)
	}
	parsed, err := openapiv2.ParseDocument(encoded)
	if err != nil {
		return nil, fmt.Errorf("parse OpenAPI: %w", err)
	}
	merged, err := proto.MarshalOptions{}.MarshalAppend(built, &openapiv2.Document{Paths: parsed.Paths, Definitions: parsed.Definitions})
	if err != nil {
		return nil, fmt.Errorf("encode OpenAPI: %w", err)
	}
	return merged, nil
}
