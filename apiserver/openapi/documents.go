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
	"quorate.dev/apiserver/deflate"
	"quorate.dev/apiserver/lazy"
	"quorate.dev/apiserver/openapi/reduction"
)

// v3 returns the version 3 document of a path, which contents must have.
func (h *Handler) v3(c *contents, path string, form encoding) (document, error) {
	resources, custom := c.custom[path]
	if changed := c.changed[path]; changed != nil {
		return h.changedV3(c, changed, path, form)
	}
	if !custom {
		compressed, err := h.archive.gzipped("v3/" + path + form.suffix())
		return document{compressed: compressed, tag: c.v3Tags[path]}, err
	}
	compressed, err := h.customV3(resources)
	if err != nil || form == asJSON {
		return document{compressed: compressed, tag: c.v3Tags[path]}, err
	}
	content, err := decompress(compressed)
	if err != nil {
		return document{}, err
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

// changedDocument is a version 3 document of built-in resources that differs from its archived form: only some of its
// resources are served, it has no enumerations, or it has the media types of CBOR. It is built when it is requested,
// and dropped when it was not requested for some time.
type changedDocument struct {
	json, protobuf lazy.Value[[]byte] // gzip streams
}

// changedV3 returns the changed document of a path.
func (h *Handler) changedV3(c *contents, changed *changedDocument, path string, form encoding) (document, error) {
	value := &changed.json
	if form == asProtobuf {
		value = &changed.protobuf
	}
	compressed, err := value.Get(h.idle, func() ([]byte, error) {
		content, err := h.buildChangedV3(c, path, form)
		if err != nil {
			return nil, err
		}
		part, err := deflate.Compress(content)
		return deflate.Join(part), err
	})
	return document{compressed: compressed, tag: c.v3Tags[path]}, err
}

// buildChangedV3 derives a changed document from its archived form.
func (h *Handler) buildChangedV3(c *contents, path string, form encoding) ([]byte, error) {
	var whole object
	if err := h.archive.decode("v3/"+path+".json", &whole); err != nil {
		return nil, err
	}
	if h.archive.index.noEnumerations {
		reduction.RemoveEnumerationsV3(whole)
	}
	if isVersionPath(path) {
		if err := reduction.V3(whole, c.serves); err != nil {
			return nil, fmt.Errorf("OpenAPI of %s: %w", path, err)
		}
	}
	if c.cbor {
		addCBOR(whole)
	}
	content, err := json.Marshal(whole)
	if err != nil {
		return nil, fmt.Errorf("encode OpenAPI of %s: %w", path, err)
	}
	if form == asProtobuf {
		if content, err = protobufV3(content); err != nil {
			return nil, fmt.Errorf("OpenAPI of %s: %w", path, err)
		}
	}
	return content, nil
}

// customV3 builds the document of a group version of custom resources, as a gzip stream.
func (h *Handler) customV3(resources []*customResource) ([]byte, error) {
	t, err := h.archive.template(h.idle)
	if err != nil {
		return nil, err
	}
	paths, schemas := []deflate.Part{pathsV3}, []deflate.Part{schemasV3}
	scaled := false
	for i, r := range resources {
		parts, err := h.partsV3(r)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			paths, schemas = append(paths, comma), append(schemas, comma)
		}
		paths, schemas = append(paths, parts.paths), append(schemas, parts.schemas)
		scaled = scaled || r.Version.Endpoints["scale"] != nil
	}
	shared := t.shared
	if scaled {
		shared = t.sharedScaled
	}
	return deflate.Join(slices.Concat(paths, schemas, []deflate.Part{comma, shared, endV3})...), nil
}

// These parts begin and end the version 3 documents of custom resources.
var (
	pathsV3   = literal(`{"openapi":"3.0.0","info":{"title":"Kubernetes CRD Swagger","version":"v0.1.0"},"paths":{`)
	schemasV3 = literal(`},"components":{"schemas":{`)
	endV3     = literal(`}}}`)
)

func customInfo() object { return object{"title": "Kubernetes CRD Swagger", "version": "v0.1.0"} }

// mergedCache caches the version 2 document of this server, compressed in each encoding. It is used if the document
// differs from the archived document.
type mergedCache struct {
	lock  sync.Mutex
	known map[encoding]document
}

// v2 returns the version 2 document of this server. If it must be built, concurrent callers wait for a single build.
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
	compressed, err := h.gzippedV2(c, form)
	if err != nil {
		return document{}, err
	}
	if h.merged.known == nil {
		h.merged.known = map[encoding]document{}
	}
	h.merged.known[form] = document{compressed: compressed, tag: c.v2Tag}
	return h.merged.known[form], nil
}

