package registry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"

	"encoding/json"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/mergepatch"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"
	kjson "sigs.k8s.io/json"

	"quorate.dev/apiserver/resource"
)

// maxPatchOperations is how many operations a JSON patch may have.
const maxPatchOperations = 10_000

// maxPatchCopies is how many bytes the operations of a JSON patch may copy.
const maxPatchCopies = 3 << 20

// LimitPatches sets the limit of copied bytes, which the JSON patch library keeps in a package variable.
func LimitPatches() { atomic.StoreInt64(&jsonpatch.AccumulatedCopySizeLimit, maxPatchCopies) }

// operationList is what kube-apiserver, which names it to clients, calls the list of a JSON patch's operations.
const operationList = "[]handlers.jsonPatchOp"

// Patch is the Change of a PATCH request.
type Patch struct {
	Type       types.PatchType
	Data       []byte
	Manager    string
	Force      bool // of an apply patch: take over fields that others manage
	Validation resource.FieldValidation
}

// CreatesMissing implements Change: only an applied configuration is a whole object.
func (p Patch) CreatesMissing() bool { return p.Type == types.ApplyYAMLPatchType }

// Apply implements Change.
func (p Patch) Apply(ctx context.Context, t Target, current runtime.Object) (runtime.Object, error) {
	if current == nil && !p.CreatesMissing() {
		return nil, apierrors.NewNotFound(t.GroupResource(), t.Name)
	}
	if err := p.check(bodyCodec(t)); err != nil {
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
	if err := rest.EnsureObjectNamespaceMatchesRequestNamespace(rest.ExpectedNamespaceForScope(t.Namespace, t.Namespaced), accessor); err != nil {
		return nil, err
	}
	return object, CheckName(accessor, t)
}

// check bounds what a patch may hold, as bodies are bounded.
func (p Patch) check(codec resource.Codec) error {
	checker, ok := codec.(resource.BodyChecker)
	if !ok {
		return nil
	}
	if p.Type == types.ApplyYAMLPatchType {
		return checker.CheckBody(p.Data, runtime.ContentTypeYAML)
	}
	return checker.CheckBody(p.Data, runtime.ContentTypeJSON)
}

// UID implements Change: a patch of the UID is refused by validation.
func (Patch) UID() types.UID { return "" }

func (p Patch) patched(ctx context.Context, t Target, current runtime.Object) (runtime.Object, error) {
	switch p.Type {
	case types.ApplyYAMLPatchType:
		return p.apply(ctx, t, current)
	case types.StrategicMergePatchType:
		return p.strategic(ctx, t, current)
	case types.JSONPatchType, types.MergePatchType:
		return p.jsonPatch(ctx, t, current)
	}
	return nil, fmt.Errorf("%v: unimplemented patch type", p.Type)
}

// strictly reports whether unknown and duplicate fields are to be found.
func (p Patch) strictly() bool { return p.Validation != resource.Ignore }

// jsonPatch applies a JSON patch or merge patch to the served version's JSON.
func (p Patch) jsonPatch(ctx context.Context, t Target, current runtime.Object) (runtime.Object, error) {
	codec := bodyCodec(t)
	external, err := codec.External(current)
	if err != nil {
		return nil, err
	}
	before, err := json.Marshal(external)
	if err != nil {
		return nil, err
	}
	after, complaints, err := p.patchJSON(before)
	if err != nil {
		return nil, err
	}
	object, strict, err := codec.DecodePatched(after, p.Validation)
	if err != nil {
		return nil, invalidPatch(after, err)
	}
	complaints = append(complaints, strict...)
	if len(complaints) > 0 && p.Validation == resource.Strict {
		return nil, invalidPatch(after, runtime.NewStrictDecodingError(complaints))
	}
	Warn(ctx, complaints)
	return object, track(t, current, object, p.Manager)
}

func invalidPatch(patched []byte, err error) error {
	return apierrors.NewInvalid(schema.GroupKind{}, "", field.ErrorList{
		field.Invalid(field.NewPath("patch"), string(patched), err.Error()),
	})
}

func (p Patch) patchJSON(before []byte) (after []byte, complaints []error, err error) {
	if p.Type == types.JSONPatchType {
		return p.jsonOperations(before)
	}
	if p.strictly() {
		if complaints, err = kjson.UnmarshalStrict(p.Data, &map[string]any{}); err != nil {
			return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", err))
		}
	}
	after, err = jsonpatch.MergePatch(before, p.Data)
	if errors.Is(err, jsonpatch.ErrBadJSONPatch) {
		return nil, nil, apierrors.NewBadRequest(err.Error())
	}
	return after, complaints, err
}

// jsonPatchOp is one step of a JSON patch, for strict decoding. Errors name the type to clients.
type jsonPatchOp struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	From  string `json:"from"`
	Value any    `json:"value"`
}

