package builtin_test

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	jsonserializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"quorate.dev/apiserver/resource"
)

// sampled is a kind with samples.
type sampled struct {
	kind   schema.GroupVersionKind
	model  resource.Codec
	stored bool
	// printer prints rows of tables; nil for kinds of bodies only.
	printer rest.TableConvertor
}

// sampleKinds returns the kinds of all request bodies by the names of their samples.
func sampleKinds(t testing.TB) map[string]sampled {
	kinds := map[string]sampled{}
	add := func(kind schema.GroupVersionKind, model resource.Codec, stored bool, printer rest.TableConvertor) {
		group := kind.Group
		if group == "" {
			group = "core"
		}
		name := group + "." + kind.Version + "." + kind.Kind
		kinds[name] = sampled{kind, model, stored, printer}
	}
	for _, d := range everything(t) {
		for _, v := range d.Versions {
			add(v.Kind, v.Codec, d.StoragePath != "", v.Table)
			for _, e := range v.Endpoints {
				if e.Body != nil && e.Kind != v.Kind {
					add(e.Kind, e.Body, false, nil)
				}
			}
		}
	}
	return kinds
}

// completed are the kinds that upstream completes even if every field is set: labels and annotations, deprecated
// fields, requests from limits.
var completed = []string{
	"apps.v1.DaemonSet", "apps.v1.Deployment", "apps.v1.ReplicaSet", "apps.v1.StatefulSet",
	"autoscaling.v1.HorizontalPodAutoscaler", "batch.v1.CronJob", "batch.v1.Job", "core.v1.Namespace", "core.v1.Node",
	"core.v1.Pod", "core.v1.PodTemplate", "core.v1.ReplicationController", "core.v1.Secret",
}

// completedEarlier are the samples of earlier releases that upstream completes with the defaults of fields that are
// newer than these releases.
var completedEarlier = []string{"v1.35.0/storage.k8s.io.v1.CSIDriver", "v1.34.0/storage.k8s.io.v1.CSIDriver"}

// isCompleted reports whether upstream completes a sample.
func isCompleted(file string) bool {
	release, kind := filepath.Base(filepath.Dir(file)), filepath.Base(file)
	return slices.Contains(completed, kind) || slices.Contains(completedEarlier, release+"/"+kind)
}

// formats are the formats of samples by file extension.
var formats = map[string]struct {
	mediaType  string
	serializer runtime.Serializer
}{
	"json": {
		runtime.ContentTypeJSON,
		jsonserializer.NewSerializerWithOptions(nil, nil, nil, jsonserializer.SerializerOptions{Pretty: true}),
	},
	"yaml": {
		runtime.ContentTypeYAML,
		jsonserializer.NewSerializerWithOptions(nil, nil, nil, jsonserializer.SerializerOptions{Yaml: true}),
	},
	"pb": {runtime.ContentTypeProtobuf, protobuf.NewSerializer(nil, nil)},
}

// TestSamples round-trips upstream's serialized samples of this release and the three before, in which every field is
// set, through the codecs of all kinds: decoded and encoded for a client, and stored and loaded. The bytes must be
// equal to the sample, or to upstream's after_roundtrip file if fields were removed.
func TestSamples(t *testing.T) {
	directory := filepath.Join(moduleDirectory(t, "k8s.io/api"), "testdata")
	kinds := sampleKinds(t)
	if testing.Short() {
		t.Skip("takes half a minute under the race detector")
	}
	for _, release := range []string{"HEAD", "v1.36.0", "v1.35.0", "v1.34.0"} {
		tried := 0
		for _, name := range slices.Sorted(maps.Keys(kinds)) {
			for _, format := range slices.Sorted(maps.Keys(formats)) {
				file := filepath.Join(directory, release, name)
				if _, err := os.Stat(file + "." + format); err != nil {
					continue
				}
				tried++
				t.Run(release+"/"+name+"."+format, func(t *testing.T) { checkSample(t, kinds[name], file, format) })
			}
		}
		if tried < 200 {
			t.Errorf("only %d samples of %s were found", tried, release)
		}
	}
}

func checkSample(t *testing.T, kind sampled, file, format string) {
	sent, want := must[[]byte](t)(os.ReadFile(file+"."+format)), afterwards(t, file, format)
	validation := resource.Strict
	if !bytes.Equal(sent, want) {
		validation = resource.Ignore
	}
	if format == "json" {
		sent = compact(sent) // embedded objects are not reformatted
	}
	if isCompleted(file) {
		plain := want
		if want = complete(t, kind.kind, sent, format); bytes.Equal(plain, want) {
			t.Fatal("not completed by upstream either")
		}
	}
	internal, _, strict, err := kind.model.Decode(sent, formats[format].mediaType, validation)
	if err != nil || len(strict) > 0 {
		t.Fatalf("%v %v", err, strict)
	}
	expect(t, "answered", format, want, must[runtime.Object](t)(kind.model.External(internal)))
	if !kind.stored {
		return
	}
	stored := must[[]byte](t)(kind.model.Store(t.Context(), internal))
	expect(t, "read", format, want, must[runtime.Object](t)(kind.model.LoadExternal(t.Context(), stored)))
	expect(t, "loaded", format, want,
		must[runtime.Object](t)(kind.model.External(must[runtime.Object](t)(kind.model.Load(t.Context(), stored)))))
}

// afterwards returns the expected bytes after a round trip.
func afterwards(t *testing.T, file, format string) []byte {
	if changed, err := os.ReadFile(file + ".after_roundtrip." + format); err == nil {
		return changed
	}
	return must[[]byte](t)(os.ReadFile(file + "." + format))
}

// complete returns the sample after upstream's own codec.
func complete(t *testing.T, kind schema.GroupVersionKind, sent []byte, format string) []byte {
	internal := must[runtime.Object](t)(runtime.Decode(legacyscheme.Codecs.UniversalDecoder(), sent))
	encoder := legacyscheme.Codecs.EncoderForVersion(formats[format].serializer, kind.GroupVersion())
	return must[[]byte](t)(runtime.Encode(encoder, internal))
}

func expect(t *testing.T, way, format string, want []byte, object runtime.Object) {
	t.Helper()
	got := must[[]byte](t)(runtime.Encode(formats[format].serializer, object))
	if bytes.Equal(got, want) {
		return
	}
	if format == "pb" {
		t.Errorf("%s: %d bytes instead of %d, or others", way, len(got), len(want))
		return
	}
	t.Errorf("%s (-want +got):\n%s", way, cmp.Diff(strings.Split(string(want), "\n"), strings.Split(string(got), "\n")))
}

func compact(raw []byte) []byte {
	var compacted bytes.Buffer
	if json.Compact(&compacted, raw) != nil {
		return raw
	}
	return compacted.Bytes()
}

// decode decodes a valid body.
func decode(t *testing.T, model resource.Codec, body []byte, mediaType string) runtime.Object {
	t.Helper()
	internal, _, strict, err := model.Decode(body, mediaType, resource.Strict)
	if err != nil || len(strict) > 0 {
		t.Fatalf("%s: %v %v", mediaType, err, strict)
	}
	return internal
}
