// Package resource says what a served resource is: its names, scope, versions, storage place, selectable
// fields, and for each of its endpoints the strategies that give its verbs their meaning.
//
// A Definition is a value that is complete before it is published in a Catalog and immutable afterwards.
// Built-in kinds, custom resources and their subresources are all described by it, so that one registry and
// one set of handlers serve them all.
package resource

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/registry/rest"
)

// Source tells which of the three precedences a Definition has.
type Source int

const (
	// BuiltIn kinds ship with the server.
	BuiltIn Source = iota
	// Custom kinds come from CustomResourceDefinitions.
	Custom
)

// Definition is one resource of one API group.
type Definition struct {
	Source     Source
	Group      string // "" for the core group
	Plural     string // "pods"
	Singular   string // "pod"
	Kind       string // "Pod"
	ListKind   string // "PodList"
	ShortNames []string
	Categories []string
	Namespaced bool

	// StoragePath is the key of the collection below the store's prefix, without slashes at its ends:
	// "pods", "services/specs", "example.com/widgets". Definitions with the same path share their objects.
	StoragePath string
	// StorageVersion is the group and version objects are stored in ("events" of events.k8s.io is stored as v1).
	StorageVersion schema.GroupVersion
	// Versions are the served versions, preferred first.
	Versions []*Version
	// Fields returns the selectable fields of a internal version object. metadata.name and metadata.namespace are included.
	Fields func(internal runtime.Object) (fields.Set, error)
	// Decorate completes a internal version object that a former release stored, in place, before it is shown. It changes no metadata.
	// Updates start from the object as it is stored. nil: nothing is to be completed.
	Decorate func(internal runtime.Object)
	// TimeToLive returns how long an object lives after its last write; nil: for ever.
	TimeToLive func(internal runtime.Object) time.Duration
	// Revision distinguishes two definitions of the same name over time: the UID and generation of a custom
	// resource's definition. Empty for built-in kinds.
	Revision string
	// Since is the revision of storage from which on a custom resource is defined as it is. A watch from before would go
	// on with objects as the client has them, in the form of the former definition. 0 for built-in kinds.
	Since int64
	// ReturnsDeleted is set for kinds whose deletion is answered with the object instead of a Status.
	ReturnsDeleted bool
	// Terminating is set while the condition of that name is true of a custom resource's definition: creates are refused
	// and discovery lists only the verbs that read and delete. Updates go on, so that finalizers can be removed.
	Terminating bool
}

// LoadExternal decodes stored bytes into a served version, as clients are shown the object.
func (d *Definition) LoadExternal(v *Version, stored []byte) (runtime.Object, error) {
	if d.Decorate == nil {
		return v.Codec.LoadExternal(stored)
	}
	internal, err := v.Codec.Load(stored)
	if err != nil {
		return nil, err
	}
	d.Decorate(internal)
	return v.Codec.External(internal)
}

// GroupResource names the resource.
func (d *Definition) GroupResource() schema.GroupResource {
	return schema.GroupResource{Group: d.Group, Resource: d.Plural}
}

// Version returns the served version of that name, or nil.
func (d *Definition) Version(name string) *Version {
	for _, v := range d.Versions {
		if v.Name == name {
			return v
		}
	}
	return nil
}

// Version is one served version of a resource.
type Version struct {
	Name string // "v1"
	// Kind is what objects of this version call themselves.
	Kind schema.GroupVersionKind
	// Codec turns objects between stored bytes, the internal version and this version.
	Codec Codec
	// Table renders internal version objects as table rows.
	Table rest.TableConvertor
	// FieldLabel turns a field selector's label and value as spelled in this version into those of Fields; it
	// refuses labels that cannot be selected by.
	FieldLabel func(label, value string) (string, string, error)
	// Deprecation is the warning sent with every response of this version; empty: none.
	Deprecation string
	// InternalMetadata is set where objects of this version have annotations that are no annotations in the internal version:
	// metadata alone is shown as the internal version has it.
	InternalMetadata bool
	// Plain is set where rows have no columns of the kind's own. An empty table has no list of rows then.
	Plain bool
	// RemovedIn is the release that will not serve this deprecated version any more, "1.40"; empty: not known.
	RemovedIn string
	// Endpoints by subresource; "" is the resource itself and always present.
	Endpoints map[string]*Endpoint
}

