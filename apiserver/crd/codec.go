package crd

import (
	"bytes"
	"context"
	stdjson "encoding/json"
	"fmt"
	"net/http"

	"k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"

	"quorate.dev/apiserver/codec"
	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/resource"
)

// customCodec is the resource.Codec of one served version of a custom resource. As its internal version, it uses
// unstructured objects in the served version, so that External and Internal only copy. It takes the place of the chain
// of codecs in crdHandler: schemaCoercingDecoder, schemaCoercingConverter, unstructuredDefaulter. All methods are safe
// for concurrent use.
type customCodec struct {
	version *version
}

var _ resource.Codec = (*customCodec)(nil)

// New implements resource.Codec. Unlike an empty object of a Go type, the object declares its kind, by which upstream's
// code recognizes it.
func (m *customCodec) New() runtime.Object {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(m.version.kind)
	return object
}

// NewExternal implements resource.Codec.
func (m *customCodec) NewExternal() runtime.Object { return m.New() }

// Load decodes a stored object, coerces and defaults it with the schema of its stored version, and converts it. The
// converted object is pruned with the schema of the requested version, but gets no defaults of that version, as in
// apiextensions-apiserver.
func (m *customCodec) Load(ctx context.Context, stored []byte) (runtime.Object, error) {
	object, err := m.decodeStored(stored)
	if err != nil || object.GroupVersionKind().GroupVersion() == m.version.kind.GroupVersion() {
		return object, err
	}
	of := m.version.of
	if object, err = of.convert(ctx, object, m.version.kind.GroupVersion()); err != nil {
		return nil, err
	}
	if err := of.coerceConverted(object); err != nil {
		return nil, err
	}
	return object, nil
}

// decodeStored returns the object in the version that it is stored in, with defaults. It repairs metadata that a former
// release would not have validated: a stored object must remain readable, or else it could not even be deleted.
func (m *customCodec) decodeStored(stored []byte) (*unstructured.Unstructured, error) {
	object, err := parseStored(stored)
	if err != nil {
		return nil, fmt.Errorf("decode stored custom resource: %w", err)
	}
	of := m.version.of
	if _, err := of.coerce(object, coercion{repair: true}); err != nil {
		return nil, fmt.Errorf("stored custom resource: %w", err)
	}
	if !of.setDefaults(object, maxAddedToStored) {
		return nil, fmt.Errorf("stored custom resource: its defaults are larger than %d bytes", maxAddedToStored)
	}
	return object, nil
}

// parseStored decodes JSON or CBOR, whatever the feature gate CBORServingAndStorage is: as in kube-apiserver, objects
// that were stored while it was enabled remain readable, and so do objects that were stored before.
func parseStored(stored []byte) (*unstructured.Unstructured, error) {
	object := &unstructured.Unstructured{}
	if codec.IsCBOR(stored) {
		_, _, err := cbor.NewSerializer(nil, nil).Decode(stored, nil, object)
		return object, err
	}
	return object, object.UnmarshalJSON(stored)
}

// LoadExternal implements resource.Codec. The internal version is the served one.
func (m *customCodec) LoadExternal(ctx context.Context, stored []byte) (runtime.Object, error) {
	return m.Load(ctx, stored)
}

// LoadAll implements resource.Codec. It calls the webhook once for each stored version instead of once for each object.
// The result ends before the first object that cannot be loaded.
func (m *customCodec) LoadAll(ctx context.Context, stored [][]byte) ([]runtime.Object, error) {
	loading := &loading{
		of: m.version.of, to: m.version.kind.GroupVersion(), objects: make([]*unstructured.Unstructured, len(stored)),
	}
	for i, data := range stored {
		object, err := m.decodeStored(data)
		if err != nil {
			loading.fail(i, err)
			break
		}
		loading.objects[i] = object
	}
	loading.convert(ctx)
	objects := make([]runtime.Object, 0, len(stored))
	for _, object := range loading.objects {
		if object == nil {
			break
		}
		objects = append(objects, object)
	}
	return objects, loading.err
}

// Remote implements resource.Codec. It is called for each entry of a list, and therefore reads only apiVersion.
func (m *customCodec) Remote(stored []byte) bool {
	return m.version.of.webhook != nil && !m.isStoredAs(stored)
}

// isStoredAs reports whether stored bytes are an object of this version. In JSON, encoders write apiVersion first, so
// that the field need not be searched. In CBOR, whose encoder sorts keys by their length, apiVersion is usually the
// last field, and the values before it are skipped without being decoded. Malformed bytes are of no version; decoding
// them reports the error.
func (m *customCodec) isStoredAs(stored []byte) bool {
	if codec.IsCBOR(stored) {
		version, err := codec.CBORAPIVersion(stored)
		return err == nil && version == m.version.apiVersion
	}
	const start = `{"apiVersion":"`
	if rest, ok := bytes.CutPrefix(stored, []byte(start)); ok {
		if end := bytes.IndexByte(rest, '"'); end >= 0 {
			return string(rest[:end]) == m.version.apiVersion
		}
	}
	var object map[string]stdjson.RawMessage // a map, because field names of a struct would match in any case
	var version string
	return stdjson.Unmarshal(stored, &object) == nil && stdjson.Unmarshal(object["apiVersion"], &version) == nil &&
		version == m.version.apiVersion
}

