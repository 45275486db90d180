// Package resource describes served resources: names, scope, versions, storage path, selectable fields, and the
// strategies of each endpoint.
//
// A Definition is complete before it is published in a Catalog, and immutable afterwards. Built-in kinds, custom
// resources and their subresources are all Definitions, so that one registry and one set of handlers serve all of them.
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

// Source is the origin of a Definition. Built-in kinds take precedence over custom resources.
type Source int

const (
	// BuiltIn is the source of kinds that are part of the server.
	BuiltIn Source = iota
	// Custom is the source of kinds that CustomResourceDefinitions define.
	Custom
)

// Definition is one resource of one API group, with its subresources.
type Definition struct {
	Source Source
	// Group is "" for the core group.
	Group string
	// Plural is the name of the resource in paths, such as "pods".
	Plural     string
	Singular   string // "pod"
	Kind       string // "Pod"
	ListKind   string // "PodList"
	ShortNames []string
	Categories []string
	Namespaced bool

	// StoragePath is the key of the collection below the store's prefix, without slashes at its ends, such as "pods",
	// "services/specs" or "example.com/widgets". Definitions with the same path share their objects.
	StoragePath string
	// StorageVersion is the group and version in which objects are stored. Resource "events" of events.k8s.io is stored
	// as v1.
	StorageVersion schema.GroupVersion
	// Versions has the served versions, the preferred version first. A custom resource that is not established has
	// none.
	Versions []*Version
	// Fields returns the selectable fields of an object in the internal version, including metadata.name and
	// metadata.namespace.
	Fields func(internal runtime.Object) (fields.Set, error)
	// Index is the selectable field by which lists and watches are indexed; nil if there is none.
	Index *Index
	// Decorate sets fields of an object, in the internal version, that an earlier release may have stored without them.
	// It is applied in place before clients get the object, and changes no metadata. Updates start from the object
	// without these changes. nil means that no fields are missing.
	Decorate func(internal runtime.Object)
	// Warned returns the object from which the warnings about a new object are computed. It may be a smaller copy of
	// the new object that has the same warnings. nil means that the new object itself is used.
	Warned func(internal runtime.Object) runtime.Object
	// Scheme creates, defaults and converts objects of this resource and its subresources for admission plugins.
	Scheme Scheme
	// TimeToLive returns the time from the last write of an object to its expiration; nil if objects do not expire.
	TimeToLive func(internal runtime.Object) time.Duration
	// Revision distinguishes successive definitions with the same name: it contains the UID and generation of a
	// CustomResourceDefinition, and whether the resource is being transferred. It is empty for built-in kinds.
	Revision string
	// Transferring is set while the objects of a custom resource are moved from or to another cluster.
	Transferring bool
	// Since is the storage revision of the current CustomResourceDefinition. A watch from an earlier revision has
	// expired, because its client holds objects of the earlier definition. It is 0 for built-in kinds.
	Since int64
	// ConvertsRemotely is set if a webhook converts objects between versions.
	ConvertsRemotely bool
	// Storage is the version in which objects are stored, even if it is not served. It is nil for built-in kinds.
	Storage *Version
	// Terminating is set while the CustomResourceDefinition is being deleted: creates are rejected, and discovery lists
	// only the verbs that read and delete. Updates are allowed, so that finalizers can be removed.
	Terminating bool
	// Permission is the condition for the creation of objects; nil for built-in kinds.
	Permission Permission
}

// Permission is the stored object that permits the creation of objects of a custom resource, which is its
// CustomResourceDefinition.
type Permission interface {
	// Key identifies the stored object.
	Key() Key
	// Revision is the latest revision at which the stored object is known to permit creation; 0 if none is known.
	Revision() int64
	// Check returns the revision of the stored object. The error is nil if the object permits creation, ErrTerminating
	// if the object is being deleted, and ErrNotServed otherwise.
	Check(object runtime.Object) (revision int64, err error)
}

var (
	// ErrTerminating means that the CustomResourceDefinition is being deleted.
	ErrTerminating = errors.New("create not allowed while custom resource definition is terminating")
	// ErrNotServed means that the CustomResourceDefinition is not established, or that it has been replaced.
	ErrNotServed = errors.New("the custom resource is not served")
)

// LoadExternal decodes stored bytes into a served version, and applies Decorate.
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

// GroupResource returns the group and the plural of the resource.
func (d *Definition) GroupResource() schema.GroupResource {
	return schema.GroupResource{Group: d.Group, Resource: d.Plural}
}

// Version returns the served version with the given name, or nil.
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
	// Field is the path of the field, such as "spec.nodeName".
	Field string
	Value func(stored []byte) (string, error)
}

