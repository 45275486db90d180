// Package codec converts between objects and bytes: Scheme decodes stored objects and request bodies, Guard rejects
// bodies that are too expensive to decode, Item, ListBody and WatchFrame encode responses, and Labels reads the labels
// of stored objects without decoding them.
package codec

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"

	"quorate.dev/apiserver/resource"
)

// Scheme is the resource.Codec of a kind whose Go types are registered in a runtime.Scheme.
type Scheme struct {
	scheme    *runtime.Scheme
	convertor runtime.ObjectConvertor
	codecs    serializer.CodecFactory
	served    schema.GroupVersionKind
	internal  schema.GroupVersionKind
	storage   schema.GroupVersion
	stores    runtime.Encoder // json, yaml or protobuf
	json      runtime.Serializer
	yaml      runtime.Serializer
	protobuf  runtime.Serializer
	guard     *Guard
}

var (
	_ resource.Codec       = &Scheme{}
	_ resource.BodyChecker = &Scheme{}
)

// NewScheme returns the codec of a kind that is served as served, converted to version internal for strategies, and
// stored in version storage as protobuf.
func NewScheme(
	scheme *runtime.Scheme, codecs serializer.CodecFactory, served schema.GroupVersionKind,
	storage, internal schema.GroupVersion,
) *Scheme {
	m := &Scheme{
		scheme:    scheme,
		convertor: runtime.UnsafeObjectConvertor(scheme),
		codecs:    codecs,
		served:    served,
		internal:  internal.WithKind(served.Kind),
		storage:   storage,
		json:      json.NewSerializerWithOptions(storedKind{}, scheme, scheme, json.SerializerOptions{}),
		yaml:      json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, json.SerializerOptions{Yaml: true}),
		protobuf:  protobuf.NewSerializer(scheme, scheme),
		guard:     NewGuard(scheme),
	}
	m.stores = m.protobuf
	return m
}

// StoredAs sets the media type in which the codec stores objects, JSON, YAML or protobuf, and returns the codec. It
// reads all of these media types.
func (m *Scheme) StoredAs(mediaType string) *Scheme {
	switch mediaType {
	case runtime.ContentTypeJSON:
		m.stores = m.json
	case runtime.ContentTypeYAML:
		m.stores = m.yaml
	case runtime.ContentTypeProtobuf:
		m.stores = m.protobuf
	}
	return m
}

// New implements resource.Codec.
func (m *Scheme) New() runtime.Object { return m.mustNew(m.internal) }

// NewExternal implements resource.Codec.
func (m *Scheme) NewExternal() runtime.Object { return m.mustNew(m.served) }

// mustNew panics for a kind that is not registered, which is a programming error.
func (m *Scheme) mustNew(kind schema.GroupVersionKind) runtime.Object {
	object, err := m.scheme.New(kind)
	if err != nil {
		panic(err)
	}
	return object
}

// Load implements resource.Codec.
func (m *Scheme) Load(_ context.Context, stored []byte) (runtime.Object, error) {
	external, err := m.decodeStored(stored)
	if err != nil {
		return nil, err
	}
	return m.Internal(external)
}

// LoadExternal implements resource.Codec. It converts even objects that are stored in the served version, as
// kube-apiserver does: the conversions of some kinds change what an earlier release may have stored, such as the
// stringData of a Secret.
func (m *Scheme) LoadExternal(ctx context.Context, stored []byte) (runtime.Object, error) {
	internal, err := m.Load(ctx, stored)
	if err != nil {
		return nil, err
	}
	return m.External(internal)
}

// LoadAll implements resource.Codec.
func (m *Scheme) LoadAll(ctx context.Context, stored [][]byte) ([]runtime.Object, error) {
	objects := make([]runtime.Object, 0, len(stored))
	for _, data := range stored {
		object, err := m.LoadExternal(ctx, data)
		if err != nil {
			return objects, err
		}
		objects = append(objects, object)
	}
	return objects, nil
}

// Remote implements resource.Codec.
func (m *Scheme) Remote([]byte) bool { return false }