// Endpoint is a resource, or one of its subresources, in one version.
type Endpoint struct {
	Subresource string
	// Kind of bodies and responses: the version's own kind, or another (Scale, Binding, TokenRequest).
	Kind schema.GroupVersionKind
	// Verbs as discovery lists them, sorted: create, delete, deletecollection, get, list, patch, update, watch.
	Verbs []string

	// Create, Update and Delete give the verbs their meaning. A subresource that writes the same object has
	// only Update.
	Create rest.RESTCreateStrategy
	Update rest.RESTUpdateStrategy
	Delete rest.RESTDeleteStrategy

	// NoTable is set where the endpoint is not shown as a table.
	NoTable bool
	// Undecorated is set where objects are shown as they are stored, without Definition.Decorate.
	Undecorated bool

	// FieldManager tracks managed fields for this endpoint, built on first use; nil for actions that show nobody the
	// object that they were given.
	FieldManager func() (*managedfields.FieldManager, error)

	// View is set where the endpoint shows another kind made from the object: scale.
	View View
	// Action is set where creating stores no object of this endpoint's kind: binding, token, reviews.
	Action Action
	// Connect is set where somebody else answers: a kubelet, a pod, what stands behind a service.
	Connect *Connect
	// Compute is set for kinds that are stored nowhere: their objects are made when they are read.
	Compute Compute
	// Accepts are versions of Kind that bodies may be in, beside Kind's own.
	Accepts []schema.GroupVersion
	// Body is the model of bodies and responses where Kind is not the version's own (View and Action); else nil.
	Body Codec
}

// Codec turns objects of one resource between the forms in which they exist, for one served version. The internal version
// form is what strategies work on: the internal type of a built-in kind, the served version of a custom one.
// Methods never change their arguments and never keep them.
type Codec interface {
	// New returns an empty internal version object.
	New() runtime.Object
	// NewExternal returns an empty object of the served version.
	NewExternal() runtime.Object
	// Load decodes stored bytes into the internal version, defaults applied.
	Load(stored []byte) (runtime.Object, error)
	// LoadExternal decodes stored bytes into the served version, apiVersion and kind set, defaults applied.
	LoadExternal(stored []byte) (runtime.Object, error)
	// Store encodes a internal version object as it is to be stored. That those in storage have no resourceVersion is up to the caller.
	Store(internal runtime.Object) ([]byte, error)
	// External converts a internal version object into the served version, apiVersion and kind set.
	External(internal runtime.Object) (runtime.Object, error)
	// Internal converts an object of the served version into the internal version, without defaulting.
	Internal(external runtime.Object) (runtime.Object, error)
	// Decode reads a request body of the given media type (application/json, application/yaml or
	// application/vnd.kubernetes.protobuf) into the internal version, defaults applied, and tells the kind it declared.
	// In Strict and Warn mode unknown and duplicate fields come back as strict, the object being complete.
	Decode(body []byte, mediaType string, validation FieldValidation) (internal runtime.Object, kind schema.GroupVersionKind, strict []error, err error)
	// DecodePatched reads the JSON of a patched object like Decode, for the served version.
	DecodePatched(json []byte, validation FieldValidation) (internal runtime.Object, strict []error, err error)
	// Scheme pieces for patching: Default fills defaults of an external object in place.
	Default(external runtime.Object)
}

// BodyChecker is implemented by models that bound what a body may hold before it is decoded.
type BodyChecker interface {
	// CheckBody returns why a body must not be decoded. Decode has checked what it returns; patches are checked before
	// they are applied.
	CheckBody(body []byte, mediaType string) error
}

// FieldValidation is the fieldValidation option of a write.
type FieldValidation string

const (
	Ignore FieldValidation = "Ignore"
	Warn   FieldValidation = "Warn"
	Strict FieldValidation = "Strict"
)

// View shows an object as another kind.
type View interface {
	// Get makes the view of a internal version object, in the internal version of the view's kind.
	Get(parent runtime.Object) (runtime.Object, error)
	// Set writes the view into parent, which is the caller's own copy.
	Set(parent, view runtime.Object) error
	// Validate checks a view that a client sent.
	Validate(view runtime.Object) error
}

