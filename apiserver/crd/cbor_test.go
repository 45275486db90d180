package crd_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"

	"quorate.dev/apiserver/codec"
	"quorate.dev/apiserver/resource"
)

func serveCBOR(t *testing.T, on bool) {
	t.Helper()
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.CBORServingAndStorage, on)
}

// TestStoredAsCBOR stores an object as JSON and as CBOR. Both are readable whatever the feature gate is.
func TestStoredAsCBOR(t *testing.T) {
	v := withSchema(t, `{"type":"object","properties":{"size":{"type":"integer"},"weight":{"type":"number"}}}`)
	object, _, _, err := v.Codec.Decode([]byte(head+`{"size":3,"weight":1.5}}`), "application/json", resource.Strict)
	if err != nil {
		t.Fatal(err)
	}
	object.(*unstructured.Unstructured).SetGeneration(1) // which objects of former releases may lack
	for _, storesCBOR := range []bool{false, true} {
		serveCBOR(t, storesCBOR)
		stored, err := v.Codec.Store(t.Context(), object)
		if err != nil || codec.IsCBOR(stored) != storesCBOR {
			t.Fatalf("CBOR %t: stored %q, %v", storesCBOR, stored, err)
		}
		for _, readsCBOR := range []bool{false, true} {
			serveCBOR(t, readsCBOR)
			loaded, err := v.Codec.Load(t.Context(), stored)
			if difference := cmp.Diff(object, loaded); err != nil || difference != "" {
				t.Errorf("CBOR %t, then %t: %v, (-want +got)\n%s", storesCBOR, readsCBOR, err, difference)
			}
			if v.Codec.Remote(stored) {
				t.Errorf("CBOR %t, then %t: a webhook converts the object", storesCBOR, readsCBOR)
			}
		}
	}
	for _, broken := range []string{"\xd9\xd9\xf7", "\xd9\xd9\xf7\xa0", "\xd9\xd9\xf7\x00", "\xd9\xd9\xf7\xa1\x44kind"} {
		if loaded, err := v.Codec.Load(t.Context(), []byte(broken)); err == nil {
			t.Errorf("%x is read as %v", broken, loaded)
		}
	}
}

// TestDecodeCBOR decodes request bodies. As in kube-apiserver, unknown fields are dropped without a warning.
func TestDecodeCBOR(t *testing.T) {
	v := withSchema(t, `{"type":"object","properties":{"size":{"type":"integer"}}}`)
	body := func(content map[string]any) []byte {
		encoded, err := direct.Marshal(content)
		if err != nil {
			t.Fatal(err)
		}
		return encoded
	}
	valid := map[string]any{
		"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": "a"},
		"spec": map[string]any{"size": int64(3), "nonsense": true},
	}
	object, kind, strict, err := v.Codec.Decode(body(valid), "application/cbor", resource.Strict)
	if err != nil || len(strict) > 0 || kind.Kind != "Widget" {
		t.Fatalf("got %v %v, %v", kind, strict, err)
	}
	if got := specOf(t, object); got != `{"size":3}` {
		t.Errorf("got %s", got)
	}
	for name, test := range map[string]struct {
		body []byte
		is   func(error) bool
	}{
		"no kind":         {body(map[string]any{"apiVersion": "example.com/v1"}), runtime.IsMissingKind},
		"no version":      {body(map[string]any{"kind": "Widget"}), runtime.IsMissingVersion},
		"incomplete":      {[]byte{0xa1}, isError},
		"duplicate key":   {[]byte("\xa2\x44kind\x41a\x44kind\x41a"), isError},
		"no map":          {[]byte{0x00}, isError},
		"NaN":             {append([]byte("\xa1\x44spec"), 0xf9, 0x7e, 0x00), isError},
		"two items":       {append(body(valid), 0), isError},
		"invalid unicode": {[]byte("\xa1\x44kind\x61\xff"), isError},
	} {
		if object, _, _, err := v.Codec.Decode(test.body, "application/cbor", resource.Ignore); !test.is(err) {
			t.Errorf("%s: got %v, %v", name, object, err)
		}
	}
}

func isError(err error) bool { return err != nil && !errors.Is(err, errors.ErrUnsupported) }
