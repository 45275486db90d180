package openapi

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"testing"

	"k8s.io/kube-openapi/pkg/validation/spec"

	"quorate.dev/apiserver/aggregator/remote"
)

func zipped(t testing.TB, content string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := io.WriteString(w, content); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// FuzzMergeV2 merges arbitrary documents of an extension API server into a document of this server.
func FuzzMergeV2(f *testing.F) {
	const content = `{"swagger":"2.0","paths":{"/apis/apps/v1/":{"get":{"responses":{}}}},` +
		`"definitions":{"A":{"type":"object","properties":{"b":{"$ref":"#/definitions/B"}}},"B":{"type":"string"}},` +
		`"parameters":{"p":{"name":"p","in":"query"}}}`
	local := zipped(f, content)
	for _, seed := range []string{
		content,
		`{"paths":{"/x":{"get":{"parameters":[{"$ref":"#/parameters/p"}],"responses":{"200":{"schema":{"$ref":"#/definitions/A"}}}}}},"definitions":{"A":{"type":"string"},"A_v2":{"type":"number"}},"parameters":{"p":{"in":"body"}}}`,
		`{"paths":{"/x":{"get":{"responses":{"200":{"schema":{"$ref":"#/definitions/none"}}}}}}}`,
		`{"definitions":{"A":{"$ref":"#/definitions/A"}}}`, `{"definitions":{"":{}},"paths":{"":{}}}`, `{}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		swagger := &spec.Swagger{}
		if swagger.UnmarshalJSON(body) != nil {
			return
		}
		v2, err := remote.NewOpenAPIV2(swagger)
		if err != nil {
			return
		}
		merged, err := mergeV2(local, []*remote.Documents{{V2: v2}}, func(*remote.Documents, error) {})
		if err != nil {
			t.Fatal(err)
		}
		reader, err := gzip.NewReader(bytes.NewReader(merged))
		if err != nil {
			t.Fatal(err)
		}
		var document struct {
			Paths, Definitions map[string]any
		}
		if err := json.NewDecoder(reader).Decode(&document); err != nil {
			t.Fatal(err)
		}
		if document.Paths["/apis/apps/v1/"] == nil || document.Definitions["A"] == nil || document.Definitions["B"] == nil {
			t.Errorf("this server's own part is gone: %v", document)
		}
	})
}
