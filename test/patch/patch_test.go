// Package patch compares the results of patches with those of kube-apiserver's handler.
package patch

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/registry/change"
	ownrequest "quorate.dev/apiserver/request"
	"quorate.dev/apiserver/resource"
)

const (
	namespace = "default"
	name      = "a"
	manager   = "fuzz"
)

// patchTypes are the four kinds of patches.
var patchTypes = []types.PatchType{
	types.JSONPatchType, types.MergePatchType, types.StrategicMergePatchType, types.ApplyYAMLPatchType,
}

// subjects are objects to be patched, with lists that are merged in different ways.
var subjects = []struct{ group, version, resource, json string }{
	{"", "v1", "configmaps", `{
		"metadata":{"labels":{"a":"b"},"finalizers":["example.com/f"]},"data":{"k":"v"}}`},
	{"", "v1", "services", `{"spec":{"selector":{"a":"b"},"clusterIP":"10.0.0.1","ports":[
		{"name":"a","port":80,"protocol":"TCP","targetPort":80},
		{"name":"b","port":53,"protocol":"UDP","targetPort":"dns"}]}}`},
	{"apps", "v1", "deployments", `{"spec":{"replicas":2,"selector":{"matchLabels":{"a":"b"}},
		"template":{"metadata":{"labels":{"a":"b"}},"spec":{
			"containers":[{"name":"c","image":"i","env":[{"name":"A","value":"1"}],
				"ports":[{"containerPort":80}],"volumeMounts":[{"name":"v","mountPath":"/v"}]}],
			"volumes":[{"name":"v","emptyDir":{}}],"tolerations":[{"key":"a","operator":"Exists"}]}}},
		"status":{"replicas":1,"conditions":[{"type":"Available","status":"True"}]}}`},
	{"autoscaling", "v1", "horizontalpodautoscalers", `{"metadata":{"annotations":{"a":"b"}},
		"spec":{"maxReplicas":3,"scaleTargetRef":{"kind":"Deployment","name":"d"}}}`},
}

// kind is what objects of one resource are patched with.
type kind struct {
	target  resource.Target
	scope   *handlers.RequestScope
	current runtime.Object // internal
}

func newKinds(t testing.TB) []*kind {
	t.Helper()
	catalog := resource.NewCatalog(builtin.Definitions(builtin.Options{})...)
	var kinds []*kind
	for _, subject := range subjects {
		match, ok := catalog.Lookup(subject.group, subject.version, subject.resource)
		if !ok {
			t.Fatalf("%s is not served", subject.resource)
		}
		k := &kind{target: targetOf(match)}
		k.current = k.object(t, subject.json)
		k.scope = k.upstream(t)
		kinds = append(kinds, k)
	}
	return kinds
}

func targetOf(match resource.Match) resource.Target {
	return resource.Target{Match: match, Endpoint: match.Version.Endpoints[""], Namespace: namespace, Name: name}
}

// object is the current one, as it was applied by another manager.
func (k *kind) object(t testing.TB, text string) runtime.Object {
	t.Helper()
	body := map[string]any{}
	if err := json.Unmarshal([]byte(text), &body); err != nil {
		t.Fatal(err)
	}
	gvk := k.target.Version.Kind
	body["apiVersion"], body["kind"] = gvk.GroupVersion().String(), gvk.Kind
	metadata, _ := body["metadata"].(map[string]any)
	if metadata == nil {
		metadata = map[string]any{}
	}
	metadata["name"], body["metadata"] = name, metadata
	configuration, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	applied := change.Patch{Type: types.ApplyYAMLPatchType, Data: configuration, Manager: "one"}
	object, err := applied.Apply(t.Context(), k.target, nil)
	if err != nil {
		t.Fatal(err)
	}
	accessor, err := meta.Accessor(object)
	if err != nil {
		t.Fatal(err)
	}
	accessor.SetUID("00000000-0000-0000-0000-000000000001")
	accessor.SetResourceVersion("7")
	accessor.SetCreationTimestamp(metav1.Unix(1577934245, 0))
	return object
}

