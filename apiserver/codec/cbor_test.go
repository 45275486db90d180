package codec

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
)

// upstreamCBOR encodes an object as upstream's serializer does.
func upstreamCBOR(t *testing.T, object runtime.Object) []byte {
	t.Helper()
	data, err := runtime.Encode(cbor.NewSerializer(clientscheme.Scheme, clientscheme.Scheme), object)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// jsonToCBOR converts JSON to self-described CBOR.
func jsonToCBOR(t testing.TB, text string) []byte {
	t.Helper()
	var value any
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		t.Fatal(err)
	}
	item, err := direct.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return slices.Concat(cborMagic, item)
}

// equalCBOR reports whether two CBOR values are equal except for the order of their keys.
func equalCBOR(t *testing.T, a, b []byte) bool {
	t.Helper()
	var first, second any
	if err := errors.Join(direct.Unmarshal(a, &first), direct.Unmarshal(b, &second)); err != nil {
		t.Fatalf("%x, %x: %v", a, b, err)
	}
	return reflect.DeepEqual(first, second)
}

// labelled returns a ConfigMap with many fields, so that the head of its map grows when a kind is added to it.
func labelled() *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "u", Labels: map[string]string{"x": "y"}},
		Data:       map[string]string{"k": "v"}, BinaryData: map[string][]byte{"b": {0, 1, 255}},
	}
}

// TestCBORResponses compares objects, lists and watch events with upstream's.
func TestCBORResponses(t *testing.T) {
	t.Parallel()
	kind := corev1.SchemeGroupVersion.WithKind("ConfigMap")
	object := labelled()
	item, err := Item(CBOR, object.DeepCopy())
	if err != nil {
		t.Fatal(err)
	}
	object.SetGroupVersionKind(kind)
	if got, want := AppendCBOR(nil, kind, false, item), upstreamCBOR(t, object); !IsCBOR(got) || !equalCBOR(t, got, want) {
		t.Errorf("got %x, want %x", got, want)
	}
	event := &metav1.WatchEvent{Type: "ADDED", Object: runtime.RawExtension{Raw: upstreamCBOR(t, object)}}
	frame := WatchFrame(CBOR, "ADDED", kind, false, item)
	var decoded metav1.WatchEvent
	if err := direct.Unmarshal(frame, &decoded); err != nil || !IsCBOR(frame) || decoded.Type != event.Type ||
		!equalCBOR(t, decoded.Object.Raw, event.Object.Raw) {
		t.Errorf("got %x: %v", frame, err)
	}
}

// TestCBORLists compares lists with upstream's, without items and with many.
func TestCBORLists(t *testing.T) {
	t.Parallel()
	meta := metav1.ListMeta{ResourceVersion: "7", Continue: "next"}
	for _, count := range []int{0, 1, 23, 24, 300} {
		list := &corev1.ConfigMapList{ListMeta: meta, Items: []corev1.ConfigMap{}}
		items := []Encoding{}
		for range count {
			list.Items = append(list.Items, *labelled())
			items = append(items, Whole(itemOf(t, CBOR, labelled())))
		}
		kind := corev1.SchemeGroupVersion.WithKind("ConfigMapList")
		list.SetGroupVersionKind(kind)
		body, err := NewListBody(CBOR, kind, meta, nil, items)
		if err != nil {
			t.Fatal(err)
		}
		checkCBORList(t, body, upstreamCBOR(t, list))
	}
	kind := metav1.SchemeGroupVersion.WithKind("PartialObjectMetadataList")
	list := &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: kind.Kind}}
	body, err := NewListBody(CBOR, kind, metav1.ListMeta{}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	checkCBORList(t, body, upstreamCBOR(t, list))
}

func checkCBORList(t *testing.T, body *ListBody, want []byte) {
	t.Helper()
	got := body.AppendHead(nil)
	for i := range body.Len() {
		got = body.AppendItem(got, i)
	}
	if got = body.AppendTail(got); !IsCBOR(got) || !equalCBOR(t, got, want) {
		t.Errorf("got %x, want %x", got, want)
	}
	if size := body.Size(); size < len(got) || size > len(got)+body.Len() {
		t.Errorf("the size of %d bytes is estimated as %d", len(got), size)
	}
}

