package change

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"

	library "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	cbor "k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/mergepatch"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"
	kjson "sigs.k8s.io/json"

	"quorate.dev/apiserver/jsonpatch"
	"quorate.dev/apiserver/resource"
)

// maxPatchOperations bounds the operations of a JSON patch, like maxJSONPatchOperations of kube-apiserver.
const maxPatchOperations = 10_000

// LimitPatches sets the limit of the bytes that a JSON patch of a webhook or policy may copy. Upstream's plugins apply
// such patches with a library that keeps the limit in a package variable, which all servers of a process share; each of
// them sets the same value. Patches of clients use package jsonpatch, which takes its limits as arguments.
func LimitPatches() { atomic.StoreInt64(&library.AccumulatedCopySizeLimit, jsonpatch.MaxCopied) }

// operationType is the Go type name of an operation of a JSON patch in kube-apiserver, which its error messages
// contain.
const operationType = "handlers.jsonPatchOp"

// Patch is the Change of a PATCH request. Its type selects JSON patch, merge patch, strategic merge patch or
// server-side apply.
type Patch struct {
	Type       types.PatchType
	Data       []byte
	Manager    string
	Force      bool // of server-side apply: take ownership of conflicting fields
	Validation resource.FieldValidation
}

// CreatesMissing implements Change: only a server-side apply has a whole object.
func (p Patch) CreatesMissing() bool {
	return p.Type == types.ApplyYAMLPatchType || p.Type == types.ApplyCBORPatchType
}

// Apply implements Change. Like a PUT, a patch must not change the name or the namespace of the object: the result is
// checked against the path of the request (patcher.applyPatch).
func (p Patch) Apply(ctx context.Context, t resource.Target, current runtime.Object) (runtime.Object, error) {
	if current == nil && !p.CreatesMissing() {
		return nil, apierrors.NewNotFound(t.GroupResource(), t.Name)
	}
	if err := p.check(t.BodyCodec()); err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", err))
	}
	object, err := p.patched(ctx, t, current)
	if err != nil {
		return nil, err
	}
	accessor, err := meta.Accessor(object)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if err := rest.EnsureObjectNamespaceMatchesRequestNamespace(
		rest.ExpectedNamespaceForScope(t.Namespace, t.Namespaced), accessor,
	); err != nil {
		return nil, err
	}
	return object, CheckName(accessor, t)
}

// check applies the limits of request bodies to a patch.
func (p Patch) check(codec resource.Codec) error {
	checker, ok := codec.(resource.BodyChecker)
	if !ok {
		return nil
	}
	switch p.Type {
	case types.ApplyYAMLPatchType:
		return checker.CheckBody(p.Data, runtime.ContentTypeYAML)
	case types.ApplyCBORPatchType:
		return checker.CheckBody(p.Data, runtime.ContentTypeCBOR)
	}
	return checker.CheckBody(p.Data, runtime.ContentTypeJSON)
}

// UID implements Change: validation refuses to change the UID.
func (Patch) UID() types.UID { return "" }

// patched applies the patch. current is nil only for a server-side apply.
func (p Patch) patched(ctx context.Context, t resource.Target, current runtime.Object) (runtime.Object, error) {
	switch p.Type {
	case types.ApplyYAMLPatchType, types.ApplyCBORPatchType:
		return p.apply(ctx, t, current)
	case types.StrategicMergePatchType:
		return p.strategic(ctx, t, current)
	case types.JSONPatchType, types.MergePatchType:
		return p.jsonPatch(ctx, t, current)
	}
	return nil, fmt.Errorf("%v: unimplemented patch type", p.Type)
}

// detectsUnknown reports whether unknown and duplicate fields are reported.
func (p Patch) detectsUnknown() bool { return p.Validation != resource.Ignore }

// jsonPatch applies a JSON patch or merge patch to the served version's JSON.
func (p Patch) jsonPatch(ctx context.Context, t resource.Target, current runtime.Object) (runtime.Object, error) {
	codec := t.BodyCodec()
	external, err := codec.External(current)
	if err != nil {
		return nil, err
	}
	before, err := json.Marshal(external)
	if err != nil {
		return nil, err
	}
	after, warnings, err := p.patchJSON(before)
	if err != nil {
		return nil, err
	}
	object, strict, err := codec.DecodePatched(after, p.Validation)
	if apierrors.IsRequestEntityTooLargeError(err) {
		return nil, err
	}
	if err != nil {
		return nil, invalidPatch(after, err)
	}
	warnings = append(warnings, strict...)
	if len(warnings) > 0 && p.Validation == resource.Strict {
		return nil, invalidPatch(after, runtime.NewStrictDecodingError(warnings))
	}
	Warn(ctx, warnings)
	return object, Track(t, current, object, p.Manager)
}