// upstream is the scope of the resource for kube-apiserver's handler.
func (k *kind) upstream(t testing.TB) *handlers.RequestScope {
	t.Helper()
	fields, err := k.target.Endpoint.FieldManager()
	if err != nil {
		t.Fatal(err)
	}
	gvk := k.target.Version.Kind
	return &handlers.RequestScope{
		Namer:           handlers.ContextBasedNaming{Namer: runtime.Namer(meta.NewAccessor())},
		Serializer:      legacyscheme.Codecs,
		ParameterCodec:  legacyscheme.ParameterCodec,
		Creater:         legacyscheme.Scheme,
		Convertor:       legacyscheme.Scheme,
		Defaulter:       legacyscheme.Scheme,
		Typer:           legacyscheme.Scheme,
		UnsafeConvertor: runtime.UnsafeObjectConvertor(legacyscheme.Scheme),
		Authorizer:      authorizerfactory.NewAlwaysAllowAuthorizer(),

		EquivalentResourceMapper: runtime.NewEquivalentResourceRegistry(),
		TableConvertor:           rest.NewDefaultTableConvertor(k.target.GroupResource()),
		FieldManager:             fields,
		Resource:                 gvk.GroupVersion().WithResource(k.target.Plural),
		Kind:                     gvk,
		HubGroupVersion:          schema.GroupVersion{Group: gvk.Group, Version: runtime.APIVersionInternal},
		MetaGroupVersion:         metav1.SchemeGroupVersion,
		MaxRequestBodyBytes:      3 << 20,
	}
}

// patch is one request.
type patch struct {
	kind       *kind
	patchType  types.PatchType
	data       []byte
	validation resource.FieldValidation
	force      bool
	missing    bool // there is no current object
}

// answer is the response to the client.
type answer struct {
	Status   *metav1.Status
	Object   map[string]any
	Warnings []string
	// Panicked is set where kube-apiserver's handler panics.
	Panicked bool
}

// recorder collects warnings, each once.
type recorder struct{ warnings []string }

func (r *recorder) AddWarning(_, text string) {
	if !slices.Contains(r.warnings, text) {
		r.warnings = append(r.warnings, text)
	}
}

// ours returns the response of this server.
func (p patch) ours(ctx context.Context) (answer, error) {
	warnings := &recorder{}
	ctx = warning.WithWarningRecorder(ctx, warnings)
	sent := change.Patch{Type: p.patchType, Data: p.data, Manager: manager, Force: p.force, Validation: p.validation}
	var current runtime.Object
	if !p.missing {
		current = p.kind.current.DeepCopyObject()
	}
	object, err := sent.Apply(ctx, p.kind.target, current)
	if err != nil {
		return answer{Status: ownrequest.StatusOf(err), Warnings: warnings.warnings}, nil
	}
	external, err := p.kind.target.Version.Codec.External(object)
	if err != nil {
		return answer{}, err
	}
	encoded, err := json.Marshal(external)
	if err != nil {
		return answer{}, err
	}
	return shown(encoded, warnings)
}

// theirs returns the response of kube-apiserver's handler.
func (p patch) theirs(ctx context.Context) (a answer, err error) {
	defer func() {
		if recover() != nil {
			a, err = answer{Panicked: true}, nil
		}
	}()
	warnings := &recorder{}
	query := url.Values{"fieldValidation": {string(p.validation)}, "fieldManager": {manager}}
	if p.force && p.patchType == types.ApplyYAMLPatchType {
		query.Set("force", "true")
	}
	ctx = warning.WithWarningRecorder(audit.WithAuditContext(ctx), warnings)
	gvr := p.kind.scope.Resource
	ctx = request.WithRequestInfo(ctx, &request.RequestInfo{
		IsResourceRequest: true, Verb: "patch", Namespace: namespace, Name: name,
		APIGroup: gvr.Group, APIVersion: gvr.Version, Resource: gvr.Resource,
	})
	sent, err := http.NewRequestWithContext(ctx, http.MethodPatch, "/?"+query.Encode(), bytes.NewReader(p.data))
	if err != nil {
		return answer{}, err
	}
	sent.Header.Set("Content-Type", string(p.patchType))
	sent.Header.Set("Accept", "application/json")
	response := httptest.NewRecorder()
	accepted := make([]string, len(patchTypes))
	for i, patchType := range patchTypes {
		accepted[i] = string(patchType)
	}
	handlers.PatchResource(&patcher{p}, p.kind.scope, nil, accepted)(response, sent)
	if response.Code/100 == 2 {
		return shown(response.Body.Bytes(), warnings)
	}
	status := &metav1.Status{}
	return answer{Status: status, Warnings: warnings.warnings}, json.Unmarshal(response.Body.Bytes(), status)
}