// TestCBORItemKinds checks that the items of a list name their kind, also if the head of their map becomes longer.
func TestCBORItemKinds(t *testing.T) {
	t.Parallel()
	kind := metav1.SchemeGroupVersion.WithKind("PartialObjectMetadata")
	for _, entries := range []int{0, 1, 21, 22, 23, 24, 254, 255, 300} {
		content := map[string]any{}
		for i := range entries {
			content[strings.Repeat("x", i+1)] = int64(i)
		}
		item, err := direct.Marshal(content)
		if err != nil {
			t.Fatal(err)
		}
		body, err := NewListBody(CBOR, kind, metav1.ListMeta{}, &kind, []Encoding{Whole(item)})
		if err != nil {
			t.Fatal(err)
		}
		var got map[string]any
		encoded := body.AppendItem(nil, 0)
		want := maps.Clone(content)
		want["kind"], want["apiVersion"] = "PartialObjectMetadata", "meta.k8s.io/v1"
		if err := direct.Unmarshal(encoded, &got); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%d entries: got %v, %v", entries, got, err)
		}
		if size := body.Size(); size < len(body.AppendHead(nil))+len(encoded) {
			t.Errorf("%d entries: the size is estimated as %d", entries, size)
		}
	}
}

// TestUntypedCBORList compares a list of custom resources with upstream's.
func TestUntypedCBORList(t *testing.T) {
	t.Parallel()
	object := unstructured.Unstructured{Object: map[string]any{"apiVersion": "g/v1", "kind": "X", "spec": map[string]any{
		"integer": int64(3), "float": 2.5, "null": nil, "list": []any{"a", true}, "empty": map[string]any{},
	}}}
	kind := schema.GroupVersionKind{Group: "g", Version: "v1", Kind: "XList"}
	list := &unstructured.UnstructuredList{Object: map[string]any{
		"apiVersion": "g/v1", "kind": "XList", "metadata": map[string]any{"resourceVersion": "3", "continue": ""},
	}, Items: []unstructured.Unstructured{object}}
	body, err := NewUntypedListBody(CBOR, kind, metav1.ListMeta{ResourceVersion: "3"},
		[]Encoding{Whole(itemOf(t, CBOR, &object))})
	if err != nil {
		t.Fatal(err)
	}
	checkCBORList(t, body, upstreamCBOR(t, list))
	want := upstreamCBOR(t, &object)
	if got := AppendCBOR(nil, kind, true, itemOf(t, CBOR, &object)); !bytes.Equal(got, want) {
		t.Errorf("got %x, want %x", got, want)
	}
}

// TestCBORAttributes reads labels, UID and apiVersion of stored CBOR, also of CBOR that upstream's encoder does not
// write: with indefinite lengths and text strings.
func TestCBORAttributes(t *testing.T) {
	t.Parallel()
	magic := string(cborMagic)
	for name, test := range map[string]struct {
		stored          string
		labels          map[string]string
		uid, apiVersion string
		malformed       bool
	}{
		"complete": {
			magic + "\xa3\x4aapiVersion\x44g/v1\x44kind\x41X\x48metadata\xa2\x43uid\x41u\x46labels\xa1\x41a\x41b",
			map[string]string{"a": "b"}, "u", "g/v1", false,
		},
		"text strings": {
			magic + "\xa1\x68metadata\xa1\x66labels\xa1\x61a\x61b", map[string]string{"a": "b"}, "", "", false,
		},
		"indefinite": {
			magic + "\xbf\x48metadata\xbf\x46labels\xbf\x41a\x41b\xff\x43uid\x41u\xff\xff",
			map[string]string{"a": "b"}, "u", "", false,
		},
		"null":             {magic + "\xa1\x48metadata\xf6", nil, "", "", false},
		"null labels":      {magic + "\xa1\x48metadata\xa1\x46labels\xf6", nil, "", "", false},
		"without metadata": {magic + "\xa0", nil, "", "", false},
		"no map":           {magic + "\x00", nil, "", "", true},
		"nothing":          {magic, nil, "", "", true},
		"metadata no map":  {magic + "\xa1\x48metadata\x00", nil, "", "", true},
		"incomplete":       {magic + "\xa2\x41x", nil, "", "", true},
		"long string":      {magic + "\xa1\x5b\xff\xff\xff\xff\xff\xff\xff\xff", nil, "", "", true},
		"long array":       {magic + "\xa1\x41a\x9b\xff\xff\xff\xff\xff\xff\xff\xff", nil, "", "", true},
	} {
		labels, err := Labels([]byte(test.stored))
		if (err != nil) != test.malformed || !maps.Equal(labels, test.labels) {
			t.Errorf("%s: got the labels %v, %v", name, labels, err)
		}
		if uid, err := UID([]byte(test.stored)); (err != nil) != test.malformed || uid != test.uid {
			t.Errorf("%s: got the UID %q, %v", name, uid, err)
		}
		version, err := CBORAPIVersion([]byte(test.stored))
		if name != "metadata no map" && (err != nil) != test.malformed || version != test.apiVersion {
			t.Errorf("%s: got the version %q, %v", name, version, err)
		}
	}
}