// decodeStored returns the object in the version it was stored in, with defaults and its kind set.
func (m *Scheme) decodeStored(stored []byte) (runtime.Object, error) {
	decoder := m.json
	switch {
	case IsProtobuf(stored):
		decoder = m.protobuf
	case isYAML(stored):
		decoder = m.yaml
	}
	external, kind, err := decoder.Decode(stored, nil, nil)
	if err != nil {
		if _, malformed := (json.SimpleMetaFactory{}).Interpret(stored); malformed != nil && !IsProtobuf(stored) {
			err = malformed // upstream's error, which storedKind does not notice
		}
		return nil, fmt.Errorf("decode a stored %s: %w", m.served.Kind, err)
	}
	m.scheme.Default(external)
	external.GetObjectKind().SetGroupVersionKind(*kind)
	return external, nil
}

// Store implements resource.Codec.
func (m *Scheme) Store(_ context.Context, internal runtime.Object) ([]byte, error) {
	external, err := m.convertor.ConvertToVersion(internal, m.storage)
	if err != nil {
		return nil, err
	}
	return runtime.Encode(m.stores, external)
}

// External implements resource.Codec.
func (m *Scheme) External(internal runtime.Object) (runtime.Object, error) {
	return m.convertor.ConvertToVersion(internal, m.served.GroupVersion())
}

// Internal implements resource.Codec. The internal version may be in another group than the object: events are served
// in two groups and have the internal version of the core group.
func (m *Scheme) Internal(external runtime.Object) (runtime.Object, error) {
	internal := m.New()
	if err := m.convertor.Convert(external, internal, nil); err != nil {
		return nil, err
	}
	internal.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	return internal, nil
}

// Default implements resource.Codec.
func (m *Scheme) Default(external runtime.Object) { m.scheme.Default(external) }

// CheckBody implements resource.BodyChecker.
func (m *Scheme) CheckBody(body []byte, mediaType string) error {
	return m.guard.Check(body, mediaType, m.served)
}

// Decode implements resource.Codec.
func (m *Scheme) Decode(
	body []byte, mediaType string, validation resource.FieldValidation,
) (runtime.Object, schema.GroupVersionKind, []error, error) {
	info, ok := m.serializerFor(mediaType)
	if !ok {
		return nil, schema.GroupVersionKind{}, nil, fmt.Errorf("media type %q has no decoder", mediaType)
	}
	if err := m.CheckBody(body, mediaType); err != nil {
		return nil, m.served, nil, err
	}
	decoder := info.Serializer
	if validation != resource.Ignore && info.StrictSerializer != nil {
		decoder = info.StrictSerializer
	}
	served := m.served
	external, kind, err := decoder.Decode(body, &served, nil)
	if kind == nil {
		kind = &schema.GroupVersionKind{}
	}
	strict, err := splitStrict(err)
	if err != nil {
		return nil, *kind, nil, err
	}
	internal, err := m.toInternal(external)
	return internal, *kind, strict, err
}

// serializerFor returns the serializers of a media type. It returns the serializers of CBOR also if the feature gate is
// disabled, because handlers refuse the media type then.
func (m *Scheme) serializerFor(mediaType string) (runtime.SerializerInfo, bool) {
	if mediaType == runtime.ContentTypeCBOR {
		return cbor.NewSerializerInfo(m.scheme, m.scheme), true
	}
	return runtime.SerializerInfoForMediaType(m.codecs.SupportedMediaTypes(), mediaType)
}

// toInternal applies defaults and converts. It fails for an object of another kind.
func (m *Scheme) toInternal(external runtime.Object) (runtime.Object, error) {
	m.scheme.Default(external)
	return m.Internal(external)
}

// DecodePatched implements resource.Codec.
func (m *Scheme) DecodePatched(patched []byte, validation resource.FieldValidation) (runtime.Object, []error, error) {
	internal, _, strict, err := m.Decode(patched, runtime.ContentTypeJSON, validation)
	return internal, strict, err
}

// splitStrict separates errors about unknown and duplicate fields from other errors. With the former, the object is
// decoded completely.
func splitStrict(err error) (strict []error, fatal error) {
	if err == nil {
		return nil, nil
	}
	if strictErr, ok := runtime.AsStrictDecodingError(err); ok {
		return strictErr.Errors(), nil
	}
	return nil, err
}
