// Package crd turns CustomResourceDefinitions into resource definitions: it sets their conditions, builds codecs and
// strategies of custom resources, and publishes the served set.
//
// Path of a definition: Controller.observe converts the object into a record and queues it; work writes its conditions,
// which depend only on stored state; once its names are accepted, publish adds its definition to the catalog, but only
// the stored condition Established adds its served versions. Deletion runs through finalize.
//
// Path of an object: codec.go decodes into unstructured objects; coerce.go prunes and types metadata; version.go
// compiles structural schema, validators, CEL rules and type converters on the first request that needs them and drops
// them when idle, so that definitions without traffic only cost the compressed JSON of their schemas; conversion.go calls
// conversion webhooks; strategy.go validates.
//
// Invariants: a version's schema never changes, a changed CustomResourceDefinition gets a new custom value. A name is
// accepted only if no other definition of the group is known to have accepted it. An object is stored only while its
// definition is established and not terminating (permission.go), so that the finalizer finds them all. Stored objects in any version, served
// or not, stay readable.
package crd

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kubeversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/lazy"
	"quorate.dev/apiserver/resource"
)

// ScaleKind is the kind of the scale subresource.
var ScaleKind = autoscalingv1.SchemeGroupVersion.WithKind("Scale")

var (
	mainVerbs        = []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
	subresourceVerbs = []string{"get", "patch", "update"}
)

// Builder builds the definitions of custom resources.
type Builder struct {
	scale      resource.Codec
	idle       *lazy.Set
	converters Converters
	clock      clock.PassiveClock
}

// NewBuilder returns a builder. All its definitions share the codec of Scale bodies. What they build from their schemas
// is in the set idle.
func NewBuilder(idle *lazy.Set, converters Converters, clock clock.PassiveClock) (*Builder, error) {
	scale, err := newScaleBody()
	if err != nil {
		return nil, err
	}
	return &Builder{scale: scale, idle: idle, converters: converters, clock: clock}, nil
}

// Definition returns the definition of a CustomResourceDefinition with accepted names.
func (b *Builder) Definition(crd *apiextensionsv1.CustomResourceDefinition) (*resource.Definition, error) {
	names := crd.Status.AcceptedNames
	if names.Plural == "" || names.Singular == "" || names.Kind == "" || names.ListKind == "" {
		return nil, fmt.Errorf("CustomResourceDefinition %s has no accepted names yet", crd.Name)
	}
	custom, err := newCustom(crd, b.idle)
	if err != nil {
		return nil, err
	}
	custom.webhook = b.newWebhook(crd)
	since, _ := strconv.ParseInt(crd.ResourceVersion, 10, 64) // 0 for one that is not stored
	definition := &resource.Definition{
		Source:           resource.Custom,
		Group:            crd.Spec.Group,
		Plural:           names.Plural,
		Singular:         names.Singular,
		Kind:             names.Kind,
		ListKind:         names.ListKind,
		ShortNames:       names.ShortNames,
		Categories:       names.Categories,
		Namespaced:       custom.namespaced,
		Scheme:           objectScheme{custom},
		ConvertsRemotely: custom.webhook != nil,
		StoragePath:      crd.Spec.Group + "/" + names.Plural,
		StorageVersion:   schema.GroupVersion{Group: crd.Spec.Group, Version: custom.storage},
		Fields:           newSelectable(crd).fields,
		Revision:         revisionOf(crd),
		Transferring:     isTransferring(crd),
		Since:            since,
	}
	for i := range crd.Spec.Versions {
		v := &crd.Spec.Versions[i]
		if !v.Served && !v.Storage {
			continue
		}
		version := b.version(custom, crd, v)
		if v.Served {
			definition.Versions = append(definition.Versions, version)
		}
		if v.Storage {
			definition.Storage = version
		}
	}
	slices.SortFunc(definition.Versions, func(a, b *resource.Version) int {
		return cmp.Or(-kubeversion.CompareKubeAwareVersionStrings(a.Name, b.Name), cmp.Compare(a.Name, b.Name))
	})
	return definition, nil
}

