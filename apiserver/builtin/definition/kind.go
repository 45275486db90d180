package definition

import (
	"cmp"
	"net/http"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"quorate.dev/apiserver/builtin/enablement"
	"quorate.dev/apiserver/codec"
	"quorate.dev/apiserver/resource"
)

// Strategy is the strategy of create, update and delete. Most strategies of upstream also implement
// rest.DeclarativeValidationStrategy, without which upstream's declarative validation does not run. A strategy that
// wraps such a strategy must implement that interface too.
type Strategy interface {
	rest.RESTCreateStrategy
	rest.RESTUpdateStrategy
}

// Kind describes a kind that is stored. Name and Strategy are required.
type Kind struct {
	Name         string // for example "Pod"
	Plural       string // default: the regular plural of Name
	Singular     string // default: Name in lower case
	ShortNames   []string
	Categories   []string
	Verbs        []string // default: all verbs
	Versions     []string // default: the group's versions
	Strategy     Strategy
	Status       rest.RESTUpdateStrategy // nil: the kind has no status
	Delete       rest.RESTDeleteStrategy // default: Strategy
	Attributes   Attributes              // default: name and namespace
	Plain        bool                    // set for kinds whose only columns are Name and Age
	Columns      rest.TableConvertor     // default: upstream's printer of the kind
	NullRows     bool                    // set for kinds whose Columns have nil rows without objects
	PrintsList   bool                    // set for kinds whose rows depend on the other objects of a list
	Path         string                  // resource.Definition.StoragePath; default: the plural
	Storage      schema.GroupVersion     // default: see Builder.storageVersion
	Subresources []Subresource           // all subresources except status
	TimeToLive   func(internal runtime.Object) time.Duration
	// Index is the field by which objects are indexed for lists and watches, like upstream's Indexers and TriggerFunc;
	// optional.
	Index *resource.Index
	// InternalMetadata is set for kinds whose conversion stores fields in annotations of some versions.
	InternalMetadata bool
	// PlainStatus is set for kinds whose status subresource is not served as a table.
	PlainStatus bool
	// Decorate sets fields of a loaded object that an earlier release may have stored without them; optional. The
	// object is in the internal version.
	Decorate func(internal runtime.Object)
	// ReturnsDeleted is set for kinds whose deletion returns the object instead of a Status.
	ReturnsDeleted bool
	// ReturnsStatusIn has the versions of a kind with ReturnsDeleted in which a deletion returns a Status nevertheless.
	ReturnsStatusIn []string
}

// Subresource describes an endpoint below an object.
type Subresource struct {
	Name  string // for example "scale"
	Verbs []string
	// Kind is the kind of bodies and responses. The default is the parent's kind.
	Kind schema.GroupVersionKind
	// Accepts has further group versions of Kind that bodies may have; optional.
	Accepts []schema.GroupVersion
	// The fields Update (updates the parent), View (shows the parent as another kind), Action and Connect define what
	// the endpoint does; at least one must be set. If Update is set together with View or Action, it is the strategy
	// with which they update the parent.
	Update  rest.RESTUpdateStrategy
	View    resource.View
	Action  resource.Action
	Connect *resource.Connect
	// Plain is set for a subresource that is not served as a table.
	Plain bool
	// KeepsMetadata is the value of resource.Endpoint.KeepsMetadata.
	KeepsMetadata bool
}

// NodeNameIndex returns the index by spec.nodeName of a kind. In the kind's stored protobuf, spec must be field 2 of
// the object, and nodeName the given field number of spec.
func NodeNameIndex(number protowire.Number) *resource.Index {
	const spec = 2
	path := []codec.Field{{Name: "spec", Number: spec}, {Name: "nodeName", Number: number}}
	return &resource.Index{
		Field: "spec.nodeName", Value: func(stored []byte) (string, error) { return codec.String(stored, path) },
	}
}

// updatable has the verbs of most subresources that update their parent.
var updatable = []string{"get", "patch", "update"}

// Update describes a subresource that updates a part of its parent.
func Update(name string, strategy rest.RESTUpdateStrategy) Subresource {
	return Subresource{Name: name, Verbs: updatable, Update: strategy}
}

// View describes a subresource that shows its parent as another kind.
func View(name string, kind schema.GroupVersionKind, strategy rest.RESTUpdateStrategy, view resource.View) Subresource {
	return Subresource{Name: name, Verbs: updatable, Kind: kind, Update: strategy, View: view}
}

// Action describes a subresource that supports only create and is not stored.
func Action(name string, kind schema.GroupVersionKind, action resource.Action) Subresource {
	return Subresource{Name: name, Verbs: []string{"create"}, Kind: kind, Action: action, Plain: true}
}