// shown parses an object, without the times of its managed fields.
func shown(encoded []byte, warnings *recorder) (answer, error) {
	a := answer{Warnings: warnings.warnings}
	if err := json.Unmarshal(encoded, &a.Object); err != nil {
		return a, err
	}
	metadata, _ := a.Object["metadata"].(map[string]any)
	managers, _ := metadata["managedFields"].([]any)
	for _, entry := range managers {
		delete(entry.(map[string]any), "time")
	}
	return a, nil
}

// patcher stores nothing.
type patcher struct{ patch }

var _ rest.Patcher = &patcher{}

func (p *patcher) New() runtime.Object { return p.kind.target.Version.Codec.New() }

func (p *patcher) Destroy() {}

func (p *patcher) Get(context.Context, string, *metav1.GetOptions) (runtime.Object, error) {
	return p.kind.current.DeepCopyObject(), nil
}

// Update implements rest.Updater.
func (p *patcher) Update(
	ctx context.Context, _ string, info rest.UpdatedObjectInfo,
	_ rest.ValidateObjectFunc, _ rest.ValidateObjectUpdateFunc, _ bool, _ *metav1.UpdateOptions,
) (runtime.Object, bool, error) {
	existing := p.New()
	if !p.missing {
		existing = p.kind.current.DeepCopyObject()
	}
	updated, err := info.UpdatedObject(ctx, existing)
	return updated, false, err
}

// refusedEarlier reports whether kube-apiserver has refused a patch before it is logged. apiserver/handlers refuses the
// same patches with the same texts, before it calls the package that this test calls.
func refusedEarlier(status *metav1.Status) bool {
	return status != nil &&
		(status.Message == "invalid JSON patch" || strings.HasPrefix(status.Message, "error encoding patch: "))
}

// compare fails if the answers differ. It reports whether the patch was accepted.
func (p patch) compare(t *testing.T) (accepted bool) {
	t.Helper()
	want, err := p.theirs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got, err := p.ours(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case want.Panicked && got.Status != nil && got.Status.Code == http.StatusBadRequest:
		return false
	case refusedEarlier(want.Status) && got.Status != nil:
		return false
	case p.examinedLater(got.Object):
		return true
	}
	for _, status := range []*metav1.Status{want.Status, got.Status} {
		if status != nil && oneOfMany.MatchString(status.Message) {
			status.Message = oneOfMany.FindString(status.Message)
		}
	}
	if difference := cmp.Diff(want, got); difference != "" {
		t.Errorf("%s of %s with %q (%s, force %v, missing %v), kube-apiserver (-) and ours (+):\n%s",
			p.patchType, p.kind.target.Plural, p.data, p.validation, p.force, p.missing, difference)
	}
	return want.Object != nil
}

// oneOfMany is the beginning of messages that go on with what is found first, of fields in any order.
var oneOfMany = regexp.MustCompile(`^failed to create typed patch object \([^)]*\): `)

// examinedLater reports whether an object has what upstream's handler examines, and ours leaves to the registry: a UID
// where nothing has been stored, and repeated owners.
func (p patch) examinedLater(object map[string]any) bool {
	metadata, _ := object["metadata"].(map[string]any)
	owners, _ := metadata["ownerReferences"].([]any)
	return len(owners) > 1 || p.missing && metadata["uid"] != nil
}

// numbered returns the patch of the given numbers.
func numbered(kinds []*kind, which, how, validation uint8, data []byte) patch {
	return patch{
		kind: kinds[int(which)%len(kinds)], patchType: patchTypes[int(how)%len(patchTypes)], data: data,
		validation: []resource.FieldValidation{resource.Ignore, resource.Warn, resource.Strict}[int(validation)%3],
		force:      validation&0x40 != 0, missing: validation&0x80 != 0,
	}
}