// TestCBORGuard checks that the limits of JSON bodies also apply to CBOR bodies.
func TestCBORGuard(t *testing.T) {
	t.Parallel()
	guard := NewGuard(clientscheme.Scheme)
	pods := corev1.SchemeGroupVersion.WithKind("Pod")
	quantity := func(text string) []byte {
		return jsonToCBOR(t, `{"spec":{"containers":[{"resources":{"limits":{"cpu":`+text+`}}}]}}`)
	}
	for name, test := range map[string]struct {
		body []byte
		want error
	}{
		"empty":             {nil, nil},
		"small":             {quantity(`"1"`), nil},
		"float":             {quantity(`1.5`), nil},
		"nested":            {slices.Concat(cborMagic, bytes.Repeat([]byte{0x81}, maxEmbeddedNesting+1)), errEmbedded},
		"nested indefinite": {bytes.Repeat([]byte{0x9f}, maxEmbeddedNesting+1), errEmbedded},
		"nested tags":       {bytes.Repeat([]byte{0xc1}, maxEmbeddedNesting+1), errEmbedded},
		"many maps": {
			append(appendCBORHead(nil, cborArray, maxValues+1), bytes.Repeat([]byte{0xa0}, maxValues+1)...), errValues,
		},
		"many nulls":    {append([]byte{0x9f}, bytes.Repeat([]byte{cborNull}, maxValues+1)...), errValues},
		"long quantity": {quantity(`"1e99999"`), errQuantity},
		"long digits":   {quantity(`"` + strings.Repeat("1", MaxQuantityDigits+1) + `"`), errQuantity},
		"malformed":     {[]byte{0xa1, 0xfb}, nil},
	} {
		if err := guard.Check(test.body, runtime.ContentTypeCBOR, pods); !errors.Is(err, test.want) {
			t.Errorf("%s: got the error %v", name, err)
		}
	}
}

// FuzzCBOR reads labels, UID and apiVersion from stored CBOR, and compares each with the field of the decoded object.
// It also checks that no decoded body is deeper, or has more maps and nulls, than cborCost has computed.
func FuzzCBOR(f *testing.F) {
	object, err := json.Marshal(labelled())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(jsonToCBOR(f, string(object))[len(cborMagic):])
	f.Add([]byte("\xbf\x48metadata\xbf\x46labels\xbf\x41a\x41b\xff\x43uid\x41u\xff\xff"))
	f.Add([]byte("\xa1\x48metadata\xa1\x46labels\xf6"))
	f.Add([]byte("\xc1\x5f\x41a\x41b\xff"))
	f.Add([]byte("\xa1\x48metadata\xa1\x46labels\xa1\x41a\xc1\x18b")) // a time is a string
	f.Fuzz(func(t *testing.T, data []byte) {
		stored := slices.Concat(cborMagic, data)
		labels, err := Labels(stored)
		costs := cborCost(stored)
		var decoded map[string]any
		if direct.Unmarshal(stored, &decoded) != nil {
			return // the scanner need not notice
		}
		if depth, values := measure(decoded); costs.depth < depth || costs.values < values {
			t.Errorf("%x has %d levels and %d values, counted %+v", stored, depth, values, costs)
		}
		want, found, problem := unstructured.NestedStringMap(decoded, "metadata", "labels")
		if found && problem == nil && (err != nil || !maps.Equal(labels, want)) {
			t.Errorf("%x has the labels %v, got %v, %v", stored, want, labels, err)
		}
	})
}

// measure returns the number of nested levels of a value, and the number of its objects and nulls.
func measure(value any) (depth, values int) {
	var inner []any
	switch v := value.(type) {
	case nil:
		return 0, 1
	case map[string]any:
		inner, values = slices.Collect(maps.Values(v)), 1
	case []any:
		inner = v
	default:
		return 0, 0
	}
	for _, child := range inner {
		levels, within := measure(child)
		depth, values = max(depth, levels), values+within
	}
	return depth + 1, values
}