// WithoutTable returns the subresource without table support.
func (s Subresource) WithoutTable() Subresource {
	s.Plain = true
	return s
}

// WithMetadata returns the subresource with KeepsMetadata set, for an action that reads the UID and the resource
// version in the body's metadata.
func (s Subresource) WithMetadata() Subresource {
	s.KeepsMetadata = true
	return s
}

// Connect describes a connect subresource. kind is the kind of its options.
func Connect(name string, kind schema.GroupVersionKind, connect *resource.Connect) Subresource {
	return Subresource{Name: name, Verbs: verbsOf(connect.Methods), Kind: kind, Connect: connect}
}

// verbsOf returns the verbs that discovery lists for HTTP methods.
func verbsOf(methods []string) []string {
	byMethod := map[string]string{
		http.MethodGet: "get", http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch",
		http.MethodDelete: "delete",
	}
	var verbs []string
	for _, method := range methods {
		if verb, ok := byMethod[method]; ok {
			verbs = append(verbs, verb)
		}
	}
	return verbs
}

// Group defines the kinds of one API group.
type Group struct {
	builder  *Builder
	name     string
	versions []string
}

// Define returns the definition of a stored kind in its enabled versions; there may be none.
func (g Group) Define(kind Kind) *resource.Definition {
	versions := kind.Versions
	if versions == nil {
		versions = g.versions
	}
	d := g.names(kind.Name, kind.Plural, kind.Singular)
	namespaced := kind.Strategy.NamespaceScoped()
	d.ShortNames, d.Categories, d.Namespaced = kind.ShortNames, kind.Categories, namespaced
	d.StoragePath = cmp.Or(kind.Path, d.Plural)
	d.StorageVersion = cmp.Or(kind.Storage,
		g.builder.storageVersion(schema.GroupVersion{Group: g.name, Version: versions[0]}, kind.Name))
	d.Fields = selectableFields(kind.Attributes, namespaced)
	d.TimeToLive = kind.TimeToLive
	d.Decorate = kind.Decorate
	d.Index = kind.Index
	if gate := enablement.Gate(d.GroupResource()); gate != "" && !utilfeature.DefaultFeatureGate.Enabled(gate) {
		return d
	}
	for _, version := range versions {
		if g.serves(version, d.Plural) {
			d.Versions = append(d.Versions, g.version(d, kind, version))
		}
	}
	return d
}

// DefineAction returns the definition of a kind that can only be created and is not stored.
func (g Group) DefineAction(name string, namespaced bool, action resource.Action) *resource.Definition {
	d := g.names(name, "", "")
	d.Namespaced = namespaced
	for _, version := range g.versions {
		if !g.serves(version, d.Plural) {
			continue
		}
		kind := schema.GroupVersionKind{Group: g.name, Version: version, Kind: name}
		model := g.builder.Codec(kind)
		warning, removedIn := g.builder.deprecated(kind)
		d.Versions = append(d.Versions, &resource.Version{
			Name: version, Kind: kind, Codec: model, FieldLabel: g.builder.fieldLabel(kind),
			Table:       rest.NewDefaultTableConvertor(d.GroupResource()),
			Deprecation: warning, RemovedIn: removedIn,
			Endpoints: map[string]*resource.Endpoint{
				"": {
					Kind: kind, Verbs: []string{"create"}, Action: action, Body: model, NoTable: true,
					FieldManager: g.builder.fieldManager(kind, "", nil),
				},
			},
		})
	}
	return d
}

// DefineComputed returns the definition of a read-only, cluster-scoped kind that is not stored.
func (g Group) DefineComputed(name, plural string, shortNames []string, compute resource.Compute) *resource.Definition {
	d := g.names(name, plural, "")
	d.ShortNames, d.StoragePath = shortNames, plural
	d.StorageVersion = schema.GroupVersion{Group: g.name, Version: g.versions[0]}
	d.Fields = selectableFields(nil, true)
	for _, version := range g.versions {
		if !g.serves(version, d.Plural) {
			continue
		}
		kind := schema.GroupVersionKind{Group: g.name, Version: version, Kind: name}
		warning, removedIn := g.builder.deprecated(kind)
		d.Versions = append(d.Versions, &resource.Version{
			Name: version, Kind: kind, Codec: g.builder.Codec(kind), FieldLabel: g.builder.fieldLabel(kind),
			Table:       lazyTable(g.builder.printer),
			Deprecation: warning, RemovedIn: removedIn,
			Endpoints: map[string]*resource.Endpoint{"": {Kind: kind, Verbs: []string{"get", "list"}, Compute: compute}},
		})
	}
	return d
}

