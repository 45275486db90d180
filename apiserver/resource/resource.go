// Package resource describes served resources: names, scope, versions, storage path, selectable fields, and the
// strategies of each endpoint.
//
// A Definition is complete before it is published in a Catalog and immutable afterwards. Built-in kinds, custom
// resources and their subresources are all Definitions, so that one registry and one set of handlers serve them all.
package resource

import (
	"context"
	"errors"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/registry/rest"
)

// Source is the origin of a Definition. Built-in kinds take precedence over custom ones.
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
	// Versions are the served versions, preferred first. A custom resource whose definition is not established has none.
	Versions []*Version
	// Fields returns the selectable fields of an internal version object. metadata.name and metadata.namespace are
	// included.
	Fields func(internal runtime.Object) (fields.Set, error)
	// Index is the selectable field that lists and watches are served by; nil: none.
	Index *Index
	// Decorate completes, in place, an internal version object stored by an earlier release before clients see it. It
	// changes no metadata. Updates start from the undecorated object. nil: none.
	Decorate func(internal runtime.Object)
	// Scheme creates, defaults and converts objects of this resource and its subresources for admission plugins.
	Scheme Scheme
	// TimeToLive returns the TTL of an object from its last write; nil: none.
	TimeToLive func(internal runtime.Object) time.Duration
	// Revision distinguishes two definitions of the same name over time: the UID and generation of a custom
	// resource's definition, and whether it is transferred. Empty for built-in kinds.
	Revision string
	// Transferring is set while the objects of a custom resource are moved from or to another cluster.
	Transferring bool
	// Since is the storage revision of a custom resource's current definition. A watch from an earlier revision has
	// expired: its client holds objects of the earlier definition. 0 for built-in kinds.
	Since int64
	// ConvertsRemotely is set if a webhook converts objects between versions.
	ConvertsRemotely bool
	// Storage is the version that objects are stored in, even if it is not served; nil for built-in kinds.
	Storage *Version
	// ReturnsDeleted is set for kinds whose deletion returns the object instead of a Status.
	ReturnsDeleted bool
	// Terminating is set while a custom resource's definition is being deleted: creates are refused, and discovery lists
	// only the verbs that read and delete. Updates are allowed, so that finalizers can be removed.
	Terminating bool
	// Permission is what the creation of an object depends on; nil for built-in kinds.
	Permission Permission
}

// Permission is the stored object that permits the creation of objects of a custom resource: its
// CustomResourceDefinition.
type Permission interface {
	// Key names the object.
	Key() Key
	// Revision is the latest at which the object is known to permit creation; 0: none is known.
	Revision() int64
	// Check returns the revision of the object and nil if it permits creation, ErrTerminating if it is being deleted, and
	// ErrNotServed otherwise.
	Check(object runtime.Object) (revision int64, err error)
}

var (
	// ErrTerminating means that the definition of a custom resource is being deleted.
	ErrTerminating = errors.New("create not allowed while custom resource definition is terminating")
	// ErrNotServed means that the definition of a custom resource is not established, or was replaced by another.
	ErrNotServed = errors.New("the custom resource is not served")
)

