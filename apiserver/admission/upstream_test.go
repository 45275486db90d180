package admission

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	upstream "k8s.io/apiserver/pkg/admission"
	auditapi "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/warning"

	"quorate.dev/apiserver/resource"
)

// mutation is an upstream plugin that mutates.
type mutation struct {
	*upstream.Handler
	admit func(a upstream.Attributes, o upstream.ObjectInterfaces) error
}

func (m mutation) Admit(_ context.Context, a upstream.Attributes, o upstream.ObjectInterfaces) error {
	return m.admit(a, o)
}

func newMutation(admit func(a upstream.Attributes, o upstream.ObjectInterfaces) error) mutation {
	return mutation{upstream.NewHandler(upstream.Create), admit}
}

// events returns a catalog in which two groups serve the same objects.
func events() (*resource.CatalogHolder, *resource.Definition) {
	version := func(group, name string, subresources ...string) *resource.Version {
		kind := schema.GroupVersionKind{Group: group, Version: name, Kind: "Event"}
		v := &resource.Version{Name: name, Kind: kind, Endpoints: map[string]*resource.Endpoint{"": {Kind: kind}}}
		for _, subresource := range subresources {
			v.Endpoints[subresource] = &resource.Endpoint{Subresource: subresource, Kind: kind}
		}
		return v
	}
	core := &resource.Definition{
		Plural: "events", StoragePath: "events", Versions: []*resource.Version{version("", "v1", "status")},
	}
	other := &resource.Definition{
		Group: "events.k8s.io", Plural: "events", StoragePath: "events",
		Versions: []*resource.Version{version("events.k8s.io", "v1")},
	}
	holder := &resource.CatalogHolder{}
	holder.Publish(resource.NewCatalog(core, other))
	return holder, core
}

func TestPluginsRunAgainWhenOneAsks(t *testing.T) {
	holder, definition := events()
	rounds := 0
	again := newMutation(func(a upstream.Attributes, _ upstream.ObjectInterfaces) error {
		if rounds++; a.GetReinvocationContext().IsReinvoke() != (rounds == 2) {
			t.Errorf("round %d: reinvoked is %v", rounds, a.GetReinvocationContext().IsReinvoke())
		}
		a.GetReinvocationContext().SetShouldReinvoke()
		return nil
	})
	chain := &Chain{Plugins: []Plugin{Upstream("again", again, holder)}}
	if err := chain.Admit(t.Context(), &Attributes{Operation: Create, Definition: definition}); err != nil || rounds != 2 {
		t.Errorf("%d rounds, want 2: %v", rounds, err)
	}
}

// TestValuesOfTheFirstRound: a webhook that stores the object in the first round can be skipped in the second round if
// the object is unchanged.
func TestValuesOfTheFirstRound(t *testing.T) {
	holder, definition := events()
	var seen []any
	keep := newMutation(func(a upstream.Attributes, _ upstream.ObjectInterfaces) error {
		round := a.GetReinvocationContext()
		seen = append(seen, round.Value("keep"), round.Value("other"))
		round.SetValue("keep", "kept")
		round.SetShouldReinvoke()
		return nil
	})
	chain := &Chain{Plugins: []Plugin{Upstream("keep", keep, holder)}}
	if err := chain.Admit(t.Context(), &Attributes{Operation: Create, Definition: definition}); err != nil {
		t.Fatal(err)
	}
	if want := []any{nil, nil, "kept", nil}; !slices.Equal(seen, want) {
		t.Errorf("got %v, want %v", seen, want)
	}
}