func (p Patch) jsonOperations(before []byte) (after []byte, complaints []error, err error) {
	if p.strictly() {
		if complaints, err = kjson.UnmarshalStrict(p.Data, &[]jsonPatchOp{}); err != nil {
			message := strings.ReplaceAll(err.Error(), fmt.Sprintf("%T", []jsonPatchOp{}), operationList)
			return nil, nil, apierrors.NewBadRequest("error decoding patch: " + message)
		}
		for i, complaint := range complaints {
			complaints[i] = fmt.Errorf("json patch %w", complaint)
		}
	}
	operations, err := jsonpatch.DecodePatch(p.Data)
	if err != nil {
		return nil, nil, apierrors.NewBadRequest(err.Error())
	}
	if len(operations) > maxPatchOperations {
		return nil, nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf(
			"The allowed maximum operations in a JSON patch is %d, got %d", maxPatchOperations, len(operations)))
	}
	after, err = applyOperations(operations, before)
	return after, complaints, err
}

func unprocessable(err error) error {
	return apierrors.NewGenericServerResponse(
		http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", err.Error(), 0, false)
}

// applyOperations applies a JSON patch. The library dereferences what is missing in some operations, such as the value
// of a test of the whole object: with kube-apiserver this is an internal error.
func applyOperations(operations jsonpatch.Patch, before []byte) (after []byte, err error) {
	defer func() {
		if recover() != nil {
			after, err = nil, apierrors.NewBadRequest("an operation of the JSON patch is incomplete")
		}
	}()
	after, err = operations.Apply(before)
	if err != nil {
		return nil, unprocessable(err)
	}
	return after, nil
}

// strategic applies a strategic merge patch, which the served version's Go type directs.
func (p Patch) strategic(ctx context.Context, t Target, current runtime.Object) (runtime.Object, error) {
	codec := bodyCodec(t)
	external, err := codec.External(current)
	if err != nil {
		return nil, err
	}
	before, err := runtime.DefaultUnstructuredConverter.ToUnstructured(external)
	if err != nil {
		return nil, err
	}
	patch := map[string]any{}
	var complaints []error
	if p.strictly() {
		complaints, err = kjson.UnmarshalStrict(p.Data, &patch)
	} else {
		err = kjson.UnmarshalCaseSensitivePreserveInts(p.Data, &patch)
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	after, err := strategicpatch.StrategicMergeMapPatch(before, patch, codec.NewExternal())
	if err != nil {
		return nil, strategicError(err)
	}
	updated := codec.NewExternal()
	if err := p.fromMap(ctx, patch, after, updated, complaints); err != nil {
		return nil, err
	}
	codec.Default(updated)
	object, err := codec.Internal(updated)
	if err != nil {
		return nil, err
	}
	return object, track(t, current, object, p.Manager)
}

// fromMap fills a typed object, reporting what it has no field for. patch is what the client sent.
func (p Patch) fromMap(ctx context.Context, patch, from map[string]any, to runtime.Object, complaints []error) error {
	err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(from, to, p.strictly())
	if err != nil {
		strict, ok := runtime.AsStrictDecodingError(err)
		if !ok {
			return invalidMap(patch, err)
		}
		complaints = append(complaints, strict.Errors()...)
	}
	if len(complaints) > 0 && p.Validation == resource.Strict {
		return invalidMap(patch, runtime.NewStrictDecodingError(complaints))
	}
	Warn(ctx, complaints)
	return nil
}

func invalidMap(patch map[string]any, err error) error {
	return apierrors.NewInvalid(schema.GroupKind{}, "", field.ErrorList{
		field.Invalid(field.NewPath("patch"), fmt.Sprintf("%+v", patch), err.Error()),
	})
}

// strategicError tells a patch that is malformed from one that does not fit the object.
func strategicError(err error) error {
	switch err {
	case mergepatch.ErrBadJSONDoc, mergepatch.ErrBadPatchFormatForPrimitiveList, mergepatch.ErrBadPatchFormatForRetainKeys,
		mergepatch.ErrBadPatchFormatForSetElementOrderList, mergepatch.ErrUnsupportedStrategicMergePatchFormat:
		return apierrors.NewBadRequest(err.Error())
	case mergepatch.ErrNoListOfLists, mergepatch.ErrPatchContentNotMatchRetainKeys:
		return unprocessable(err)
	}
	return err
}

// apply merges an applied configuration, field by field, with what others manage.
func (p Patch) apply(ctx context.Context, t Target, current runtime.Object) (runtime.Object, error) {
	fields, err := t.Endpoint.FieldManager()
	if err != nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("prepare the field manager: %w", err))
	}
	configuration := &unstructured.Unstructured{Object: map[string]any{}}
	if err := yaml.Unmarshal(p.Data, &configuration.Object); err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("error decoding YAML: %v", err))
	}
	if current == nil {
		current = bodyCodec(t).NewExternal()
	}
	object, err := fields.Apply(current, configuration, p.Manager, p.Force)
	if err != nil {
		return nil, err
	}
	if !p.strictly() {
		return object, nil
	}
	if err := yaml.UnmarshalStrict(p.Data, &map[string]any{}); err != nil {
		if p.Validation == resource.Strict {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("error strict decoding YAML: %v", err))
		}
		Warn(ctx, []error{err})
	}
	return object, nil
}

// Warn sends complaints about a body to the client as warnings, those of the YAML decoder line by line.
func Warn(ctx context.Context, complaints []error) {
	for _, complaint := range complaints {
		text := complaint.Error()
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