// gzippedV2 builds the version 2 document from compressed parts to limit its memory: with 1,000
// CustomResourceDefinitions, the document has 30 MB.
func (h *Handler) gzippedV2(c *contents, form encoding) ([]byte, error) {
	built, at, err := h.builtInV2(c, form)
	if err != nil {
		return nil, err
	}
	renamed, err := h.renames(c)
	if err != nil {
		return nil, err
	}
	if form == asProtobuf {
		return h.appendProtobuf(built, c, renamed)
	}
	return h.insertJSON(built, at, c, renamed)
}

// insertJSON inserts the paths and definitions of custom resources into the document of the built-in resources.
func (h *Handler) insertJSON(
	built []byte, at reduction.Places, c *contents, renamed map[string]string,
) ([]byte, error) {
	var between [3]deflate.Part
	var err error
	for i, content := range [][]byte{built[:at.Paths], built[at.Paths:at.Definitions], built[at.Definitions:]} {
		if between[i], err = deflate.Compress(content); err != nil {
			return nil, err
		}
	}
	paths, definitions := []deflate.Part{between[0]}, []deflate.Part{between[1]}
	for _, r := range c.customResources() {
		parts, err := h.partsV2(r, renamed)
		if err != nil {
			return nil, err
		}
		paths, definitions = append(paths, comma, parts.paths), append(definitions, comma, parts.schemas)
	}
	return deflate.Join(append(append(paths, definitions...), between[2])...), nil
}

// appendProtobuf appends the parts of custom resources to the document of the built-in resources.
func (h *Handler) appendProtobuf(built []byte, c *contents, renamed map[string]string) ([]byte, error) {
	first, err := deflate.Compress(built)
	if err != nil {
		return nil, err
	}
	parts := []deflate.Part{first}
	for _, r := range c.customResources() {
		part, err := h.protobufV2(r, renamed)
		if err != nil {
			return nil, err
		}
		parts = append(parts, part)
	}
	return deflate.Join(parts...), nil
}

// customResources returns all custom resources by group, version and plural.
func (c *contents) customResources() []*customResource {
	var all []*customResource
	for _, path := range slices.Sorted(maps.Keys(c.custom)) {
		all = append(all, c.custom[path]...)
	}
	return all
}

// builtInModels is the prefix of the names of built-in models.
const builtInModels = "io.k8s."

// renames returns new names for the models of custom resources that collide with built-in models: like kube-openapi's
// aggregator, it appends the first free numeric suffix.
func (h *Handler) renames(c *contents) (map[string]string, error) {
	var inDoubt []string
	for _, m := range c.customResources() {
		for _, model := range []string{crd.ModelName(m.Version.Kind), listModel(m.Match)} {
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

// builtInV2 returns the version 2 document of the served built-in resources, and the places in its JSON where the
// members of custom resources can be inserted.
func (h *Handler) builtInV2(c *contents, form encoding) ([]byte, reduction.Places, error) {
	if c.whole {
		built, err := h.archive.read("v2" + form.suffix())
		return built, h.archive.index.Places, err
	}
	all, err := h.changedV2(c)
	if err != nil {
		return nil, reduction.Places{}, err
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

// changedV2 returns the version 2 document of the served built-in resources, which differs from the archived one.
func (h *Handler) changedV2(c *contents) (object, error) {
	var all object
	if err := h.archive.decode(c.smallestV2(), &all); err != nil {
		return nil, err
	}
	if h.archive.index.noEnumerations {
		reduction.RemoveEnumerationsV2(all)
	}
	if err := reduction.V2(all, c.serves); err != nil {
		return nil, fmt.Errorf("OpenAPI of built-in resources: %w", err)
	}
	if c.cbor {
		addCBOR(all)
	}
	return all, nil
}

// smallestV2 returns the name of the smallest archived document that has all served built-in resources.
func (c *contents) smallestV2() string {
	for name := range c.served {
		if !strings.HasPrefix(name, "apiextensions.k8s.io/") {
			return "v2all.json"
		}
	}
	return "v2extension.json"
}
