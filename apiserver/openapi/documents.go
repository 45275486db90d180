package openapi

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	openapiv2 "github.com/google/gnostic-models/openapiv2"
	openapiv3 "github.com/google/gnostic-models/openapiv3"
	"google.golang.org/protobuf/proto"

	"quorate.dev/apiserver/crd"
	"quorate.dev/apiserver/openapi/reduction"
	"quorate.dev/apiserver/resource"
)

// v3 returns one version 3 document.
func (h *Handler) v3(c *contents, path string, form encoding) (document, error) {
	gv, custom := c.custom[path]
	if c.partial[path] {
		return h.reducedV3(c, path, form)
	}
	if !custom {
		compressed, err := h.archive.gzipped("v3/" + path + form.suffix())
		return document{compressed: compressed, tag: c.v3Tags[path]}, err
	}
	content, err := h.customV3(gv)
	if err != nil || form == asJSON {
		return document{plain: content, tag: c.v3Tags[path]}, err
	}
	binary, err := protobufV3(content)
	if err != nil {
		return document{}, fmt.Errorf("OpenAPI of %s: %w", path, err)
	}
	return document{plain: binary, tag: c.v3Tags[path]}, nil
}

func protobufV3(content []byte) ([]byte, error) {
	parsed, err := openapiv3.ParseDocument(content)
	if err != nil {
		return nil, fmt.Errorf("parse: %w", err)
	}
	binary, err := proto.Marshal(parsed)
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	return binary, nil
}

// reducedV3 builds the document of a version that is partly served. It is not cached, because few clients request it.
func (h *Handler) reducedV3(c *contents, path string, form encoding) (document, error) {
	var whole object
	if err := h.archive.decode("v3/"+path+".json", &whole); err != nil {
		return document{}, err
	}
	if err := reduction.V3(whole, c.serves); err != nil {
		return document{}, fmt.Errorf("OpenAPI of %s: %w", path, err)
	}
	content, err := json.Marshal(whole)
	if err != nil {
		return document{}, fmt.Errorf("encode OpenAPI of %s: %w", path, err)
	}
	if form == asProtobuf {
		if content, err = protobufV3(content); err != nil {
			return document{}, fmt.Errorf("OpenAPI of %s: %w", path, err)
		}
	}
	return document{plain: content, tag: c.v3Tags[path]}, nil
}

// customV3 builds the document of the custom resources of a group version.
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

// mergedCache caches the last version 2 document that differs from the archived one, compressed in each encoding:
// building one takes milliseconds per resource.
type mergedCache struct {
	lock  sync.Mutex
	known map[encoding]document
}

// v2 returns the version 2 document.
func (h *Handler) v2(c *contents, form encoding) (document, error) {
	if len(c.custom) == 0 && c.whole {
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
	built, at, err := h.builtInV2(c, form)
	if err != nil || len(c.custom) == 0 {
		return built, err
	}
	w := newWriter(crd.V2, t)
	if w.renamed, err = h.renames(c); err != nil {
		return nil, err
	}
	for _, m := range c.customResources() {
		if err := w.add(m); err != nil {
			return nil, err
		}
	}
	if form == asProtobuf {
		return appendProtobuf(built, w)
	}
	return insertJSON(built, at, w)
}

// builtInModels is the prefix of the names of built-in models.
const builtInModels = "io.k8s."

// renames renames models of custom resources that collide with built-in models by the first free numeric suffix, like
// kube-openapi's aggregator.
func (h *Handler) renames(c *contents) (map[string]string, error) {
	var inDoubt []string
	for _, m := range c.customResources() {
		for _, model := range []string{crd.ModelName(m.Version.Kind), listModel(m)} {
			if strings.HasPrefix(model, builtInModels) {
				inDoubt = append(inDoubt, model)
			}
		}
	}
	if len(inDoubt) == 0 {
		return nil, nil
	}
	built, _, err := h.builtInV2(c, asJSON)
	if err != nil {
		return nil, err
	}
	var names struct {
		Definitions map[string]json.RawMessage `json:"definitions"`
	}
	if err := json.Unmarshal(built, &names); err != nil {
		return nil, fmt.Errorf("decode OpenAPI of built-in resources: %w", err)
	}
	taken := func(name string) bool {
		_, ok := names.Definitions[name]
		return ok || slices.Contains(inDoubt, name)
	}
	renamed := map[string]string{}
	for _, model := range inDoubt {
		if _, conflict := names.Definitions[model]; !conflict {
			continue
		}
		number := 2
		for taken(fmt.Sprintf("%s_v%d", model, number)) {
			number++
		}
		renamed[model] = fmt.Sprintf("%s_v%d", model, number)
	}
	return renamed, nil
}

// builtInV2 returns the version 2 document of the served built-in resources and the places in its JSON where more can
// be inserted.
func (h *Handler) builtInV2(c *contents, form encoding) ([]byte, reduction.Places, error) {
	if c.whole {
		built, err := h.archive.read("v2" + form.suffix())
		return built, h.archive.index.Places, err
	}
	var all object
	if err := h.archive.decode(c.smallestV2(), &all); err != nil {
		return nil, reduction.Places{}, err
	}
	if err := reduction.V2(all, c.serves); err != nil {
		return nil, reduction.Places{}, fmt.Errorf("OpenAPI of built-in resources: %w", err)
	}
	encoded, at, err := reduction.EncodeV2(all)
	if err != nil || form == asJSON {
		return encoded, at, err
	}
	parsed, err := openapiv2.ParseDocument(encoded)
	if err != nil {
		return nil, at, fmt.Errorf("parse OpenAPI: %w", err)
	}
	binary, err := proto.Marshal(parsed)
	return binary, at, err
}

// smallestV2 returns the archived document that has all served built-in resources.
func (c *contents) smallestV2() string {
	for name := range c.served {
		if !strings.HasPrefix(name, "apiextensions.k8s.io/") {
			return "v2all.json"
		}
	}
	return "v2extension.json"
}

// insertJSON inserts paths and definitions at known places.
func insertJSON(built []byte, at reduction.Places, w *writer) ([]byte, error) {
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

// members encodes the members of an object, to be inserted after others.
func members(of object) ([]byte, error) {
	encoded, err := json.Marshal(of)
	if err != nil {
		return nil, fmt.Errorf("encode OpenAPI: %w", err)
	}
	encoded[0] = ','
	return encoded[:len(encoded)-1], nil
}

// appendProtobuf relies on protobuf's merge semantics: a repeated message appends to its repeated fields.
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