// examples are patches of each kind, some of them wrong.
var examples = map[types.PatchType][]string{
	types.JSONPatchType: {
		`[{"op":"add","path":"/metadata/labels","value":{"x":"y"}}]`,
		`[{"op":"remove","path":"/spec"}]`,
		`[{"op":"test","path":"/kind","value":"x"}]`,
		`[{"op":"replace","path":"/spec/replicas","value":3},
			{"op":"copy","from":"/spec/replicas","path":"/spec/minReadySeconds"}]`,
		`[{"op":"move","from":"/data/k","path":"/data/l"}]`,
		`[{"op":"add","path":"/spec/ports/-","value":{"port":1}}]`,
		`{"op":"add"}`,
		`[]`,
		`[null]`,
		`[[]]`,
		`[{"op":"test","path":""}]`,
		`[{"op":{}}]`,
		`[{"op":"add","path":"/spec/ports/-1","value":1}]`,
		`[{"op":"add","path":"","value":null}]`,
		`[{"op":"x","path":"/","extra":1}]`,
	},
	types.MergePatchType: {
		`{"metadata":{"labels":{"x":"y"}}}`,
		`{"spec":null}`,
		`{"spec":{"ports":[{"port":1}]}}`,
		`{"metadata":{"name":"b"}}`,
		`null`,
		`[]`,
		`1`,
		``,
		`{"data":{"k":1}}`,
		`{"spec":{"replicas":"many"}}`,
		`{"spec":{"unknown":1},"spec":{"unknown":2}}`,
		`{"metadata":{"namespace":"other"}}`,
	},
	types.StrategicMergePatchType: {
		`{"metadata":{"finalizers":["example.com/g"]}}`,
		`{"spec":{"ports":[{"port":80,"name":"x"}]}}`,
		`{"spec":{"ports":[{"$patch":"replace"}]}}`,
		`{"spec":{"template":{"spec":{"containers":[{"name":"c","env":[{"name":"A","$patch":"delete"}]}]}}}}`,
		`{"spec":{"template":{"spec":{"$setElementOrder/containers":[{"name":"c"}],"containers":[{"name":"d"}]}}}}`,
		`{"spec":{"strategy":{"$retainKeys":["type"],"type":"Recreate"}}}`,
		`{"metadata":{"$deleteFromPrimitiveList/finalizers":["example.com/f"]}}`,
		`{"spec":{"template":{"spec":{"volumes":[{"name":"v","$retainKeys":["name","hostPath"],"hostPath":{"path":"/"}}]}}}}`,
		`{"$patch":"delete"}`,
		`[]`,
		`null`,
	},
	types.ApplyYAMLPatchType: {
		"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {k: w}\n",
		"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\nspec: {replicas: 3}\n",
		`{"apiVersion":"v1","kind":"Service","metadata":{"name":"a"},
			"spec":{"ports":[{"port":80,"protocol":"TCP","name":"z"}]}}`,
		"a: [",
		"null",
		"- a",
		"",
		"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, managedFields: [{}]}\n",
		"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: null\ndata: {}\n",
	},
}

// FuzzPatchLikeUpstream: this server and kube-apiserver's handler return equal results for any patch.
func FuzzPatchLikeUpstream(f *testing.F) {
	for how, patchType := range patchTypes {
		for i, text := range examples[patchType] {
			for which := range subjects {
				f.Add(uint8(which), uint8(how), uint8(i%3)|uint8(i%4)<<6, []byte(text))
			}
		}
	}
	kinds := newKinds(f)
	f.Fuzz(func(t *testing.T, which, how, validation uint8, data []byte) {
		numbered(kinds, which, how, validation, data).compare(t)
	})
}

// TestPatchesLikeUpstream compares the examples with all options.
func TestPatchesLikeUpstream(t *testing.T) {
	kinds := newKinds(t)
	for how, patchType := range patchTypes {
		outcomes := map[bool]int{}
		for _, text := range examples[patchType] {
			for which := range kinds {
				for validation := range 12 {
					p := numbered(kinds, uint8(which), uint8(how), uint8(validation%3)|uint8(validation/3)<<6, []byte(text))
					outcomes[p.compare(t)]++
				}
			}
		}
		if outcomes[true] < 10 || outcomes[false] < 10 {
			t.Errorf("%s: %d are accepted and %d refused: the examples prove little", patchType, outcomes[true], outcomes[false])
		}
	}
}