func invalidPatch(patched []byte, err error) error {
	return apierrors.NewInvalid(schema.GroupKind{}, "", field.ErrorList{
		field.Invalid(field.NewPath("patch"), string(patched), err.Error()),
	})
}

// patchJSON applies the patch to the JSON of an object. warnings has the unknown and duplicate fields of the patch
// itself, which the caller reports according to Validation; the fields of the patched object are checked when it is
// decoded.
func (p Patch) patchJSON(before []byte) (after []byte, warnings []error, err error) {
	if p.Type == types.JSONPatchType {
		return p.jsonOperations(before)
	}
	if p.detectsUnknown() {
		if warnings, err = kjson.UnmarshalStrict(p.Data, &map[string]any{}); err != nil {
			return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", err))
		}
	}
	after, err = jsonpatch.Merge(before, p.Data)
	switch {
	case errors.Is(err, jsonpatch.ErrBadMergePatch):
		err = apierrors.NewBadRequest(err.Error())
	case errors.Is(err, jsonpatch.ErrTooMuchWork):
		err = apierrors.NewRequestEntityTooLargeError(err.Error())
	}
	return after, warnings, err
}

// jsonPatchOp is an operation of a JSON patch, for strict decoding. Error messages contain the type's name.
type jsonPatchOp struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	From  string `json:"from"`
	Value any    `json:"value"`
}

func (p Patch) jsonOperations(before []byte) (after []byte, warnings []error, err error) {
	if p.detectsUnknown() {
		if warnings, err = kjson.UnmarshalStrict(p.Data, &[]jsonPatchOp{}); err != nil {
			message := strings.ReplaceAll(err.Error(), fmt.Sprintf("%T", jsonPatchOp{}), operationType)
			return nil, nil, apierrors.NewBadRequest("error decoding patch: " + message)
		}
		for i, warning := range warnings {
			warnings[i] = fmt.Errorf("json patch %w", warning)
		}
	}
	operations, err := jsonpatch.Decode(p.Data)
	if err != nil {
		return nil, nil, apierrors.NewBadRequest(err.Error())
	}
	if len(operations) > maxPatchOperations {
		return nil, nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf(
			"The allowed maximum operations in a JSON patch is %d, got %d", maxPatchOperations, len(operations)))
	}
	after, err = applyOperations(operations, before)
	return after, warnings, err
}

