package builtintest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"
	"sigs.k8s.io/yaml"

	"quorate.dev/apiserver/registry/strategy"
	"quorate.dev/apiserver/resource"
)

// UID is the UID of the objects of writes.
const UID = "5e6c0b3f-2a0e-4a55-9a4f-6f7b4d0f2a11"

// Write is the create or the update of an object, and its expected result. The object is decoded, defaulted, prepared,
// validated and encoded for storage as in a request to the server, but not stored.
type Write struct {
	// Endpoint is the plural of the resource, with the subresource after a slash, such as "deployments/status".
	Endpoint string
	// Version is the version of the objects; the default is the preferred version.
	Version string
	// User is the name of the client; the default is "alice".
	User string
	// Object is the object that the client creates, in YAML.
	Object string
	// With is a merge patch of Object, in YAML; optional.
	With string
	// Stored is a merge patch of the created object that simulates earlier updates, such as a status; optional.
	Stored string
	// Update is the merge patch that the client sends to Endpoint, in YAML. If it is empty, the write is a create.
	Update string

	// Want has the expected values of fields of the object that is read after the write, or of its parent if Endpoint is a
	// view. The value of an absent field is empty; the values of other fields than strings are in JSON.
	Want map[string]string
	// Errors are the expected validation errors, each with the path of its field. An error that is not a validation error
	// is its text.
	Errors []string
	// Warnings are the expected warnings.
	Warnings []string
}

// CheckWrites runs a subtest for each write to the resources of a group.
func CheckWrites(t *testing.T, definitions []*resource.Definition, writes map[string]Write) {
	t.Helper()
	for name, write := range writes {
		t.Run(name, func(t *testing.T) { write.check(t, definitions) })
	}
}

func (w Write) check(t *testing.T, definitions []*resource.Definition) {
	t.Helper()
	codec, object, warned, err := w.run(t, definitions)
	if got := messages(err); !slices.Equal(got, w.Errors) {
		t.Errorf("got the errors\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(w.Errors, "\n\t"))
	}
	if !slices.Equal(warned, w.Warnings) {
		t.Errorf("got the warnings\n\t%s\nwant\n\t%s", strings.Join(warned, "\n\t"), strings.Join(w.Warnings, "\n\t"))
	}
	if err == nil {
		Must[metav1.Object](t)(meta.Accessor(object)).SetResourceVersion("")
		stored := Must[[]byte](t)(codec.Store(t.Context(), object))
		CheckFields(t, Must[runtime.Object](t)(codec.LoadExternal(t.Context(), stored)), w.Want)
	}
}

// Errs returns the errors of the write, in the form of Errors.
func (w Write) Errs(t *testing.T, definitions []*resource.Definition) []string {
	t.Helper()
	_, _, _, err := w.run(t, definitions)
	return messages(err)
}

// run returns the codec of the resource, the written object, the warnings and the error of the write.
func (w Write) run(t *testing.T, definitions []*resource.Definition) (
	codec resource.Codec, object runtime.Object, warned []string, err error,
) {
	t.Helper()
	plural, subresource, _ := strings.Cut(w.Endpoint, "/")
	target := FindTarget(t, definitions, plural, w.Version)
	recorder := &warnings{}
	object, err = created(warning.WithWarningRecorder(t.Context(), recorder), t, target, w)
	if w.Update != "" {
		if err != nil {
			t.Fatalf("create the object: %v", err)
		}
		recorder = &warnings{}
		target.Endpoint = target.Version.Endpoints[subresource]
		if target.Endpoint == nil {
			t.Fatalf("there is no endpoint %s", w.Endpoint)
		}
		object, err = updated(warning.WithWarningRecorder(t.Context(), recorder), t, target, object, w)
	}
	return target.Version.Codec, object, recorder.texts, err
}

// FindTarget returns the target of requests to a resource. The default of version is the preferred version.
func FindTarget(t *testing.T, definitions []*resource.Definition, plural, version string) resource.Target {
	t.Helper()
	for _, d := range definitions {
		if d.Plural != plural {
			continue
		}
		if v := d.Version(cmp.Or(version, d.Versions[0].Name)); v != nil {
			return resource.Target{Match: resource.Match{Definition: d, Version: v}, Endpoint: v.Endpoints[""]}
		}
	}
	t.Fatalf("%s are not served in version %q", plural, version)
	return resource.Target{}
}

// Decode decodes an object in YAML, in the version of the target's endpoint, into the internal version.
func Decode(t *testing.T, target resource.Target, object string) runtime.Object {
	t.Helper()
	return decodeJSON(t, target.BodyCodec(), Must[[]byte](t)(yaml.YAMLToJSON([]byte(object))))
}

func decodeJSON(t *testing.T, codec resource.Codec, object []byte) runtime.Object {
	t.Helper()
	internal, _, strict, err := codec.Decode(object, runtime.ContentTypeJSON, resource.Strict)
	if err != nil || len(strict) > 0 {
		t.Fatalf("decode %s: %v %v", object, err, strict)
	}
	return internal
}

// created runs the create of a write.
func created(ctx context.Context, t *testing.T, target resource.Target, w Write) (runtime.Object, error) {
	t.Helper()
	object := patched(t, Must[[]byte](t)(yaml.YAMLToJSON([]byte(w.Object))), w.With)
	internal := decodeJSON(t, target.Version.Codec, object)
	accessor := Must[metav1.Object](t)(meta.Accessor(internal))
	target.Namespace, target.Name = accessor.GetNamespace(), accessor.GetName()
	rest.FillObjectMetaSystemFields(accessor)
	accessor.SetUID(UID)
	if err := strategy.BeforeCreate(withRequest(ctx, target, "create", w.User), target, internal); err != nil {
		return nil, err
	}
	if w.Update == "" {
		return internal, nil
	}
	accessor.SetResourceVersion("1")
	external := Must[runtime.Object](t)(target.Version.Codec.External(internal))
	return decodeJSON(t, target.Version.Codec, patched(t, Must[[]byte](t)(json.Marshal(external)), w.Stored)), nil
}

// updated runs the update of a write.
func updated(
	ctx context.Context, t *testing.T, target resource.Target, old runtime.Object, w Write,
) (runtime.Object, error) {
	t.Helper()
	accessor := Must[metav1.Object](t)(meta.Accessor(old))
	target.Namespace, target.Name = accessor.GetNamespace(), accessor.GetName()
	shown := old
	view := target.Endpoint.View
	if view != nil {
		shown = Must[runtime.Object](t)(view.Get(old))
	}
	external := Must[runtime.Object](t)(target.BodyCodec().External(shown))
	object := decodeJSON(t, target.BodyCodec(), patched(t, Must[[]byte](t)(json.Marshal(external)), w.Update))
	if view != nil {
		if err := view.Validate(withRequest(ctx, target, "update", w.User), object, shown); err != nil {
			return nil, err
		}
		parent := old.DeepCopyObject()
		if err := view.Set(parent, object); err != nil {
			return nil, err
		}
		object = parent
	}
	return object, strategy.BeforeUpdate(withRequest(ctx, target, "update", w.User), target, object, old)
}

// withRequest returns the context of a request, which strategies read.
func withRequest(ctx context.Context, target resource.Target, verb, user string) context.Context {
	ctx = WithUser(target.WithNamespace(ctx), cmp.Or(user, "alice"))
	return withRequestInfo(ctx, target, verb)
}

// withRequestInfo returns a context with the RequestInfo of a request to the target.
func withRequestInfo(ctx context.Context, target resource.Target, verb string) context.Context {
	return request.WithRequestInfo(ctx, &request.RequestInfo{
		IsResourceRequest: true, Verb: verb, APIGroup: target.Group, APIVersion: target.Version.Name,
		Resource: target.Plural, Subresource: target.Endpoint.Subresource, Namespace: target.Namespace, Name: target.Name,
	})
}

// patched applies a merge patch in YAML to an object in JSON.
func patched(t *testing.T, object []byte, patch string) []byte {
	t.Helper()
	if patch == "" {
		return object
	}
	return Must[[]byte](t)(jsonpatch.MergePatch(object, Must[[]byte](t)(yaml.YAMLToJSON([]byte(patch)))))
}

// messages returns the validation errors of an API status, each with its field, or the text of another error.
func messages(err error) []string {
	var status *apierrors.StatusError
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &status) || !apierrors.IsInvalid(err):
		return []string{err.Error()}
	}
	var all []string
	for _, cause := range status.ErrStatus.Details.Causes {
		all = append(all, cause.Field+": "+cause.Message)
	}
	return all
}

