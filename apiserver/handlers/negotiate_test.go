package handlers

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"

	"quorate.dev/apiserver/codec"
	"quorate.dev/apiserver/resource"
)

const protobuf = "application/vnd.kubernetes.protobuf"

func TestNegotiate(t *testing.T) {
	v1 := schema.GroupVersion{Group: "meta.k8s.io", Version: "v1"}
	for _, c := range []struct {
		accept string
		source resource.Source
		want   output
		code   int // of the error; 0: none
	}{
		{accept: "", want: output{}},
		{accept: "*/*", want: output{}},
		{accept: "application/json", want: output{}},
		{accept: "application/yaml", want: output{media: codec.YAML}},
		{accept: protobuf, want: output{media: codec.Protobuf}},
		{accept: protobuf + ",application/json", want: output{media: codec.Protobuf}},
		{accept: protobuf + ",application/json", source: resource.Custom, want: output{}},
		{accept: "application/json;q=0.1," + protobuf, want: output{media: codec.Protobuf}},
		{accept: protobuf, source: resource.Custom, code: http.StatusNotAcceptable},
		{
			accept: protobuf + ";as=PartialObjectMetadata;v=v1;g=meta.k8s.io", source: resource.Custom, want: output{
				media: codec.Protobuf, as: metadataOnly, group: v1,
			},
		},
		{
			accept: "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", want: output{
				as: metadataOnly, list: true, group: v1,
			},
		},
		{accept: "application/json;as=Table;v=v1;g=meta.k8s.io", want: output{as: table, group: v1}},
		{accept: "application/json;as=Table;v=v2;g=meta.k8s.io,application/json", want: output{}},
		{accept: "application/json;as=Table;v=v2;g=meta.k8s.io", code: http.StatusNotAcceptable},
		{accept: "application/json;g=meta.k8s.io;v=v1", code: http.StatusNotAcceptable},
		{accept: "application/json;v=v1,application/yaml", want: output{media: codec.YAML}},
		{accept: "application/json;pretty=1", want: output{pretty: true}},
		{accept: "application/json;sv=v1", want: output{}},
		{accept: "application/json;sv=v2", code: http.StatusNotAcceptable},
		{accept: "application/yaml;stream=watch", code: http.StatusNotAcceptable},
		{accept: protobuf + ";as=Table;v=v1;g=meta.k8s.io", code: http.StatusNotAcceptable},
		{accept: "application/*", source: resource.Custom, want: output{}},
		{accept: "text/plain", code: http.StatusNotAcceptable},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("Accept", c.accept)
		target := resource.Target{
			Match: resource.Match{Definition: &resource.Definition{Source: c.source}}, Endpoint: &resource.Endpoint{},
		}
		got, err := negotiate(r, target)
		if c.code != 0 {
			if err == nil {
				t.Errorf("%q: accepted as %+v", c.accept, got)
			}
			continue
		}
		if err != nil || got != c.want {
			t.Errorf("%q: got %+v, want %+v: %v", c.accept, got, c.want, err)
		}
	}
}

// TestMediaTypesOfCBOR lists the media types of bodies, responses and patches with and without the feature gate.
func TestMediaTypesOfCBOR(t *testing.T) {
	custom := resource.Target{Match: resource.Match{Definition: &resource.Definition{Source: resource.Custom}}}
	for _, on := range []bool{false, true} {
		featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.CBORServingAndStorage, on)
		lists := map[string][]string{
			"application/cbor":             mediaTypes(),
			"application/cbor-seq":         produced(true),
			"application/apply-patch+cbor": (&call{target: custom}).patchTypes(),
		}
		for mediaType, list := range lists {
			if slices.Contains(list, mediaType) != on {
				t.Errorf("CBOR %t: %v", on, list)
			}
		}
		if list := offered(custom); slices.Contains(list, protobuf) || slices.Contains(list, "application/cbor") != on {
			t.Errorf("CBOR %t: bodies of custom resources are %v", on, list)
		}
	}
	if got := (output{media: codec.CBOR}).contentType(true); got != "application/cbor-seq" {
		t.Errorf("watches have the media type %s", got)
	}
}

func TestManagerOrAgent(t *testing.T) {
	for agent, want := range map[string]string{
		"kubectl/v1.36 (linux)":  "kubectl",
		"curl":                   "curl",
		"":                       "",
		"a\tb/1":                 "a",
		strings.Repeat("x", 200): strings.Repeat("x", 128),
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("User-Agent", agent)
		if got := managerOrAgent("", r); got != want {
			t.Errorf("%q: got %q, want %q", agent, got, want)
		}
		if got := managerOrAgent("me", r); got != "me" {
			t.Errorf("%q: got %q", agent, got)
		}
	}
}

func TestWantsPretty(t *testing.T) {
	for _, c := range []struct {
		query, agent string
		want         bool
	}{
		{"", "kubectl/1", false}, {"", "curl/8", true}, {"", "Wget/1", true}, {"", "Mozilla/5.0 x", true},
		{"pretty=true", "kubectl/1", true}, {"pretty=1", "", true},
		{"pretty=false", "curl/8", false}, {"x=pretty", "", false}, {"pretty=T", "", true}, {"pretty", "curl/8", true},
		{"pretty=", "curl/8", true}, {"pretty=maybe", "curl/8", false},
	} {
		r := httptest.NewRequest(http.MethodGet, "/?"+c.query, nil)
		r.Header.Set("User-Agent", c.agent)
		if got := wantsPretty(r); got != c.want {
			t.Errorf("%q from %q: got %v", c.query, c.agent, got)
		}
	}
}
