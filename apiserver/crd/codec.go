package crd

import (
	"fmt"
	"net/http"

	"k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"

	"quorate.dev/apiserver/resource"
)

// customCodec is the resource.Codec of one served version. Its internal version is an unstructured object in that
// version.
type customCodec struct {
	version *version
}

var _ resource.Codec = (*customCodec)(nil)

func (m *customCodec) New() runtime.Object {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(m.version.kind)
	return object
}

func (m *customCodec) NewExternal() runtime.Object { return m.New() }

// Load decodes a stored object, coerces and defaults it with the schema of its stored version, and converts it.
func (m *customCodec) Load(stored []byte) (runtime.Object, error) {
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(stored); err != nil {
		return nil, fmt.Errorf("decode stored custom resource: %w", err)
	}
	of := m.version.of
	if _, err := of.coerce(object, coercion{repair: true}); err != nil {
		return nil, fmt.Errorf("stored custom resource: %w", err)
	}
	of.Default(object)
	if object.GroupVersionKind().GroupVersion() == m.version.kind.GroupVersion() {
		return object, nil
	}
	if err := of.convert(object, m.version.kind.GroupVersion()); err != nil {
		return nil, err
	}
	if _, err := of.coerce(object, coercion{}); err != nil {
		return nil, fmt.Errorf("converted custom resource: %w", err)
	}
	return object, nil
}

func (m *customCodec) LoadExternal(stored []byte) (runtime.Object, error) { return m.Load(stored) }

// Store encodes in the storage version, without resourceVersion.
func (m *customCodec) Store(internal runtime.Object) ([]byte, error) {
	object, ok := internal.(*unstructured.Unstructured)
	if !ok {
		return nil, fmt.Errorf("cannot store %T as a custom resource", internal)
	}
	target := schema.GroupVersion{Group: m.version.of.group, Version: m.version.of.storage}
	if object.GroupVersionKind().GroupVersion() == target {
		return runtime.Encode(unstructured.UnstructuredJSONScheme, object)
	}
	converted := object.DeepCopy()
	if err := m.version.of.convert(converted, target); err != nil {
		return nil, err
	}
	if _, err := m.version.of.coerce(converted, coercion{}); err != nil {
		return nil, fmt.Errorf("custom resource to be stored: %w", err)
	}
	return runtime.Encode(unstructured.UnstructuredJSONScheme, converted)
}

func (m *customCodec) External(internal runtime.Object) (runtime.Object, error) {
	return m.same(internal)
}

func (m *customCodec) Internal(external runtime.Object) (runtime.Object, error) {
	return m.same(external)
}

// same copies an object: internal and external form are equal.
func (m *customCodec) same(object runtime.Object) (runtime.Object, error) {
	custom, ok := object.(*unstructured.Unstructured)
	if !ok {
		return nil, fmt.Errorf("%T is not a custom resource", object)
	}
	return custom.DeepCopy(), nil
}

func (m *customCodec) Decode(body []byte, mediaType string, validation resource.FieldValidation) (runtime.Object, schema.GroupVersionKind, []error, error) {
	options := json.SerializerOptions{Strict: validation != resource.Ignore}
	switch mediaType {
	case runtime.ContentTypeJSON:
	case runtime.ContentTypeYAML:
		options.Yaml = true
	default:
		return nil, schema.GroupVersionKind{}, nil, errors.NewGenericServerResponse(http.StatusUnsupportedMediaType, "", schema.GroupResource{}, "", "the body of the request was in an unknown format - accepted media types include: application/json, application/yaml", 0, false)
	}
	object := &unstructured.Unstructured{}
	decoder := json.NewSerializerWithOptions(json.DefaultMetaFactory, nil, typer{}, options)
	_, kind, err := decoder.Decode(body, &m.version.kind, object)
	declared := schema.GroupVersionKind{}
	if kind != nil {
		declared = *kind
	}
	var strict []error
	if err != nil {
		problem, ok := runtime.AsStrictDecodingError(err)
		if !ok {
			return nil, declared, nil, err
		}
		strict = problem.Errors()
	}
	unknown, err := m.version.of.coerce(object, coercion{track: options.Strict})
	if err != nil {
		return nil, declared, nil, err
	}
	for _, path := range unknown {
		strict = append(strict, fmt.Errorf("unknown field %q", path))
	}
	m.version.of.Default(object)
	return object, declared, strict, nil
}

func (m *customCodec) DecodePatched(patched []byte, validation resource.FieldValidation) (runtime.Object, []error, error) {
	object, _, strict, err := m.Decode(patched, runtime.ContentTypeJSON, validation)
	return object, strict, err
}

func (m *customCodec) Default(external runtime.Object) { m.version.of.Default(external) }

// typer returns the kind that an unstructured object declares.
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