// CheckFields fails the test if fields of an object differ from want, as Write.Want describes it. A path has the names
// of fields, separated by dots; brackets have the index of a list or the key of a map.
func CheckFields(t *testing.T, object runtime.Object, want map[string]string) {
	t.Helper()
	var content any
	if err := json.Unmarshal(Must[[]byte](t)(json.Marshal(object)), &content); err != nil {
		t.Fatal(err)
	}
	for path, value := range want {
		if got := valueAt(content, path); got != value {
			t.Errorf("%s: got %s, want %s", path, quoted(got), quoted(value))
		}
	}
}

func quoted(value string) string {
	if value == "" {
		return "no value"
	}
	return strconv.Quote(value)
}

// valueAt returns the value at a path of an object, in the form of Write.Want.
func valueAt(value any, path string) string {
	for path != "" && value != nil {
		var key string
		if inside, bracket := strings.CutPrefix(path, "["); bracket {
			key, path, _ = strings.Cut(inside, "]")
			path = strings.TrimPrefix(path, ".")
		} else {
			end := strings.IndexAny(path, ".[")
			if end < 0 {
				end = len(path)
			}
			key, path = path[:end], strings.TrimPrefix(path[end:], ".")
		}
		value = child(value, key)
	}
	switch v := value.(type) {
	case nil:
		return ""
	case string:
		return v
	}
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprint(value)
	}
	return string(text)
}

func child(value any, key string) any {
	switch v := value.(type) {
	case map[string]any:
		return v[key]
	case []any:
		if i, err := strconv.Atoi(key); err == nil && i >= 0 && i < len(v) {
			return v[i]
		}
	}
	return nil
}

// warnings records warnings. It implements warning.Recorder.
type warnings struct{ texts []string }

// AddWarning implements warning.Recorder.
func (w *warnings) AddWarning(_, text string) { w.texts = append(w.texts, text) }
