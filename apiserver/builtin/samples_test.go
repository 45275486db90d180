package builtin_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"

	"quorate.dev/apiserver/resource"
)

// TestSamplesSurviveStorage sends upstream's serialized samples, which have every field set, through the models of
// all kinds: what is decoded, stored and loaded must be what was sent. JSON and protobuf must mean the same.
func TestSamplesSurviveStorage(t *testing.T) {
	directory := filepath.Join(moduleDirectory(t, "k8s.io/api"), "testdata/HEAD")
	tried := 0
	for _, d := range definitions() {
		for _, v := range d.Versions {
			group := v.Kind.Group
			if group == "" {
				group = "core"
			}
			file := filepath.Join(directory, group+"."+v.Name+"."+v.Kind.Kind)
			sample, err := os.ReadFile(file + ".json")
			if err != nil {
				continue
			}
			tried++
			t.Run(filepath.Base(file), func(t *testing.T) { checkSample(t, v.Model, sample, must[[]byte](t)(os.ReadFile(file+".pb"))) })
		}
	}
	if tried < 60 {
		t.Errorf("only %d kinds have samples", tried)
	}
}

// same compares embedded objects by what they mean.
var same = sync.OnceValue(func() conversion.Equalities {
	equalities := apiequality.Semantic.Copy()
	if err := equalities.AddFunc(func(a, b runtime.RawExtension) bool {
		return a.Object == nil && b.Object == nil && bytes.Equal(compact(a.Raw), compact(b.Raw))
	}); err != nil {
		panic(err)
	}
	return equalities
})()

func compact(raw []byte) []byte {
	var compacted bytes.Buffer
	if json.Compact(&compacted, raw) != nil {
		return raw
	}
	return compacted.Bytes()
}

func checkSample(t *testing.T, model resource.Model, sample, protobuf []byte) {
	sent := decode(t, model, sample, runtime.ContentTypeJSON)
	if other := decode(t, model, protobuf, runtime.ContentTypeProtobuf); !same.DeepEqual(sent, other) {
		t.Fatalf("JSON and protobuf differ:\n%s", cmp.Diff(sent, other))
	}
	stored := must[[]byte](t)(model.Store(sent))
	loaded := must[runtime.Object](t)(model.Load(stored))
	if !same.DeepEqual(sent, loaded) {
		t.Fatalf("not loaded as it was sent:\n%s", cmp.Diff(sent, loaded))
	}
	direct, viaHub := must[runtime.Object](t)(model.LoadExternal(stored)), must[runtime.Object](t)(model.External(loaded))
	if !same.DeepEqual(direct, viaHub) {
		t.Fatalf("read paths differ:\n%s", cmp.Diff(direct, viaHub))
	}
}

func decode(t *testing.T, model resource.Model, body []byte, mediaType string) runtime.Object {
	t.Helper()
	hub, _, strict, err := model.Decode(body, mediaType, resource.Strict)
	if err != nil || len(strict) > 0 {
		t.Fatalf("%s: %v %v", mediaType, err, strict)
	}
	return hub
}