// Version is one served version of a resource.
type Version struct {
	Name string // "v1"
	// Kind is the kind of objects in this version.
	Kind schema.GroupVersionKind
	// Codec converts objects between stored bytes, the internal version and this version.
	Codec Codec
	// Table renders objects in the internal version as table rows.
	Table rest.TableConvertor
	// FieldLabel converts a label and value of a field selector of this version into a label and value of
	// Definition.Fields. It returns an error for labels that are not selectable.
	FieldLabel func(label, value string) (string, string, error)
	// Deprecation is the warning in every response of this version; empty if the version is not deprecated.
	Deprecation string
	// InternalMetadata is set if annotations of this version are fields of the internal version. Metadata-only
	// responses then have the metadata of the internal version.
	InternalMetadata bool
	// PrintedList returns a list of objects in the internal version, for kinds whose rows depend on the other objects of a
	// list: Table prints the list as a whole. It is nil for all other kinds.
	PrintedList func(objects []runtime.Object) (runtime.Object, error)
	// UnsharedRows is set if Table shows times in a way that package row cannot follow: as they are, or chosen by a
	// JSONPath that compares them. The rows of the kind are then printed for each request.
	UnsharedRows bool
	// NullRows is set if an empty table of the kind has null rows in kube-apiserver, as all tables with only the default
	// columns have.
	NullRows bool
	// ReturnsDeleted is set if a deletion in this version returns the object instead of a Status.
	ReturnsDeleted bool
	// RemovedIn is the release that no longer serves this deprecated version, such as "1.40"; empty if unknown.
	RemovedIn string
	// Endpoints has the endpoints by subresource. The endpoint "" is the resource itself and always present.
	Endpoints map[string]*Endpoint
}

// Endpoint is a resource or a subresource in one version.
type Endpoint struct {
	Subresource string
	// Kind is the kind of bodies and responses: the version's own kind or another kind, such as Scale, Binding or
	// TokenRequest.
	Kind schema.GroupVersionKind
	// Verbs are the verbs that discovery lists, sorted: create, delete, deletecollection, get, list, patch, update,
	// watch.
	Verbs []string

	// Create, Update and Delete are the strategies of the verbs. A subresource that updates the stored object has only
	// Update.
	Create rest.RESTCreateStrategy
	Update rest.RESTUpdateStrategy
	Delete rest.RESTDeleteStrategy

	// NoTable is set if the endpoint cannot be rendered as a table.
	NoTable bool
	// Undecorated is set if clients get objects as they are stored, without applying Definition.Decorate.
	Undecorated bool

	// FieldManager returns the manager of the managed fields of this endpoint, which is built on first use. The manager
	// of an action manages the fields of the action's body. nil means that the endpoint has no managed fields.
	FieldManager func() (*managedfields.FieldManager, error)

	// View is set if the endpoint serves another kind that is computed from the object, such as Scale.
	View View
	// Action is set if create stores no object of the endpoint's kind, such as binding, token and reviews.
	Action Action
	// KeepsMetadata is set if an action reads the UID and the resource version of its body, which create otherwise
	// clears.
	KeepsMetadata bool
	// Connect is set if requests are proxied to a kubelet, a pod or a Service.
	Connect *Connect
	// Compute is set for kinds that are not stored: their objects are computed on each read.
	Compute Compute
	// Accepts are the versions of Kind that bodies may have in addition to the endpoint's.
	Accepts []schema.GroupVersion
	// Body is the codec of bodies and responses if Kind is not the version's own kind (View and Action), otherwise nil.
	Body Codec
}