func (g Group) serves(version, plural string) bool {
	return g.builder.serves(schema.GroupVersionResource{Group: g.name, Version: version, Resource: plural})
}

func (g Group) names(kind, plural, singular string) *resource.Definition {
	guess, _ := meta.UnsafeGuessKindToResource(schema.GroupVersionKind{Kind: kind})
	return &resource.Definition{
		Source:   resource.BuiltIn,
		Scheme:   g.builder.scheme,
		Group:    g.name,
		Plural:   cmp.Or(plural, guess.Resource),
		Singular: cmp.Or(singular, strings.ToLower(kind)),
		Kind:     kind,
		ListKind: kind + "List",
	}
}

func (g Group) version(d *resource.Definition, kind Kind, name string) *resource.Version {
	gvk := schema.GroupVersionKind{Group: g.name, Version: name, Kind: kind.Name}
	warning, removedIn := g.builder.deprecated(gvk)
	v := &resource.Version{
		Name:             name,
		Kind:             gvk,
		Codec:            g.builder.codec(gvk, d.StorageVersion),
		Table:            g.table(d, kind),
		FieldLabel:       g.builder.fieldLabel(gvk),
		InternalMetadata: kind.InternalMetadata,
		NullRows:         kind.Plain || kind.NullRows,
		UnsharedRows:     kind.Plain || kind.NullRows, // their column Created At shows a time as it is
		ReturnsDeleted:   kind.ReturnsDeleted && !slices.Contains(kind.ReturnsStatusIn, name),
		Deprecation:      warning,
		RemovedIn:        removedIn,
		Endpoints:        map[string]*resource.Endpoint{"": g.main(gvk, kind)},
	}
	if kind.PrintsList {
		v.PrintedList = g.builder.listOf(internalOf(gvk).WithKind(d.ListKind))
	}
	if kind.Status != nil {
		status := Update("status", kind.Status)
		status.Plain = kind.PlainStatus
		v.Endpoints["status"] = g.endpoint(gvk, status)
		// Upstream also copies the status store before it sets the decorator.
		v.Endpoints["status"].Undecorated = kind.Decorate != nil
	}
	for _, subresource := range kind.Subresources {
		v.Endpoints[subresource.Name] = g.endpoint(gvk, subresource)
	}
	return v
}

func (g Group) main(gvk schema.GroupVersionKind, kind Kind) *resource.Endpoint {
	verbs := kind.Verbs
	if verbs == nil {
		verbs = []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
	}
	var deletion rest.RESTDeleteStrategy = kind.Strategy
	if kind.Delete != nil {
		deletion = kind.Delete
	}
	return &resource.Endpoint{
		Kind:         gvk,
		Verbs:        verbs,
		Create:       kind.Strategy,
		Update:       kind.Strategy,
		Delete:       deletion,
		FieldManager: g.builder.fieldManager(gvk, "", kind.Strategy),
	}
}

func (g Group) endpoint(parent schema.GroupVersionKind, subresource Subresource) *resource.Endpoint {
	e := &resource.Endpoint{
		Subresource: subresource.Name,
		Kind:        cmp.Or(subresource.Kind, parent),
		Verbs:       slices.Sorted(slices.Values(subresource.Verbs)),
		Update:      subresource.Update,
		View:        subresource.View,
		Action:      subresource.Action,
		Accepts:     subresource.Accepts,
		Connect:     subresource.Connect,
		NoTable:     subresource.Plain,
	}
	if e.Kind != parent && e.Connect == nil {
		e.Body = g.builder.Codec(e.Kind)
	}
	switch {
	case e.Connect != nil:
	// Update is the strategy with which the action updates the parent.
	case e.Action != nil:
		e.FieldManager, e.KeepsMetadata = g.builder.fieldManager(e.Kind, e.Subresource, nil), subresource.KeepsMetadata
	default:
		e.FieldManager = g.builder.fieldManager(e.Kind, e.Subresource, e.Update)
	}
	return e
}

func (g Group) table(d *resource.Definition, kind Kind) rest.TableConvertor {
	if kind.Columns != nil {
		return kind.Columns
	}
	if kind.Plain {
		return rest.NewDefaultTableConvertor(d.GroupResource())
	}
	return lazyTable(g.builder.printer)
}

// resetFields returns the fields that a strategy resets, by version. Clients do not become managers of these fields.
func resetFields(strategy any) map[fieldpath.APIVersion]fieldpath.Filter {
	switch s := strategy.(type) {
	case rest.ResetFieldsFilterStrategy:
		return s.GetResetFieldsFilter()
	case rest.ResetFieldsStrategy:
		return fieldpath.NewExcludeFilterSetMap(s.GetResetFields())
	}
	return nil
}