// Initial is implemented by views that can be changed where there is nothing to get yet.
type Initial interface {
	// Before makes the view that a change starts from.
	Before(parent runtime.Object) (runtime.Object, error)
}

// Call is one request to an Action.
type Call struct {
	Definition *Definition
	Version    *Version
	Namespace  string
	Name       string // of the parent object; empty for collections
	Body       runtime.Object
	Options    *metav1.CreateOptions
	DryRun     bool
}

// Action does what creating an object of a create-only endpoint means. It returns the response in the internal version
// of the endpoint's kind, or a *metav1.Status.
type Action func(ctx context.Context, objects Objects, call Call) (runtime.Object, error)

// Objects is the registry as actions, admission and controllers of the server itself see it: internal version objects by
// group and resource. Errors are API status errors.
type Objects interface {
	// Get returns an object at least as new as the moment of the call. The caller must not change it.
	Get(ctx context.Context, resource schema.GroupResource, namespace, name string) (runtime.Object, error)
	// GetCached returns an object as the cache has it now, which may be a little old. The caller must not change it.
	GetCached(ctx context.Context, resource schema.GroupResource, namespace, name string) (runtime.Object, error)
	// List returns all objects in a namespace ("" for all), as the cache has them. The caller must not change them.
	List(ctx context.Context, resource schema.GroupResource, namespace string) ([]runtime.Object, error)
	// Latest is List at least as new as the moment of the call.
	Latest(ctx context.Context, resource schema.GroupResource, namespace string) ([]runtime.Object, error)
	// Create stores a new object through the resource's create strategy.
	Create(ctx context.Context, resource schema.GroupResource, namespace string, object runtime.Object, dryRun bool) (runtime.Object, error)
	// Update applies change to a copy of the current object and stores it through the update strategy of the
	// subresource, again and again until no other write came between. An error of change is returned as it is.
	Update(ctx context.Context, resource schema.GroupResource, subresource, namespace, name string, change func(runtime.Object) error, dryRun bool) (runtime.Object, error)
	// Delete deletes an object as a client would.
	Delete(ctx context.Context, resource schema.GroupResource, namespace, name string, options *metav1.DeleteOptions) error
}

// Applier is Objects that can also apply a configuration: the fields in it become the manager's, whoever had them.
type Applier interface {
	Objects
	// Apply applies an apply configuration, which becomes JSON, to an object or a subresource of it.
	Apply(ctx context.Context, resource schema.GroupResource, subresource, namespace, name string, configuration any) (runtime.Object, error)
}

// PreconditionError is what a change that is given to Objects.Update returns for an object that is not the one it is
// meant for.
type PreconditionError struct {
	What           string // "UID"
	Wanted, Actual string
}

func (e *PreconditionError) Error() string {
	return fmt.Sprintf("Precondition failed: %s in precondition: %s, %s in object meta: %s", e.What, e.Wanted, e.What, e.Actual)
}

// DeletionWarner is implemented by delete strategies that warn clients of what their options mean.
type DeletionWarner interface {
	WarningsOnDelete(ctx context.Context, options *metav1.DeleteOptions) []string
}

// DeletionGuard is implemented by delete strategies of kinds some of whose objects cannot be deleted by their names. As
// in kube-apiserver, deleting their collection is not refused.
type DeletionGuard interface {
	// CheckDeletion refuses to delete an object of that name with an API status error.
	CheckDeletion(name string) error
}

// Terminator is implemented by delete strategies of objects that others finish off: a namespace, whose content
// goes first.
type Terminator interface {
	// Terminate marks a internal version object as terminating, if it is not yet, and reports whether it must stay until its
	// own list of finalizers, beside that in its metadata, is empty.
	Terminate(object runtime.Object, options *metav1.DeleteOptions) (pending bool)
}

// ScaledKind is implemented by views of kind Scale: where each version of the parent keeps its replicas, so that
// managed fields can be carried from one to the other.
type ScaledKind interface {
	ReplicasPaths() managedfields.ResourcePathMappings
}
