// Package definition builds the resource definitions of built-in kinds from short descriptions.
//
// The package of an API group lists its kinds as Kind values. Scope, codecs, field managers, table rows, field labels
// and deprecation follow from the Go types and strategies.
package definition

import (
	"slices"
	"strings"
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
	"k8s.io/apiserver/pkg/util/compatibility"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/kubernetes/pkg/printers"
	printersinternal "k8s.io/kubernetes/pkg/printers/internalversion"
	printerstorage "k8s.io/kubernetes/pkg/printers/storage"

	"quorate.dev/apiserver/builtin/enablement"
	"quorate.dev/apiserver/codec"
	"quorate.dev/apiserver/config"
	"quorate.dev/apiserver/resource"
)

// TypeConverter returns the type converter for managed fields, which is created on first use.
type TypeConverter func() (managedfields.TypeConverter, error)

// Builder builds the definitions of the kinds of one scheme.
type Builder struct {
	scheme    *runtime.Scheme
	codecs    serializer.CodecFactory
	converter TypeConverter
	printer   func() rest.TableConvertor
	// mediaType is the media type of stored objects; empty means protobuf.
	mediaType string
	serves    func(schema.GroupVersionResource) bool
}

// NewBuilder returns a builder for the kinds of a scheme, in the versions for which serves returns true.
func NewBuilder(
	scheme *runtime.Scheme, codecs serializer.CodecFactory, converter TypeConverter,
	serves func(schema.GroupVersionResource) bool,
) *Builder {
	return &Builder{
		scheme:    scheme,
		codecs:    codecs,
		converter: converter,
		serves:    serves,
		printer:   sync.OnceValue(newPrinter),
	}
}

// StoredAs sets the media type in which the builder's kinds are stored, and returns b.
func (b *Builder) StoredAs(mediaType string) *Builder {
	b.mediaType = mediaType
	return b
}

func newPrinter() rest.TableConvertor {
	generator := printers.NewTableGenerator().With(printersinternal.AddHandlers)
	return printerstorage.TableConvertor{TableGenerator: generator}
}

// Group returns a builder for one API group with the given versions, preferred first.
func (b *Builder) Group(name string, versions ...string) Group {
	return Group{builder: b, name: name, versions: versions}
}

// Codec returns the codec of a kind that is stored in the version kind.
func (b *Builder) Codec(kind schema.GroupVersionKind) resource.Codec {
	return b.codec(kind, kind.GroupVersion())
}

func (b *Builder) codec(kind schema.GroupVersionKind, storage schema.GroupVersion) resource.Codec {
	// Events of both groups have the internal version of the group in which they are stored.
	internal := schema.GroupVersion{Group: storage.Group, Version: runtime.APIVersionInternal}
	return codec.NewScheme(b.scheme, b.codecs, kind, storage, internal).StoredAs(b.mediaType)
}

func internalOf(kind schema.GroupVersionKind) schema.GroupVersion {
	return schema.GroupVersion{Group: kind.Group, Version: runtime.APIVersionInternal}
}

// storageVersion returns the version in which a kind is stored, as upstream's emulatedStorageVersion does: the first
// version by priority that is not alpha and that the oldest Kubernetes version that must read stored objects knows;
// else the first version that the emulated Kubernetes version knows; else preferred, whose kind is not served then.
func (b *Builder) storageVersion(preferred schema.GroupVersion, kind string) schema.GroupVersion {
	effective := compatibility.DefaultComponentGlobalsRegistry.EffectiveVersionFor(basecompatibility.DefaultKubeComponent)
	versions := b.scheme.VersionsForGroupKind(schema.GroupKind{Group: preferred.Group, Kind: kind})
	versions = slices.DeleteFunc(slices.Clone(versions), func(gv schema.GroupVersion) bool {
		return gv.Version == runtime.APIVersionInternal
	})
	readable := func(gv schema.GroupVersion) bool {
		return !strings.Contains(gv.Version, "alpha") && b.known(gv.WithKind(kind), effective.MinCompatibilityVersion())
	}
	emulated := func(gv schema.GroupVersion) bool { return b.known(gv.WithKind(kind), effective.EmulationVersion()) }
	for _, suitable := range []func(schema.GroupVersion) bool{readable, emulated} {
		if i := slices.IndexFunc(versions, suitable); i >= 0 {
			return versions[i]
		}
	}
	return preferred
}

// known reports whether a Kubernetes version knows a kind.
func (b *Builder) known(kind schema.GroupVersionKind, in *version.Version) bool {
	object, err := b.scheme.New(kind)
	if err != nil {
		return false
	}
	introduced, ok := enablement.Introduced(object)
	return !ok || in.AtLeast(introduced)
}

// fieldLabel returns a function that converts the field labels of a kind to field labels of the internal version.
func (b *Builder) fieldLabel(kind schema.GroupVersionKind) func(label, value string) (string, string, error) {
	return func(label, value string) (string, string, error) {
		return b.scheme.ConvertFieldLabel(kind, label, value)
	}
}

// deprecated returns upstream's deprecation warning for a kind and the release that removes it, or empty strings if the
// kind is not deprecated.
func (b *Builder) deprecated(kind schema.GroupVersionKind) (warning, removedIn string) {
	object, err := b.scheme.New(kind)
	release := version.MustParse(config.KubernetesMajor + "." + config.KubernetesMinor)
	if err != nil || !deprecation.IsDeprecated(object, int(release.Major()), int(release.Minor())) {
		return "", ""
	}
	object.GetObjectKind().SetGroupVersionKind(kind)
	return deprecation.WarningMessage(object), deprecation.RemovedRelease(object)
}

// fieldManager returns a function that returns the field manager of an endpoint. The field manager is created on first
// use, because it needs the schema.
func (b *Builder) fieldManager(
	kind schema.GroupVersionKind, subresource string, strategy any,
) func() (*managedfields.FieldManager, error) {
	return sync.OnceValues(func() (*managedfields.FieldManager, error) {
		converter, err := b.converter()
		if err != nil {
			return nil, err
		}
		return managedfields.NewDefaultFieldManager(converter, runtime.UnsafeObjectConvertor(b.scheme),
			b.scheme, b.scheme, kind, internalOf(kind), subresource, resetFields(strategy))
	})
}

// Attributes returns the labels and the selectable fields of an object in the internal version, like upstream's
// GetAttrs functions.
type Attributes func(runtime.Object) (labels.Set, fields.Set, error)

// selectableFields returns a function that returns only the fields of attributes; labels are read from the stored
// bytes. If attributes is nil, name and namespace are selectable.
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
