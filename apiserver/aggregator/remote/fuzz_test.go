package remote

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

var widgets = schema.GroupVersion{Group: "example.com", Version: "v1"}

// answer is a server that sends the same body for all paths.
type answer struct {
	contentType string
	body        []byte
}

// Fetch implements Backend.
func (a answer) Fetch(context.Context, string, http.Header) (*http.Response, error) {
	return &http.Response{
		StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {a.contentType}},
		Body: io.NopCloser(bytes.NewReader(a.body)),
	}, nil
}

const aggregatedType = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

func FuzzDiscovery(f *testing.F) {
	d, err := newDecoder()
	if err != nil {
		f.Fatal(err)
	}
	for _, contentType := range []string{
		aggregatedType, strings.Replace(aggregatedType, "v2;", "v2beta1;", 1), "application/json", "x",
	} {
		for _, body := range []string{
			`{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","items":[{"metadata":{"name":"example.com"},"versions":[{"version":"v1","resources":[{"resource":"widgets","scope":"Namespaced","verbs":["get"],"subresources":[{"subresource":"status"}]}]}]}]}`,
			`{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2beta1","items":[{"versions":null},null]}`,
			`{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"example.com/v1","resources":[{"name":"widgets/status","namespaced":true},{"name":"widgets","kind":"Widget"},{"name":"/"}]}`,
			`{"kind":"APIResourceList","resources":[null]}`, `{`, ``, "\x00k8s",
		} {
			f.Add(contentType, []byte(body))
		}
	}
	f.Fuzz(func(t *testing.T, contentType string, body []byte) {
		found, err := d.discover(t.Context(), answer{contentType, body}, []schema.GroupVersion{widgets}, "")
		if err != nil && len(found.versions) > 0 {
			t.Errorf("found %v with %v", found.versions, err)
		}
		for gv, version := range found.versions {
			for _, resource := range version.Resources {
				if resource.ResponseKind == nil {
					t.Errorf("%s: %s has no kind", gv, resource.Resource)
				}
			}
		}
	})
}

func FuzzOpenAPI(f *testing.F) {
	for _, body := range []string{
		`{"swagger":"2.0","paths":{"/apis/example.com/v1/":{"get":{"responses":{"200":{"schema":{"$ref":"#/definitions/A"}}}}}},"definitions":{"A":{"properties":{"a":{"$ref":"#/definitions/A"}}}}}`,
		`{"paths":{"/apis/example.com/v1/":{"get":{"parameters":[{"$ref":"#/parameters/none"}]}}}}`,
		`{"paths":null,"definitions":{"":{"$ref":""}}}`, `{"paths":{"/apis/example.com/v1/":null}}`, `null`, `[]`, ``,
		`{"paths":{"apis/example.com/v1":{"serverRelativeURL":"/openapi/v3/apis/example.com/v1?hash=1"}}}`,
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		wanted := []schema.GroupVersion{widgets}
		parts, err := splitV2(body, wanted)
		if err == nil {
			if _, err := parts[widgets].Decode(); err != nil {
				t.Errorf("the part cannot be decoded: %v", err)
			}
		}
		index, err := fetchV3(t.Context(), answer{"application/json", body}, wanted)
		if err != nil && len(index.paths) > 0 || len(index.paths) > 2 {
			t.Errorf("found %v with %v", index.paths, err)
		}
	})
}