// LoadExternal decodes stored bytes into a served version, decorated.
func (d *Definition) LoadExternal(ctx context.Context, v *Version, stored []byte) (runtime.Object, error) {
	if d.Decorate == nil {
		return v.Codec.LoadExternal(ctx, stored)
	}
	internal, err := v.Codec.Load(ctx, stored)
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

// Index is a selectable field whose value can be read from stored bytes without decoding them.
type Index struct {
	Field string // "spec.nodeName"
	Value func(stored []byte) (string, error)
}

// Version is one served version of a resource.
type Version struct {
	Name string // "v1"
	// Kind is the kind of objects of this version.
	Kind schema.GroupVersionKind
	// Codec turns objects between stored bytes, the internal version and this version.
	Codec Codec
	// Table renders internal version objects as table rows.
	Table rest.TableConvertor
	// FieldLabel converts a field selector's label and value of this version into those of Fields. It refuses labels
	// that are not selectable.
	FieldLabel func(label, value string) (string, string, error)
	// Deprecation is the warning sent with every response of this version; empty: none.
	Deprecation string
	// InternalMetadata is set if annotations of this version are fields of the internal version. Metadata-only
	// responses have the metadata of the internal version.
	InternalMetadata bool
	// Plain is set if the kind has no columns of its own. Its empty table has null rows, like kube-apiserver's.
	Plain bool
	// RemovedIn is the release that no longer serves this deprecated version, "1.40"; empty: unknown.
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

	// Create, Update and Delete are the strategies of the verbs. A subresource of the same object has only Update.
	Create rest.RESTCreateStrategy
	Update rest.RESTUpdateStrategy
	Delete rest.RESTDeleteStrategy

	// NoTable is set if the endpoint cannot be rendered as a table.
	NoTable bool
	// Undecorated is set if clients see objects as stored, without Definition.Decorate.
	Undecorated bool

	// FieldManager tracks managed fields for this endpoint and is built on first use. That of an action tracks its body.
	// nil: none.
	FieldManager func() (*managedfields.FieldManager, error)

	// View is set if the endpoint is another kind computed from the object: scale.
	View View
	// Action is set if create stores no object of the endpoint's kind: binding, token, reviews.
	Action Action
	// KeepsMetadata is set if an action reads the UID and the resource version of its body, which creates otherwise clear.
	KeepsMetadata bool
	// Connect is set if requests are proxied to a kubelet, a pod or a Service.
	Connect *Connect
	// Compute is set for kinds that are not stored: their objects are computed on each read.
	Compute Compute
	// Accepts are the other versions of Kind that bodies may have.
	Accepts []schema.GroupVersion
	// Body is the codec of bodies and responses if Kind is not the version's own (View and Action); otherwise nil.
	Body Codec
}

// Codec converts objects of one resource between stored bytes, the internal version and one served version.
// Strategies work on the internal version: the internal type of a built-in kind, the served version of a custom one.
// Methods never change or retain their arguments. Those that take a context may call a conversion webhook, and return
// when the context ends.
type Codec interface {
	// New returns an empty internal version object.
	New() runtime.Object
	// NewExternal returns an empty object of the served version.
	NewExternal() runtime.Object
	// Load decodes stored bytes into the internal version, defaults applied.
	Load(ctx context.Context, stored []byte) (runtime.Object, error)
	// LoadExternal decodes stored bytes into the served version, apiVersion and kind set, defaults applied.
	LoadExternal(ctx context.Context, stored []byte) (runtime.Object, error)
	// LoadAll is LoadExternal of many objects, which a conversion webhook gets in one call per stored version. On an
	// error, it returns the objects before the first one that failed.
	LoadAll(ctx context.Context, stored [][]byte) ([]runtime.Object, error)
	// Remote reports whether a conversion webhook converts the stored bytes. If so, the methods that load them are slow,
	// can fail at any time, and must not be called with a lock held.
	Remote(stored []byte) bool
	// Store encodes an internal version object for storage. The caller clears its resourceVersion.
	Store(ctx context.Context, internal runtime.Object) ([]byte, error)
	// External converts an internal version object into the served version, apiVersion and kind set.
	External(internal runtime.Object) (runtime.Object, error)
	// Internal converts an object of the served version into the internal version, without defaulting.
	Internal(external runtime.Object) (runtime.Object, error)
	// Decode reads a request body of the given media type (application/json, application/yaml or
	// application/vnd.kubernetes.protobuf) into the internal version, defaults applied, and returns the kind it
	// declares. In Strict and Warn mode unknown and duplicate fields are returned as strict errors, with the complete
	// object.
	Decode(body []byte, mediaType string, validation FieldValidation) (internal runtime.Object, kind schema.GroupVersionKind, strict []error, err error)
	// DecodePatched reads the JSON of a patched object like Decode, for the served version.
	DecodePatched(json []byte, validation FieldValidation) (internal runtime.Object, strict []error, err error)
	// Default sets the defaults of a patched object of the served version, in place.
	Default(external runtime.Object)
}

// ConversionError is the failure of a conversion webhook. As in kube-apiserver, clients see the plain text of the cause
// with code 500.
type ConversionError struct{ Err error }

func (e *ConversionError) Error() string { return e.Err.Error() }

func (e *ConversionError) Unwrap() error { return e.Err }

// Scheme is the part of a runtime.Scheme that admission plugins use.
type Scheme interface {
	runtime.ObjectCreater
	runtime.ObjectTyper
	runtime.ObjectDefaulter
	runtime.ObjectConvertor
}

// BodyChecker is implemented by codecs that limit the content of a body before it is decoded.
type BodyChecker interface {
	// CheckBody returns an error if a body must not be decoded. Decode checks bodies itself; patches are checked
	// before they are applied.
	CheckBody(body []byte, mediaType string) error
}

// FieldValidation is the fieldValidation option of a write.
type FieldValidation string

const (
	Ignore FieldValidation = "Ignore"
	Warn   FieldValidation = "Warn"
	Strict FieldValidation = "Strict"
)

// View converts an object to another kind and back.
type View interface {
	// Get returns the view of an internal version object, in the internal version of the view's kind.
	Get(parent runtime.Object) (runtime.Object, error)
	// Set writes the view into parent, which is the caller's own copy.
	Set(parent, view runtime.Object) error
	// Validate checks a view that a client sent.
	Validate(view runtime.Object) error
}

// Initial is implemented by views that can be updated before Get returns one.
type Initial interface {
	// Before returns the view that a change starts from.
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
	// Validate runs validating admission on the body. It is nil for Connect.
	Validate func(context.Context) error
}

// Action implements create on a create-only endpoint. It returns the response in the internal version of the
// endpoint's kind, or a *metav1.Status. It must call Call.Validate when it has checked and completed the body, before
// it does anything else.
type Action func(ctx context.Context, objects Client, call Call) (runtime.Object, error)

// DeletionWarner is implemented by delete strategies that return warnings about the options.
type DeletionWarner interface {
	WarningsOnDelete(ctx context.Context, options *metav1.DeleteOptions) []string
}

// DeletionGuard is implemented by delete strategies of kinds with protected objects. As in kube-apiserver, they do
// not protect against the deletion of the collection.
type DeletionGuard interface {
	// CheckDeletion refuses to delete an object of that name with an API status error.
	CheckDeletion(name string) error
}

// Terminator is implemented by delete strategies of objects whose deletion a controller finishes: a namespace, whose
// content is deleted first.
type Terminator interface {
	// Terminate marks an internal version object as terminating and reports whether finalizers outside its metadata
	// are pending, like the spec.finalizers of a namespace.
	Terminate(object runtime.Object, options *metav1.DeleteOptions) (pending bool)
}

// ScaledKind is implemented by views of kind Scale. ReplicasPaths has the path of the replicas in each version of the
// parent, to convert managed fields.
type ScaledKind interface {
	ReplicasPaths() managedfields.ResourcePathMappings
}