// TransferAnnotation of a CustomResourceDefinition marks its objects as being moved from or to another cluster. An
// extension server then serves them to the transfer only.
const TransferAnnotation = "quorate.dev/transfer"

func isTransferring(crd *apiextensionsv1.CustomResourceDefinition) bool {
	_, found := crd.Annotations[TransferAnnotation]
	return found
}

// revisionOf returns the Revision of a definition. At the begin and the end of a transfer it changes, so that watches
// end and cannot continue.
func revisionOf(crd *apiextensionsv1.CustomResourceDefinition) string {
	if isTransferring(crd) {
		return fmt.Sprintf("%s/%d/transfer", crd.UID, crd.Generation)
	}
	return fmt.Sprintf("%s/%d", crd.UID, crd.Generation)
}

func (b *Builder) version(
	custom *custom, crd *apiextensionsv1.CustomResourceDefinition, v *apiextensionsv1.CustomResourceDefinitionVersion,
) *resource.Version {
	served := custom.versions[v.Name]
	version := &resource.Version{
		Name:       v.Name,
		Kind:       served.kind,
		Codec:      &customCodec{served},
		Table:      newTable(v.AdditionalPrinterColumns, b.idle),
		FieldLabel: fieldLabel(custom.namespaced, v.SelectableFields),
		Endpoints:  map[string]*resource.Endpoint{"": mainEndpoint(served)},
	}
	if v.Deprecated {
		version.Deprecation = deprecation(crd, v)
	}
	if served.status {
		version.Endpoints["status"] = statusEndpoint(served)
	}
	if served.scale != nil {
		version.Endpoints["scale"] = scaleEndpoint(served, b.scale)
	}
	return version
}

func mainEndpoint(v *version) *resource.Endpoint {
	s := &strategy{version: v}
	return &resource.Endpoint{
		Kind: v.kind, Verbs: mainVerbs, Create: s, Update: s, Delete: s,
		FieldManager: v.fieldManager(v.kind, "", v.of.resetFields()),
	}
}

func statusEndpoint(v *version) *resource.Endpoint {
	return &resource.Endpoint{
		Subresource: "status", Kind: v.kind, Verbs: subresourceVerbs,
		Update:       &statusStrategy{strategy{version: v}},
		FieldManager: v.fieldManager(v.kind, "status", v.of.statusResetFields()),
	}
}

func scaleEndpoint(v *version, body resource.Codec) *resource.Endpoint {
	return &resource.Endpoint{
		Subresource: "scale", Kind: ScaleKind, Verbs: subresourceVerbs,
		Update:       &strategy{version: v},
		FieldManager: v.fieldManager(ScaleKind, "scale", nil),
		View:         newScaleView(v),
		Body:         body,
	}
}

// deprecation returns the warning of a deprecated version: the author's, or one that names the newest served version
// that is not deprecated.
func deprecation(crd *apiextensionsv1.CustomResourceDefinition, v *apiextensionsv1.CustomResourceDefinitionVersion) string {
	if v.DeprecationWarning != nil {
		return *v.DeprecationWarning
	}
	best := ""
	for _, other := range crd.Spec.Versions {
		if !other.Served || other.Deprecated || kubeversion.CompareKubeAwareVersionStrings(v.Name, other.Name) >= 0 {
			continue
		}
		if best == "" || kubeversion.CompareKubeAwareVersionStrings(other.Name, best) > 0 {
			best = other.Name
		}
	}
	warning := fmt.Sprintf("%s/%s %s is deprecated", crd.Spec.Group, v.Name, crd.Spec.Names.Kind)
	if best != "" {
		warning += fmt.Sprintf("; use %s/%s %s", crd.Spec.Group, best, crd.Spec.Names.Kind)
	}
	return warning
}

// split returns the fields of a simple JSON path such as ".spec.replicas".
func split(path string) []string { return strings.Split(strings.TrimPrefix(path, "."), ".") }
