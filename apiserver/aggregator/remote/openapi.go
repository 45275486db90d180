package remote

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/aggregator"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// OpenAPIV2 is the OpenAPI version 2 document of one group version. It is kept compressed, and immutable.
type OpenAPIV2 struct {
	// Tag is a hash of the content.
	Tag        string
	compressed []byte
}

// NewOpenAPIV2 compresses a document.
func NewOpenAPIV2(swagger *spec.Swagger) (*OpenAPIV2, error) {
	encoded, err := json.Marshal(swagger)
	if err != nil {
		return nil, fmt.Errorf("encode OpenAPI: %w", err)
	}
	var compressed bytes.Buffer
	writer := gzip.NewWriter(&compressed)
	if _, err := writer.Write(encoded); err != nil {
		return nil, fmt.Errorf("compress OpenAPI: %w", err)
	}
	if err := writer.Close(); err != nil {
		return nil, fmt.Errorf("compress OpenAPI: %w", err)
	}
	return &OpenAPIV2{Tag: fmt.Sprintf("%X", sha512.Sum512(encoded)), compressed: compressed.Bytes()}, nil
}

// Decode returns a new copy of the document.
func (o *OpenAPIV2) Decode() (*spec.Swagger, error) {
	reader, err := gzip.NewReader(bytes.NewReader(o.compressed))
	if err != nil {
		return nil, fmt.Errorf("decompress OpenAPI: %w", err)
	}
	encoded, err := io.ReadAll(reader)
	if err != nil {
		return nil, fmt.Errorf("decompress OpenAPI: %w", err)
	}
	swagger := &spec.Swagger{}
	if err := swagger.UnmarshalJSON(encoded); err != nil {
		return nil, fmt.Errorf("decode OpenAPI: %w", err)
	}
	return swagger, nil
}

// serverV2 is the OpenAPI version 2 document of a server, divided by group version.
type serverV2 struct {
	versions map[schema.GroupVersion]*OpenAPIV2
	tag      string // the server's entity tag, empty if it sends none
	sum      [sha512.Size]byte
}

// errMissing is returned for a document that the server does not have.
var errMissing = errors.New("the server has no such document")

// fetchV2 downloads the version 2 document, and returns it with its tag and sum. It returns errUnchanged if the
// document is the same as last time.
func fetchV2(ctx context.Context, backend Backend, last serverV2) ([]byte, serverV2, error) {
	r, err := document{"/openapi/v2", openAPITimeout, maxOpenAPI, nil}.get(ctx, backend, map[string]string{
		"Accept": "application/json", "If-None-Match": last.tag,
	})
	switch {
	case err != nil:
		return nil, serverV2{}, err
	case r.status == http.StatusNotModified && last.tag != "":
		return nil, serverV2{}, errUnchanged
	case r.status == http.StatusNotFound:
		return nil, serverV2{}, errMissing
	case r.status != http.StatusOK:
		return nil, serverV2{}, fmt.Errorf("/openapi/v2: status %d", r.status)
	}
	found := serverV2{tag: r.header.Get("Etag"), sum: sha512.Sum512(r.body)}
	if found.sum == last.sum {
		return nil, serverV2{}, errUnchanged
	}
	return r.body, found, nil
}

// splitV2 decodes a version 2 document and returns the part for each of the wanted group versions: the paths of the
// group version, and the models that they refer to. The caller holds Controller.parsing.
func splitV2(body []byte, wanted []schema.GroupVersion) (parts map[schema.GroupVersion]*OpenAPIV2, err error) {
	defer recoverAs(&err)
	swagger := &spec.Swagger{}
	if err := swagger.UnmarshalJSON(body); err != nil {
		return nil, fmt.Errorf("decode /openapi/v2: %w", err)
	}
	parts = map[schema.GroupVersion]*OpenAPIV2{}
	for _, gv := range wanted {
		prefix := "/apis/" + gv.Group + "/" + gv.Version + "/"
		part, err := NewOpenAPIV2(aggregator.FilterSpecByPathsWithoutSideEffects(swagger, []string{prefix}))
		if err != nil {
			return nil, err
		}
		parts[gv] = part
	}
	return parts, nil
}

// recoverAs recovers from a panic and stores it as an error: kube-openapi panics on some invalid documents.
func recoverAs(err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("invalid OpenAPI document: %v", r)
	}
}

// serverV3 is the index of a server's OpenAPI version 3 documents.
type serverV3 struct {
	paths   map[string]string // URLs of documents by path, such as "apis/apps/v1"
	missing bool              // the server has no version 3 documents
}

// fetchV3 downloads the index of version 3 documents, and keeps the entries of the wanted group versions and their
// groups. kube-apiserver keeps all entries of all servers, in random order; the other entries would replace this
// server's own.
func fetchV3(ctx context.Context, backend Backend, wanted []schema.GroupVersion) (serverV3, error) {
	r, err := document{"/openapi/v3", openAPITimeout, maxIndex, nil}.get(ctx, backend, nil)
	switch {
	case err != nil:
		return serverV3{}, err
	case r.status == http.StatusNotFound:
		return serverV3{missing: true}, nil
	case r.status != http.StatusOK:
		return serverV3{}, fmt.Errorf("/openapi/v3: status %d", r.status)
	}
	var index handler3.OpenAPIV3Discovery
	if err := json.Unmarshal(r.body, &index); err != nil {
		return serverV3{}, fmt.Errorf("decode /openapi/v3: %w", err)
	}
	paths := map[string]string{}
	for _, gv := range wanted {
		for _, path := range []string{"apis/" + gv.Group, "apis/" + gv.Group + "/" + gv.Version} {
			if entry, ok := index.Paths[path]; ok {
				paths[path] = strings.Clone(entry.ServerRelativeURL)
			}
		}
	}
	return serverV3{paths: paths}, nil
}
