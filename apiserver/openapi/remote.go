package openapi

import (
	"crypto/sha512"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	openapiv2 "github.com/google/gnostic-models/openapiv2"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/openapiconv"

	"quorate.dev/apiserver/aggregator/remote"
	"quorate.dev/apiserver/deflate"
)

// Forward sends a request to the extension API server of a group version and copies its response.
type Forward func(w http.ResponseWriter, r *http.Request, gv schema.GroupVersion)

// view describes the documents of this server and of all extension API servers. It is immutable.
type view struct {
	*contents
	set *remote.Set
	// v2Tag and index are the values for the merged documents. They hide the fields of contents with the same names.
	v2Tag string
	index []byte
	// forwarded has the documents that extension API servers serve, by path of the version 3 document.
	forwarded map[string]*remote.Documents
	// converted has the documents that are converted from version 2, with their entity tags, by path of the version 3
	// document.
	converted map[string]convertedV3
	made      time.Time
}

type convertedV3 struct {
	*remote.Documents
	tag string
}

// viewCache caches the current view, and its merged version 2 document, compressed in each encoding.
type viewCache struct {
	lock    sync.Mutex
	current *view

	merging sync.Mutex // held while a document is merged
	known   map[encoding]document
}

func (c *viewCache) of(local *contents, set *remote.Set, now time.Time) (*view, error) {
	if set == nil || len(set.Remote) == 0 {
		return &view{contents: local, v2Tag: local.v2Tag, index: local.index, made: local.made}, nil
	}
	c.lock.Lock()
	defer c.lock.Unlock()
	if c.current != nil && c.current.contents == local && c.current.set == set {
		return c.current, nil
	}
	v := &view{
		contents: local, set: set, v2Tag: remoteV2Tag(local.v2Tag, set), made: now,
		forwarded: map[string]*remote.Documents{}, converted: map[string]convertedV3{},
	}
	if err := v.addV3(); err != nil {
		return nil, err
	}
	c.current = v
	return v, nil
}

// remoteV2Tag returns the entity tag of the merged version 2 document, given the tag of this server's document.
func remoteV2Tag(local string, set *remote.Set) string {
	sum, merged := sha512.New(), false
	_, _ = io.WriteString(sum, local) // never fails
	for _, documents := range set.Remote {
		if documents.V2 != nil {
			_, _ = fmt.Fprintf(sum, " %s %s", documents.GroupVersion, documents.V2.Tag)
			merged = true
		}
	}
	if !merged {
		return local
	}
	return fmt.Sprintf("%X", sum.Sum(nil))
}

// addV3 merges the indexes of version 3 documents. The document of a group version comes from the server that its
// APIService names; the document of a group comes from this server if it has one.
func (v *view) addV3() error {
	urls := v.urls()
	for _, documents := range v.set.Remote {
		for path, url := range documents.V3 {
			if _, own := v.v3Tags[path]; own && !isVersionPath(path) {
				continue
			}
			urls[path], v.forwarded[path] = url, documents
		}
		if documents.Converted && documents.V2 != nil {
			path := "apis/" + documents.Group + "/" + documents.Version
			tag := fmt.Sprintf("%X", sha512.Sum512([]byte("v3 "+documents.V2.Tag)))
			urls[path], v.converted[path] = urlOf(path, tag), convertedV3{documents, tag}
		}
	}
	index, err := encodeIndex(urls)
	v.index = index
	return err
}

// v3Tag returns the entity tag of a version 3 document that this server builds or converts, and false if there is
// none.
func (v *view) v3Tag(path string) (string, bool) {
	if converted, ok := v.converted[path]; ok {
		return converted.tag, true
	}
	tag, ok := v.v3Tags[path]
	return tag, ok
}

// viewV3 returns a version 3 document that this server builds or converts.
func (h *Handler) viewV3(v *view, path string, form encoding) (document, error) {
	if converted, ok := v.converted[path]; ok {
		return converted.document(form)
	}
	return h.v3(v.contents, path, form)
}

// remoteV2 returns the version 2 document, merged with the documents of extension API servers if there are any. If it
// must be merged, concurrent callers wait for a single merge.
func (h *Handler) remoteV2(v *view, form encoding) (document, error) {
	if v.v2Tag == v.contents.v2Tag {
		return h.v2(v.contents, form)
	}
	h.views.merging.Lock()
	defer h.views.merging.Unlock()
	if known := h.views.known[form]; known.tag == v.v2Tag {
		return known, nil
	}
	local, err := h.gzippedV2(v.contents, asJSON)
	if err != nil {
		return document{}, err
	}
	merged, err := mergeV2(local, v.set.Remote, func(documents *remote.Documents, err error) {
		h.logger.Error(err, "Left out an OpenAPI document of an extension API server", "groupVersion", documents.String())
	})
	if err == nil && form == asProtobuf {
		merged, err = protobufV2(merged)
	}
	if err != nil {
		return document{}, err
	}
	if h.views.known == nil {
		h.views.known = map[encoding]document{}
	}
	h.views.known[form] = document{compressed: merged, tag: v.v2Tag}
	return h.views.known[form], nil
}

// protobufV2 converts a gzip stream of JSON to a gzip stream of protobuf. It needs memory for the whole document in
// decoded form.
func protobufV2(compressed []byte) ([]byte, error) {
	content, err := decompress(compressed)
	if err != nil {
		return nil, err
	}
	parsed, err := openapiv2.ParseDocument(content)
	if err != nil {
		return nil, fmt.Errorf("parse OpenAPI: %w", err)
	}
	binary, err := proto.Marshal(parsed)
	if err != nil {
		return nil, fmt.Errorf("encode OpenAPI: %w", err)
	}
	part, err := deflate.Compress(binary)
	if err != nil {
		return nil, err
	}
	return deflate.Join(part), nil
}

// document converts the version 2 document of a group version to version 3. The result is not cached, because almost
// all servers have version 3 documents.
func (c convertedV3) document(form encoding) (doc document, err error) {
	defer func() {
		if r := recover(); r != nil { // the document may be invalid
			err = fmt.Errorf("convert OpenAPI of %s: %v", c.GroupVersion, r)
		}
	}()
	swagger, err := c.V2.Decode()
	if err != nil {
		return document{}, err
	}
	content, err := json.Marshal(openapiconv.ConvertV2ToV3(swagger))
	if err != nil {
		return document{}, fmt.Errorf("encode OpenAPI of %s: %w", c.GroupVersion, err)
	}
	if form == asProtobuf {
		if content, err = protobufV3(content); err != nil {
			return document{}, fmt.Errorf("OpenAPI of %s: %w", c.GroupVersion, err)
		}
	}
	return document{plain: content, tag: c.tag}, nil
}