// Store encodes an object in the storage version. The caller has removed the resourceVersion. If the object is in
// another version, it is converted, by the webhook if there is one, and pruned with the schema of the storage version.
// The object itself does not change.
func (m *customCodec) Store(ctx context.Context, internal runtime.Object) ([]byte, error) {
	object, ok := internal.(*unstructured.Unstructured)
	if !ok {
		return nil, fmt.Errorf("cannot store %T as a custom resource", internal)
	}
	target := schema.GroupVersion{Group: m.version.of.group, Version: m.version.of.storage}
	if object.GroupVersionKind().GroupVersion() == target {
		return encodeStored(object)
	}
	converted, err := m.version.of.convert(ctx, object.DeepCopy(), target)
	if err != nil {
		return nil, err
	}
	if err := m.version.of.coerceConverted(converted); err != nil {
		return nil, err
	}
	return encodeStored(converted)
}

// encodeStored encodes an object that is in the storage version, as CBOR if the feature gate is enabled. It returns an
// error if the result is too large.
func encodeStored(object *unstructured.Unstructured) ([]byte, error) {
	var encoder runtime.Encoder = unstructured.UnstructuredJSONScheme
	if request.ServesCBOR() {
		encoder = cbor.NewSerializer(nil, nil)
	}
	data, err := runtime.Encode(encoder, object)
	if err == nil && len(data) > maxObject {
		return nil, errTooLarge()
	}
	return data, err
}

// External implements resource.Codec.
func (m *customCodec) External(internal runtime.Object) (runtime.Object, error) {
	return m.same(internal)
}

// Internal implements resource.Codec.
func (m *customCodec) Internal(external runtime.Object) (runtime.Object, error) {
	return m.same(external)
}

// same returns a copy of an object, because the internal version and the served version are equal.
func (m *customCodec) same(object runtime.Object) (runtime.Object, error) {
	custom, ok := object.(*unstructured.Unstructured)
	if !ok {
		return nil, fmt.Errorf("%T is not a custom resource", object)
	}
	return custom.DeepCopy(), nil
}

// Decode implements resource.Codec. Errors of strict decoding are returned separately, for warnings or a rejection: the
// duplicate fields that the decoder has found, and the unknown fields that coerce has dropped. The kind that the body
// declares is returned even with an error, because the caller's message names it.
func (m *customCodec) Decode(
	body []byte, mediaType string, validation resource.FieldValidation,
) (runtime.Object, schema.GroupVersionKind, []error, error) {
	strict := validation != resource.Ignore
	decoder, err := decoderFor(mediaType, strict)
	if err != nil {
		return nil, schema.GroupVersionKind{}, nil, err
	}
	object := &unstructured.Unstructured{}
	_, kind, err := decoder.Decode(body, &m.version.kind, object)
	declared := schema.GroupVersionKind{}
	if kind != nil {
		declared = *kind
	}
	var problems []error
	if err != nil {
		problem, ok := runtime.AsStrictDecodingError(err)
		if !ok {
			return nil, declared, nil, err
		}
		problems = problem.Errors()
	}
	// kube-apiserver drops unknown fields of CBOR without a warning or an error.
	unknown, err := m.version.of.coerce(object, coercion{track: strict && mediaType != runtime.ContentTypeCBOR})
	if err != nil {
		return nil, declared, nil, err
	}
	for _, path := range unknown {
		problems = append(problems, fmt.Errorf("unknown field %q", path))
	}
	if !m.version.of.setDefaults(object, maxAdded) {
		return nil, declared, nil, errTooLarge()
	}
	return object, declared, problems, nil
}

// decoderFor returns the decoder of bodies in a media type.
func decoderFor(mediaType string, strict bool) (runtime.Decoder, error) {
	options := json.SerializerOptions{Strict: strict}
	switch mediaType {
	case runtime.ContentTypeCBOR:
		return cbor.NewSerializer(nil, typer{}, cbor.Strict(strict)), nil
	case runtime.ContentTypeJSON:
	case runtime.ContentTypeYAML:
		options.Yaml = true
	default:
		return nil, errors.NewGenericServerResponse(http.StatusUnsupportedMediaType, "", schema.GroupResource{}, "",
			"the body of the request was in an unknown format - accepted media types include: "+
				"application/json, application/yaml", 0, false)
	}
	return json.NewSerializerWithOptions(json.DefaultMetaFactory, nil, typer{}, options), nil
}

// DecodePatched implements resource.Codec.
func (m *customCodec) DecodePatched(
	patched []byte, validation resource.FieldValidation,
) (runtime.Object, []error, error) {
	object, _, strict, err := m.Decode(patched, runtime.ContentTypeJSON, validation)
	return object, strict, err
}

// Default implements resource.Codec.
func (m *customCodec) Default(external runtime.Object) { m.version.of.Default(external) }

// typer returns the kind that an unstructured object declares, whether the kind exists or not: validation compares it
// with the kind of the endpoint. It mirrors UnstructuredObjectTyper.
type typer struct{}

func (typer) ObjectKinds(object runtime.Object) ([]schema.GroupVersionKind, bool, error) {
	kind := object.GetObjectKind().GroupVersionKind()
	if kind.Kind == "" {
		return nil, false, runtime.NewMissingKindErr("object has no kind field ")
	}
	if kind.Version == "" {
		return nil, false, runtime.NewMissingVersionErr("object has no apiVersion field")
	}
	return []schema.GroupVersionKind{kind}, false, nil
}

func (typer) Recognizes(schema.GroupVersionKind) bool { return true }