// Codec converts objects of one resource between stored bytes, the internal version and one served version. Strategies
// work on the internal version, which is the internal type of a built-in kind, and the served version of a custom
// resource. Methods neither change nor retain their arguments. Methods that take a context may call a conversion
// webhook, and return when the context ends.
type Codec interface {
	// New returns an empty internal version object.
	New() runtime.Object
	// NewExternal returns an empty object of the served version.
	NewExternal() runtime.Object
	// Load decodes stored bytes into the internal version and applies defaults.
	Load(ctx context.Context, stored []byte) (runtime.Object, error)
	// LoadExternal decodes stored bytes into the served version, sets apiVersion and kind, and applies defaults.
	LoadExternal(ctx context.Context, stored []byte) (runtime.Object, error)
	// LoadAll does the same as LoadExternal for many objects. It calls a conversion webhook once for each stored
	// version. On an
	// error, it returns the objects that precede the first object that failed.
	LoadAll(ctx context.Context, stored [][]byte) ([]runtime.Object, error)
	// Remote reports whether a conversion webhook converts the stored bytes. If so, the methods that load the bytes are
	// slow, can fail at any time, and must not be called with a lock held.
	Remote(stored []byte) bool
	// Store encodes an object in the internal version for storage. The caller clears its resourceVersion.
	Store(ctx context.Context, internal runtime.Object) ([]byte, error)
	// External converts an object in the internal version into the served version, and sets apiVersion and kind.
	External(internal runtime.Object) (runtime.Object, error)
	// Internal converts an object of the served version into the internal version, without defaulting.
	Internal(external runtime.Object) (runtime.Object, error)
	// Decode decodes a request body in the given media type (application/json, application/yaml or
	// application/vnd.kubernetes.protobuf) into the internal version, applies defaults, and returns the kind that the
	// body declares. With Strict and Warn, it returns unknown and duplicate fields as strict errors, together with the
	// complete object.
	Decode(
		body []byte, mediaType string, validation FieldValidation,
	) (internal runtime.Object, kind schema.GroupVersionKind, strict []error, err error)
	// DecodePatched decodes the JSON of a patched object, as Decode does for bodies in the served version.
	DecodePatched(json []byte, validation FieldValidation) (internal runtime.Object, strict []error, err error)
	// Default applies the defaults to a patched object in the served version, in place.
	Default(external runtime.Object)
}

// ConversionError is the failure of a conversion webhook. As in kube-apiserver, clients get the text of the cause with
// status code 500.
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

// BodyChecker is implemented by codecs that limit the content of a body before they decode it.
type BodyChecker interface {
	// CheckBody returns an error if a body must not be decoded. Decode checks bodies itself; patches are checked before
	// they are applied.
	CheckBody(body []byte, mediaType string) error
}

// FieldValidation is the value of the option fieldValidation of a write.
type FieldValidation string

const (
	Ignore FieldValidation = "Ignore"
	Warn   FieldValidation = "Warn"
	Strict FieldValidation = "Strict"
)

// View converts an object to another kind and back.
type View interface {
	// Get returns the view of an object, both in the internal version of their kind.
	Get(parent runtime.Object) (runtime.Object, error)
	// Set updates parent from the view. parent is a copy that the caller owns.
	Set(parent, view runtime.Object) error
	// Validate checks a view that a client sent. old is the view of the stored object.
	Validate(ctx context.Context, view, old runtime.Object) error
}

// Initial is implemented by views that can be updated before Get returns a view.
type Initial interface {
	// Before returns the view that an update or patch starts from.
	Before(parent runtime.Object) (runtime.Object, error)
}

// Call is a request to an Action or to a Connect handler.
type Call struct {
	Definition *Definition
	Version    *Version
	Namespace  string
	// Name is the name of the parent object; empty for collections.
	Name    string
	Body    runtime.Object
	Options *metav1.CreateOptions
	DryRun  bool
	// Validate runs validating admission on the body. It is nil for Connect.
	Validate func(context.Context) error
}

// Action implements create on an endpoint that supports only create. It returns the response, either in the internal
// version of the endpoint's kind or as a *metav1.Status. An Action must call call.Validate after it has validated and
// completed the body, and before it does anything else.
type Action func(ctx context.Context, call Call) (runtime.Object, error)

// DeletionWarner is implemented by delete strategies that return warnings about the options of a deletion.
type DeletionWarner interface {
	WarningsOnDelete(ctx context.Context, options *metav1.DeleteOptions) []string
}

// DeletionGuard is implemented by delete strategies of kinds with protected objects. As in kube-apiserver, a guard does
// not apply to the deletion of a collection.
type DeletionGuard interface {
	// CheckDeletion returns an API status error if the object with the given name must not be deleted.
	CheckDeletion(name string) error
}

// Terminator is implemented by delete strategies of objects whose deletion a controller completes: namespaces, whose
// content is deleted first.
type Terminator interface {
	// Terminate marks an object in the internal version as terminating. It reports whether finalizers outside its
	// metadata are pending, such as the spec.finalizers of a namespace.
	Terminate(object runtime.Object, options *metav1.DeleteOptions) (pending bool)
	// PreconditionFailed returns the beginning of the error of a failed precondition. The spelling differs between the
	// REST storages of kube-apiserver.
	PreconditionFailed() string
}

// ScaledKind is implemented by views of the kind Scale. ReplicasPaths returns the path of the replicas in each version
// of the parent, which is needed to convert managed fields.
type ScaledKind interface {
	ReplicasPaths() managedfields.ResourcePathMappings
}