func unprocessable(err error) error {
	return apierrors.NewGenericServerResponse(
		http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", err.Error(), 0, false)
}

// applyOperations applies a JSON patch, and returns kube-apiserver's errors except for incomplete operations, for which
// kube-apiserver returns an internal error.
func applyOperations(operations jsonpatch.Operations, before []byte) ([]byte, error) {
	after, err := jsonpatch.Apply(before, operations)
	switch {
	case err == nil:
		return after, nil
	case errors.Is(err, jsonpatch.ErrIncomplete):
		return nil, apierrors.NewBadRequest(err.Error())
	case errors.Is(err, jsonpatch.ErrTooMuchWork):
		return nil, apierrors.NewRequestEntityTooLargeError(err.Error())
	}
	return nil, unprocessable(err)
}

// strategic applies a strategic merge patch according to the struct tags of the served version's Go type. It is not
// available for custom resources, which have no Go type; the handlers refuse the media type. The work is estimated
// before the patch is applied, because upstream's library cannot be stopped.
func (p Patch) strategic(ctx context.Context, t resource.Target, current runtime.Object) (runtime.Object, error) {
	codec := t.BodyCodec()
	external, err := codec.External(current)
	if err != nil {
		return nil, err
	}
	before, err := runtime.DefaultUnstructuredConverter.ToUnstructured(external)
	if err != nil {
		return nil, err
	}
	patch := map[string]any{}
	var warnings []error
	if p.detectsUnknown() {
		warnings, err = kjson.UnmarshalStrict(p.Data, &patch)
	} else {
		err = kjson.UnmarshalCaseSensitivePreserveInts(p.Data, &patch)
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if schema, err := strategicpatch.NewPatchMetaFromStruct(codec.NewExternal()); err == nil {
		if err := checkComparisons(before, patch, schema); err != nil {
			return nil, err
		}
	}
	after, err := strategicpatch.StrategicMergeMapPatch(before, patch, codec.NewExternal())
	if err != nil {
		return nil, strategicError(err)
	}
	updated := codec.NewExternal()
	if err := p.fromMap(ctx, patch, after, updated, warnings); err != nil {
		return nil, err
	}
	codec.Default(updated)
	object, err := codec.Internal(updated)
	if err != nil {
		return nil, err
	}
	return object, Track(t, current, object, p.Manager)
}

// fromMap converts from into a typed object and reports unknown fields. patch is the client's, for error messages.
func (p Patch) fromMap(ctx context.Context, patch, from map[string]any, to runtime.Object, warnings []error) error {
	err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(from, to, p.detectsUnknown())
	if err != nil {
		strict, ok := runtime.AsStrictDecodingError(err)
		if !ok {
			return invalidMap(patch, err)
		}
		warnings = append(warnings, strict.Errors()...)
	}
	if len(warnings) > 0 && p.Validation == resource.Strict {
		return invalidMap(patch, runtime.NewStrictDecodingError(warnings))
	}
	Warn(ctx, warnings)
	return nil
}

func invalidMap(patch map[string]any, err error) error {
	return apierrors.NewInvalid(schema.GroupKind{}, "", field.ErrorList{
		field.Invalid(field.NewPath("patch"), fmt.Sprintf("%+v", patch), err.Error()),
	})
}

// strategicError returns the API status of a malformed patch, or of one that does not fit the object.
func strategicError(err error) error {
	switch {
	case errors.Is(err, mergepatch.ErrBadJSONDoc),
		errors.Is(err, mergepatch.ErrBadPatchFormatForPrimitiveList),
		errors.Is(err, mergepatch.ErrBadPatchFormatForRetainKeys),
		errors.Is(err, mergepatch.ErrBadPatchFormatForSetElementOrderList),
		errors.Is(err, mergepatch.ErrUnsupportedStrategicMergePatchFormat):
		return apierrors.NewBadRequest(err.Error())
	case errors.Is(err, mergepatch.ErrNoListOfLists), errors.Is(err, mergepatch.ErrPatchContentNotMatchRetainKeys):
		return unprocessable(err)
	}
	return err
}

// apply merges a server-side apply into the object, or creates the object from the configuration. The FieldManager
// returns a conflict if other managers own fields that the configuration changes, unless Force is set. Unknown fields
// are reported by the FieldManager as errors; apply itself only looks for duplicate keys, which decoding does not
// notice.
func (p Patch) apply(ctx context.Context, t resource.Target, current runtime.Object) (runtime.Object, error) {
	fields, err := t.Endpoint.FieldManager()
	if err != nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("prepare the field manager: %w", err))
	}
	configuration := &unstructured.Unstructured{Object: map[string]any{}}
	if err := p.unmarshal(&configuration.Object); err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", err))
	}
	if !isTrackable(configuration) || !isTrackable(current) {
		return nil, errNotTracked()
	}
	if current == nil {
		current = t.BodyCodec().NewExternal()
	}
	object, err := fields.Apply(current, configuration, p.Manager, p.Force)
	if err != nil {
		return nil, err
	}
	if !p.detectsUnknown() || p.Type == types.ApplyCBORPatchType { // CBOR with duplicate keys is invalid
		return object, nil
	}
	if err := yaml.UnmarshalStrict(p.Data, &map[string]any{}); err != nil {
		if p.Validation == resource.Strict {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("error strict decoding patch: %v", err))
		}
		Warn(ctx, []error{err})
	}
	return object, nil
}

// unmarshal decodes a configuration of server-side apply.
func (p Patch) unmarshal(into *map[string]any) error {
	if p.Type == types.ApplyCBORPatchType {
		return cbor.Unmarshal(p.Data, into)
	}
	return yaml.Unmarshal(p.Data, into)
}

// Warn sends decoding problems to the client as warnings. A problem that the YAML decoder reports becomes one warning
// per line.
func Warn(ctx context.Context, warnings []error) {
	for _, problem := range warnings {
		text := problem.Error()
		lines, ofYAML := strings.CutPrefix(text, "error converting YAML to JSON: ")
		lines, listed := strings.CutPrefix(lines, "yaml: unmarshal errors:\n")
		if !listed && !ofYAML {
			lines = text
		}
		for line := range strings.SplitSeq(lines, "\n") {
			warning.AddWarning(ctx, "", strings.TrimSpace(line))
		}
	}
}
