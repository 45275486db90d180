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

// Builder builds the definitions of custom resources. It is immutable and safe for concurrent use.
type Builder struct {
	scale      resource.Codec
	idle       *lazy.Set
	converters Converters
	clock      clock.PassiveClock
}

// NewBuilder returns a builder. All definitions that it builds share the codec of Scale bodies, and idle, the set that
// drops their unused schemas and validators.
func NewBuilder(idle *lazy.Set, converters Converters, clock clock.PassiveClock) (*Builder, error) {
	scale, err := newScaleBody()
	if err != nil {
		return nil, err
	}
	return &Builder{scale: scale, idle: idle, converters: converters, clock: clock}, nil
}

// Definition returns the definition of a CustomResourceDefinition whose names are accepted. It keeps no reference to
// schemas of crd. Versions are sorted by priority (kubeversion.CompareKubeAwareVersionStrings), so that the first one
// is the preferred version of discovery. The storage version is built even if it is not served: objects of a definition
// that is being deleted are read in it.
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
	since, _ := strconv.ParseInt(crd.ResourceVersion, 10, 64) // 0 for a definition that is not stored
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

// TransferAnnotation on a CustomResourceDefinition means that its objects are being moved from or to another cluster.
// During the transfer, an extension server serves the objects only to the client that moves them.
const TransferAnnotation = "quorate.dev/transfer"

// isTransferring reports whether the definition has the TransferAnnotation, whatever its value.
func isTransferring(crd *apiextensionsv1.CustomResourceDefinition) bool {
	_, found := crd.Annotations[TransferAnnotation]
	return found
}

// revisionOf returns the Revision of a definition. The Revision also changes when a transfer begins or ends, so that
// existing watches end and their clients cannot resume them.
func revisionOf(crd *apiextensionsv1.CustomResourceDefinition) string {
	if isTransferring(crd) {
		return fmt.Sprintf("%s/%d/transfer", crd.UID, crd.Generation)
	}
	return fmt.Sprintf("%s/%d", crd.UID, crd.Generation)
}

// version returns one version with its endpoints: the resource itself and, if the schema enables them, status and
// scale.
func (b *Builder) version(
	custom *custom, crd *apiextensionsv1.CustomResourceDefinition, v *apiextensionsv1.CustomResourceDefinitionVersion,
) *resource.Version {
	served := custom.versions[v.Name]
	version := &resource.Version{
		Name:         v.Name,
		Kind:         served.kind,
		Codec:        &customCodec{served},
		Table:        newTable(v.AdditionalPrinterColumns, b.idle),
		UnsharedRows: comparesTimes(v.AdditionalPrinterColumns),
		FieldLabel:   fieldLabel(custom.namespaced, v.SelectableFields),
		Endpoints:    map[string]*resource.Endpoint{"": mainEndpoint(served)},
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

// mainEndpoint returns the endpoint of the resource itself, with one strategy for all verbs.
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

// scaleEndpoint returns the endpoint of the scale subresource. Its bodies are autoscaling/v1 Scales; the custom
// resource that a Scale is written into is validated by the strategy of the resource itself.
func scaleEndpoint(v *version, body resource.Codec) *resource.Endpoint {
	return &resource.Endpoint{
		Subresource: "scale", Kind: ScaleKind, Verbs: subresourceVerbs,
		Update:       &strategy{version: v},
		FieldManager: v.fieldManager(ScaleKind, "scale", nil),
		View:         newScaleView(v),
		Body:         body,
	}
}

// deprecation returns the warning for a deprecated version: its deprecationWarning or, by default, a text that names
// the newest served version that is not deprecated. It mirrors defaultDeprecationWarning.
func deprecation(
	crd *apiextensionsv1.CustomResourceDefinition, v *apiextensionsv1.CustomResourceDefinitionVersion,
) string {
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