// TestUpstreamPluginSeesTheWrite has all attributes of a write as upstream's plugins read them.
func TestUpstreamPluginSeesTheWrite(t *testing.T) {
	holder, definition := events()
	object, old := &corev1.Event{Reason: "New"}, &corev1.Event{Reason: "Old"}
	options, client := &metav1.UpdateOptions{}, &user.DefaultInfo{Name: "alice"}
	attributes := &Attributes{
		Operation: Update, Definition: definition, Version: definition.Versions[0], Subresource: "status",
		Kind: definition.Versions[0].Kind, Namespace: "default", Name: "a", Object: object, Old: old, Options: options,
		DryRun: true, User: client,
	}
	calls := 0
	check := newMutation(func(a upstream.Attributes, _ upstream.ObjectInterfaces) error {
		calls++
		want := upstream.NewAttributesRecord(object, old, schema.GroupVersionKind{Version: "v1", Kind: "Event"}, "default",
			"a", schema.GroupVersionResource{Version: "v1", Resource: "events"}, "status", upstream.Update, options, true,
			client)
		for what, values := range map[string][2]any{
			"object": {a.GetObject(), want.GetObject()}, "old object": {a.GetOldObject(), want.GetOldObject()},
			"kind": {a.GetKind(), want.GetKind()}, "namespace": {a.GetNamespace(), want.GetNamespace()},
			"name": {a.GetName(), want.GetName()}, "resource": {a.GetResource(), want.GetResource()},
			"subresource": {a.GetSubresource(), want.GetSubresource()},
			"operation":   {a.GetOperation(), want.GetOperation()},
			"options":     {a.GetOperationOptions(), want.GetOperationOptions()},
			"dry run":     {a.IsDryRun(), want.IsDryRun()}, "user": {a.GetUserInfo(), want.GetUserInfo()},
		} {
			if values[0] != values[1] {
				t.Errorf("%s: got %v, want %v", what, values[0], values[1])
			}
		}
		return nil
	})
	check.Handler = upstream.NewHandler(upstream.Update)
	// The limit of CPU time must not change the error of a plugin that is within the limit.
	chain := &Chain{Plugins: []Plugin{Upstream("check", check, holder).WithinCPU(time.Minute)}}
	if err := chain.Admit(t.Context(), attributes); err != nil || calls != 1 {
		t.Errorf("%d calls, %v", calls, err)
	}
}

// TestPanicsRejectTheWrite: the panic of a plugin, such as of the library that applies patches, rejects the write with
// the text that kube-apiserver has for a panic in a validating webhook.
func TestPanicsRejectTheWrite(t *testing.T) {
	holder, definition := events()
	panics := newMutation(func(upstream.Attributes, upstream.ObjectInterfaces) error { panic("bad patch") })
	chain := &Chain{Plugins: []Plugin{Upstream("panics", panics, holder)}}
	err := chain.Admit(t.Context(), &Attributes{Operation: Create, Definition: definition})
	if !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), "panics has panicked: bad patch") {
		t.Errorf("got %v", err)
	}
}

// TestAnnotationsOfTheAuditEvent: annotations are added to the audit event of the request if its level is high enough,
// and a write without an audit event ignores them.
func TestAnnotationsOfTheAuditEvent(t *testing.T) {
	for level, want := range map[auditapi.Level]map[string]string{
		auditapi.LevelMetadata: {"h/always": "1"},
		auditapi.LevelRequest:  {"h/always": "1", "h/patch": "2"},
		auditapi.LevelNone:     nil,
	} {
		holder, definition := events()
		annotate := newMutation(func(a upstream.Attributes, _ upstream.ObjectInterfaces) error {
			return errors.Join(a.AddAnnotation("h/always", "1"), a.AddAnnotationWithLevel("h/patch", "2", auditapi.LevelRequest))
		})
		chain := &Chain{Plugins: []Plugin{Upstream("annotate", annotate, holder)}}
		ctx := audit.WithAuditContext(t.Context())
		if err := audit.AuditContextFrom(ctx).Init(audit.RequestAuditConfig{Level: level}, nil); err != nil {
			t.Fatal(err)
		}
		for _, ctx := range []context.Context{ctx, t.Context()} {
			if err := chain.Admit(ctx, &Attributes{Operation: Create, Definition: definition}); err != nil {
				t.Fatal(err)
			}
		}
		if got := audit.AuditContextFrom(ctx).GetEventAnnotations(); !maps.Equal(got, want) {
			t.Errorf("level %s: got %v, want %v", level, got, want)
		}
	}
}

func TestRejectionEndsTheFirstRound(t *testing.T) {
	holder, definition := events()
	rounds, rejection := 0, errors.New("rejected")
	reject := newMutation(func(a upstream.Attributes, _ upstream.ObjectInterfaces) error {
		rounds++
		a.GetReinvocationContext().SetShouldReinvoke()
		return rejection
	})
	chain := &Chain{Plugins: []Plugin{Upstream("reject", reject, holder)}}
	err := chain.Admit(t.Context(), &Attributes{Operation: Create, Definition: definition})
	if !errors.Is(err, rejection) || rounds != 1 {
		t.Errorf("%d rounds, %v", rounds, err)
	}
}

type warnings []string

func (w *warnings) AddWarning(_, text string) { *w = append(*w, text) }

