package encoding

import (
	"encoding/json"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"

	"quorate.dev/apiserver/codec"
	"quorate.dev/apiserver/resource"
)

// report is a custom resource like the reports of a policy engine: metadata with managed fields, and results with
// strings, numbers and times.
func report(name string) *unstructured.Unstructured {
	results := make([]any, 10)
	for i := range results {
		results[i] = map[string]any{
			"policy": "require-labels", "rule": fmt.Sprintf("check-%d", i), "result": "pass", "scored": true,
			"message": "validation rule passed", "source": "engine", "severity": "medium",
			"timestamp": map[string]any{"seconds": int64(1700000000 + i), "nanos": int64(0)},
		}
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Gadget",
		"metadata": map[string]any{
			"name": name, "namespace": "default", "uid": "a6b1d1f0-4f0e-4f5c-8d3a-4a8f7f0f9a11", "generation": int64(3),
			"creationTimestamp": "2026-01-01T00:00:00Z", "labels": map[string]any{"app": "engine", "cpol": "require-labels"},
			"managedFields": []any{map[string]any{
				"manager": "engine", "operation": "Update", "apiVersion": "example.com/v1", "time": "2026-01-01T00:00:00Z",
				"fieldsType": "FieldsV1", "fieldsV1": map[string]any{
					"f:metadata": map[string]any{"f:labels": map[string]any{".": map[string]any{}, "f:app": map[string]any{}}},
					"f:results":  map[string]any{}, "f:summary": map[string]any{"f:pass": map[string]any{}},
				},
			}},
		},
		"results": results,
		"summary": map[string]any{"pass": int64(10), "fail": int64(0), "warn": int64(0), "error": int64(0), "skip": int64(0)},
	}}
}

// BenchmarkCustomList measures the parts of a list of custom resources that JSON and CBOR make different: decoding a
// stored object, encoding an item, and what a client decodes. It reports the bytes of one object.
func BenchmarkCustomList(b *testing.B) {
	for name, media := range map[string]codec.Media{"JSON": codec.JSON, "CBOR": codec.CBOR} {
		featuregatetesting.SetFeatureGateDuringTest(b, utilfeature.DefaultFeatureGate, features.CBORServingAndStorage,
			media == codec.CBOR)
		m := custom(b)
		stored, err := m.Version.Codec.Store(b.Context(), report("a"))
		if err != nil {
			b.Fatal(err)
		}
		benchmarkMedia(b, name, m, media, stored)
	}
}

func benchmarkMedia(b *testing.B, name string, m resource.Match, media codec.Media, stored []byte) {
	format := Format{Resource: m, Media: media}
	loaded, err := m.Version.Codec.LoadExternal(b.Context(), stored)
	if err != nil {
		b.Fatal(err)
	}
	item, err := format.itemAt(loaded, 7)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("load/"+name, func(b *testing.B) {
		for b.Loop() {
			_, _ = m.Version.Codec.LoadExternal(b.Context(), stored)
		}
		b.ReportMetric(float64(len(stored)), "bytes")
	})
	b.Run("encode/"+name, func(b *testing.B) {
		for b.Loop() {
			_, _ = format.Item(loaded)
		}
		b.ReportMetric(float64(len(item)), "bytes")
	})
	b.Run("list/"+name, func(b *testing.B) { benchmarkList(b, format, item) })
	body := format.Envelope().Body(item)
	b.Run("client/"+name, func(b *testing.B) {
		for b.Loop() {
			decodeAsClient(b, media, body)
		}
	})
}

// benchmarkList measures a list of 1,000 items that the watch cache has.
func benchmarkList(b *testing.B, format Format, item []byte) {
	items := make([]codec.Encoding, 1000)
	for i := range items {
		items[i] = codec.Whole(item)
	}
	var to []byte
	for b.Loop() {
		body, err := format.List(items, metav1.ListMeta{ResourceVersion: "7"})
		if err != nil {
			b.Fatal(err)
		}
		to = body.AppendHead(to[:0])
		for i := range body.Len() {
			to = body.AppendItem(to, i)
		}
	}
	b.ReportMetric(float64(len(to)), "bytes")
}

func decodeAsClient(b *testing.B, media codec.Media, body []byte) {
	var object runtime.Object = &unstructured.Unstructured{}
	var err error
	if media == codec.CBOR {
		_, _, err = cbor.NewSerializer(nil, nil).Decode(body, nil, object)
	} else {
		err = json.Unmarshal(body, object)
	}
	if err != nil {
		b.Fatal(err)
	}
}
