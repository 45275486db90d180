package builtin_test

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	clientscheme "k8s.io/client-go/kubernetes/scheme"

	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/builtin/builtintest"
	"quorate.dev/apiserver/crd"
	"quorate.dev/apiserver/registry/change"
	"quorate.dev/apiserver/resource"
)

// FuzzProtobufBodies decodes bodies of every kind as the handlers do. Nothing panics, and the size of the object is
// bounded by the size of its body: overlapping map entries could repeat the same bytes.
func FuzzProtobufBodies(f *testing.F) {
	kinds := sampleKinds(f)
	names := slices.Sorted(maps.Keys(kinds))
	directory := filepath.Join(moduleDirectory(f, "k8s.io/api"), "testdata", "HEAD")
	for i, name := range names {
		sample, err := os.ReadFile(filepath.Join(directory, name+".pb"))
		if err != nil {
			continue // kinds of other modules
		}
		var envelope runtime.Unknown
		if err := envelope.Unmarshal(sample[4:]); err != nil {
			f.Fatal(err)
		}
		f.Add(uint16(i), envelope.Raw)
	}
	f.Add(uint16(slices.Index(names, "core.v1.ConfigMap")), metadataWith(overlappingLabels(50)))
	serializer := protobuf.NewSerializer(nil, nil)
	f.Fuzz(func(t *testing.T, index uint16, message []byte) {
		kind := kinds[names[int(index)%len(names)]]
		apiVersion, name := kind.kind.ToAPIVersionAndKind()
		body, err := runtime.Encode(serializer, &runtime.Unknown{
			TypeMeta: runtime.TypeMeta{APIVersion: apiVersion, Kind: name}, Raw: message,
		})
		if err != nil {
			t.Fatal(err)
		}
		internal, _, _, err := kind.model.Decode(body, runtime.ContentTypeProtobuf, resource.Strict)
		if err != nil {
			return
		}
		external, err := kind.model.External(internal)
		if err != nil {
			return
		}
		const most = 1000 // decoded bytes per byte of body
		if size := external.(interface{ Size() int }).Size(); size > most*(len(message)+10) {
			t.Errorf("a %s of %d bytes became %d bytes", name, len(message), size)
		}
	})
}

// metadataWith returns an object with only metadata.
func metadataWith(metadata []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), metadata)
}

// overlappingLabels returns map entries whose keys each contain all following entries.
func overlappingLabels(entries int) []byte {
	var all []byte
	for range entries {
		key := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.BytesType), uint64(len(all)))
		all = slices.Concat(protowire.AppendBytes(protowire.AppendTag(nil, 11, protowire.BytesType), key), all)
	}
	return all
}

// Overlapping labels need memory quadratic in the size of the body.
func TestOverlappingLabelsAreRejected(t *testing.T) {
	for name, kind := range sampleKinds(t) {
		apiVersion, kindName := kind.kind.ToAPIVersionAndKind()
		var body bytes.Buffer
		err := protobuf.NewSerializer(nil, nil).Encode(&runtime.Unknown{
			TypeMeta: runtime.TypeMeta{APIVersion: apiVersion, Kind: kindName}, Raw: metadataWith(overlappingLabels(10)),
		}, &body)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, _, err := kind.model.Decode(body.Bytes(), runtime.ContentTypeProtobuf, resource.Warn); err == nil {
			t.Errorf("%s: was decoded", name)
		}
	}
}

// TestInvalidEmbeddedJSON: a protobuf body can contain invalid JSON. kube-apiserver panics. JSON that is nested too
// deep is rejected before the object is decoded, other invalid JSON when the object is created.
func TestInvalidEmbeddedJSON(t *testing.T) {
	s := builtintest.NewServer(t, builtin.Options{}, nil)
	name := schema.GroupResource{Group: "apps", Resource: "controllerrevisions"}
	match, _ := s.Catalog.Current().Find(name)
	serializer := protobuf.NewSerializer(clientscheme.Scheme, clientscheme.Scheme)
	for _, data := range []string{"no JSON", strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000)} {
		body, err := runtime.Encode(serializer, &appsv1.ControllerRevision{
			ObjectMeta: metav1.ObjectMeta{Name: "a"}, Data: runtime.RawExtension{Raw: []byte(data)}, Revision: 1,
		})
		if err != nil {
			t.Fatal(err)
		}
		sent, _, _, err := match.Version.Codec.Decode(body, runtime.ContentTypeProtobuf, resource.Strict)
		if tooDeep := len(data) > 20_000; tooDeep != (err != nil) {
			t.Errorf("%.10s: decode: %v", data, err)
		}
		if err != nil {
			continue
		}
		_, err = s.Call(t.Context(), resource.Key{GroupResource: name, Namespace: "default"}, sent)
		if !apierrors.IsBadRequest(err) {
			t.Errorf("%.10s: %v", data, err)
		}
	}
}

// TestDeepPatches: the validation of a schema takes time quadratic in its depth.
func TestDeepPatches(t *testing.T) {
	s := builtintest.NewServer(t, builtin.Options{}, nil)
	match, _ := s.Catalog.Current().Find(crd.Resource)
	target := resource.Target{Match: match, Endpoint: match.Version.Endpoints[""], Name: "a.example.com"}
	deep := `{"spec":` + strings.Repeat(`{"not":`, 2000) + `{}` + strings.Repeat(`}`, 2000) + `}`
	for _, kind := range []types.PatchType{types.ApplyYAMLPatchType, types.StrategicMergePatchType, types.MergePatchType} {
		patch := change.Patch{Type: kind, Data: []byte(deep), Manager: "m"}
		_, err := patch.Apply(t.Context(), target, match.Version.Codec.New())
		if !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), "nested more than") {
			t.Errorf("%s: %v", kind, err)
		}
	}
}