func TestInvalidManagedFieldsAreRestored(t *testing.T) {
	before := []metav1.ManagedFieldsEntry{{
		Manager: "m", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", FieldsType: "FieldsV1",
	}}
	for name, test := range map[string]struct {
		after    []metav1.ManagedFieldsEntry
		restored bool
	}{
		"valid":   {[]metav1.ManagedFieldsEntry{}, false},
		"invalid": {[]metav1.ManagedFieldsEntry{{Manager: "w", Operation: "Nonsense"}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			holder, definition := events()
			object := &corev1.Event{ObjectMeta: metav1.ObjectMeta{ManagedFields: before}}
			change := newMutation(func(a upstream.Attributes, _ upstream.ObjectInterfaces) error {
				a.GetObject().(*corev1.Event).ManagedFields = test.after
				return nil
			})
			chain := &Chain{Plugins: []Plugin{Upstream("change", change, holder)}}
			var recorded warnings
			ctx := warning.WithWarningRecorder(t.Context(), &recorded)
			if err := chain.Admit(ctx, &Attributes{Operation: Create, Definition: definition, Object: object}); err != nil {
				t.Fatal(err)
			}
			if restored := len(object.ManagedFields) == 1 && object.ManagedFields[0].Manager == "m"; restored != test.restored {
				t.Errorf("restored is %v: %v", restored, object.ManagedFields)
			}
			if (len(recorded) == 1) != test.restored {
				t.Errorf("warnings: %q", recorded)
			}
		})
	}
}

func TestEquivalentResources(t *testing.T) {
	holder, _ := events()
	core := schema.GroupVersionResource{Version: "v1", Resource: "events"}
	other := schema.GroupVersionResource{Group: "events.k8s.io", Version: "v1", Resource: "events"}
	mapper := interfaces{catalog: holder}.GetEquivalentResourceMapper()
	if got := mapper.EquivalentResourcesFor(other, ""); !slices.Equal(got, []schema.GroupVersionResource{core, other}) {
		t.Errorf("got %v", got)
	}
	if got := mapper.EquivalentResourcesFor(core, "status"); !slices.Equal(got, []schema.GroupVersionResource{core}) {
		t.Errorf("status: %v", got)
	}
	if got := mapper.KindFor(other, ""); got.Group != "events.k8s.io" || got.Kind != "Event" {
		t.Errorf("kind: %v", got)
	}
	if got := mapper.KindFor(other, "status"); !got.Empty() {
		t.Errorf("kind of a subresource that is not served: %v", got)
	}
	if got := mapper.EquivalentResourcesFor(schema.GroupVersionResource{Resource: "none"}, ""); got != nil {
		t.Errorf("of an unknown resource: %v", got)
	}
}

// selected selects the writes of one group.
type selected string

func (s selected) MaySelect(_ string, resource schema.GroupResource, _ string) bool {
	return resource.Group == string(s)
}

func TestPluginsAreCalledForEquivalentResources(t *testing.T) {
	holder, definition := events()
	for group, want := range map[string]int{"events.k8s.io": 1, "": 1, "apps": 0} {
		calls := 0
		count := newMutation(func(upstream.Attributes, upstream.ObjectInterfaces) error { calls++; return nil })
		chain := &Chain{Plugins: []Plugin{Upstream("count", count, holder).Selecting(selected(group), holder)}}
		if err := chain.Admit(t.Context(), &Attributes{Operation: Create, Definition: definition}); err != nil ||
			calls != want {
			t.Errorf("%s: %d calls, want %d: %v", group, calls, want, err)
		}
	}
}

// Webhooks choose the keys of audit annotations. Upstream rejects the same ones.
func TestAnnotationKeys(t *testing.T) {
	upstreams := upstream.NewAttributesRecord(nil, nil, schema.GroupVersionKind{}, "", "",
		schema.GroupVersionResource{}, "", upstream.Create, nil, false, nil)
	for _, key := range []string{
		"hook.example.com/a", "a", "", "/", "h/", "/a", "h/x/y", "h/no key", "H/a", "h/A_b-c.d",
		"h/" + strings.Repeat("a", 64),
	} {
		want := upstreams.AddAnnotation(key, "value")
		if got := (&Attributes{}).AddAnnotation(key, "value"); (got == nil) != (want == nil) {
			t.Errorf("%q: got %v, want %v", key, got, want)
		}
	}
}
