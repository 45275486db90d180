// Package definition turns short descriptions of built-in kinds into resource definitions.
//
// A group file lists its kinds as Kind values; everything that follows from a kind's Go types and strategies
// (scope, models, field managers, table rows, field labels, deprecation) is derived here.
package definition

import (
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/endpoints/deprecation"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/printers"
	printersinternal "k8s.io/kubernetes/pkg/printers/internalversion"
	printerstorage "k8s.io/kubernetes/pkg/printers/storage"

	"quorate.dev/apiserver/codec"
	"quorate.dev/apiserver/config"
	"quorate.dev/apiserver/resource"
)

// TypeConverter makes the converter to typed values that managed fields need, on first use.
type TypeConverter func() (managedfields.TypeConverter, error)

// Builder makes definitions of the kinds of one scheme.
type Builder struct {
	scheme    *runtime.Scheme
	codecs    serializer.CodecFactory
	converter TypeConverter
	printer   func() rest.TableConvertor
	json      bool
	serves    func(schema.GroupVersionResource) bool
}

// NewBuilder returns a builder for kinds registered in scheme. Of each it makes the versions that serves approves.
func NewBuilder(scheme *runtime.Scheme, codecs serializer.CodecFactory, converter TypeConverter, serves func(schema.GroupVersionResource) bool) *Builder {
	return &Builder{
		scheme:    scheme,
		codecs:    codecs,
		converter: converter,
		serves:    serves,
		printer:   sync.OnceValue(newPrinter),
	}
}

// StoredAsJSON makes the builder's kinds be stored as JSON: those that have no protobuf form.
func (b *Builder) StoredAsJSON() *Builder {
	b.json = true
	return b
}

func newPrinter() rest.TableConvertor {
	generator := printers.NewTableGenerator().With(printersinternal.AddHandlers)
	return printerstorage.TableConvertor{TableGenerator: generator}
}

// Group makes definitions of the kinds of one API group in the given served versions, preferred first.
func (b *Builder) Group(name string, versions ...string) Group {
	return Group{builder: b, name: name, versions: versions}
}

// Codec returns the codec of a kind that is stored in the version it is served in.
func (b *Builder) Codec(kind schema.GroupVersionKind) resource.Codec {
	return b.codec(kind, kind.GroupVersion())
}

func (b *Builder) codec(kind schema.GroupVersionKind, storage schema.GroupVersion) resource.Codec {
	// The internal version is that of the storage group: events of both groups are one Go type there.
	internal := schema.GroupVersion{Group: storage.Group, Version: runtime.APIVersionInternal}
	scheme := codec.NewScheme(b.scheme, b.codecs, kind, storage, internal)
	if b.json {
		scheme.StoredAsJSON()
	}
	return scheme
}

func internalOf(kind schema.GroupVersionKind) schema.GroupVersion {
	return schema.GroupVersion{Group: kind.Group, Version: runtime.APIVersionInternal}
}

// fieldLabel translates the field selectors of a kind as its version spells them.
func (b *Builder) fieldLabel(kind schema.GroupVersionKind) func(label, value string) (string, string, error) {
	return func(label, value string) (string, string, error) {
		return b.scheme.ConvertFieldLabel(kind, label, value)
	}
}

// deprecated returns the warning that upstream gives for a kind, or "".
func (b *Builder) deprecated(kind schema.GroupVersionKind) (warning, removedIn string) {
	object, err := b.scheme.New(kind)
	release := version.MustParse(config.KubernetesMajor + "." + config.KubernetesMinor)
	if err != nil || !deprecation.IsDeprecated(object, int(release.Major()), int(release.Minor())) {
		return "", ""
	}
	object.GetObjectKind().SetGroupVersionKind(kind)
	return deprecation.WarningMessage(object), deprecation.RemovedRelease(object)
}

// fieldManager returns the field manager of an endpoint, made on first use because it needs the schema.
func (b *Builder) fieldManager(kind schema.GroupVersionKind, subresource string, strategy any) func() (*managedfields.FieldManager, error) {
	return sync.OnceValues(func() (*managedfields.FieldManager, error) {
		converter, err := b.converter()
		if err != nil {
			return nil, err
		}
		return managedfields.NewDefaultFieldManager(converter, runtime.UnsafeObjectConvertor(b.scheme),
			b.scheme, b.scheme, kind, internalOf(kind), subresource, resetFields(strategy))
	})
}

// Attributes returns the labels and selectable fields of a internal version object, as upstream's GetAttrs functions do.
type Attributes func(runtime.Object) (labels.Set, fields.Set, error)

// selectableFields drops the labels, which are read from stored bytes; without attributes only the name and
// the namespace can be selected by.
func selectableFields(attributes Attributes, namespaced bool) func(runtime.Object) (fields.Set, error) {
	if attributes == nil {
		attributes = metadataAttributes(namespaced)
	}
	return func(internal runtime.Object) (fields.Set, error) {
		_, set, err := attributes(internal)
		return set, err
	}
}

func metadataAttributes(namespaced bool) Attributes {
	return func(internal runtime.Object) (labels.Set, fields.Set, error) {
		accessor, err := meta.Accessor(internal)
		if err != nil {
			return nil, nil, err
		}
		set := fields.Set{"metadata.name": accessor.GetName()}
		if namespaced {
			set["metadata.namespace"] = accessor.GetNamespace()
		}
		return nil, set, nil
	}
}
