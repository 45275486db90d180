package registry_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"

	"quorate.dev/apiserver/admission"
	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/apiserver/registry"
	"quorate.dev/apiserver/registry/change"
	"quorate.dev/apiserver/resource"
)

// sequence generates names from a list, and repeats its last one.
type sequence struct {
	plain
	names *[]string
}

func (s sequence) GenerateName(base string) string {
	name := base + (*s.names)[0]
	if len(*s.names) > 1 {
		*s.names = (*s.names)[1:]
	}
	return name
}

// TestGeneratedNames creates objects with generateName while generated names are taken.
func TestGeneratedNames(t *testing.T) {
	t.Parallel()
	definition := configMaps()
	endpoint := definition.Versions[0].Endpoints[""]
	names := []string{"1"}
	endpoint.Create = sequence{endpoint.Create.(plain), &names}
	w := openWorld(t, etcdtest.Client(t), definition)
	generate := func(generated ...string) (*registry.Result, error) {
		names = generated
		return w.registry.Create(t.Context(), w.target,
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "x-", Namespace: "a"}}, registry.WriteOptions{})
	}
	for _, step := range []struct {
		generated []string
		want      string
	}{
		{[]string{"1"}, "x-1"},
		{[]string{"1", "1", "2"}, "x-2"},
		{[]string{"1", "2", "1", "2", "1", "2", "1", "3"}, "x-3"}, // the last attempt
	} {
		result, err := generate(step.generated...)
		if err != nil || result.Object.(*corev1.ConfigMap).Name != step.want {
			t.Fatalf("generated %v: got %+v, %v, want %s", step.generated, result, err, step.want)
		}
	}
	_, err := generate("1")
	if !apierrors.IsAlreadyExists(err) ||
		!strings.Contains(err.Error(), "the server was not able to generate a unique name") {
		t.Errorf("all names are taken: %v", err)
	}
}

// TestCreate creates objects that must be refused, and dry runs.
func TestCreate(t *testing.T) {
	t.Parallel()
	w := openWorld(t, etcdtest.Client(t), configMaps())
	w.put(t, "taken")
	if _, err := w.registry.Create(
		t.Context(), w.target, newConfigMap("leaving", "example.com/hold"), registry.WriteOptions{},
	); err != nil {
		t.Fatal(err)
	}
	deletionStep{name: "leaving", outcome: registry.Marked}.run(t, w.registry, named(w.target, "leaving"))
	versioned := newConfigMap("versioned")
	versioned.ResourceVersion = "5"
	for _, test := range []struct {
		name   string
		object *corev1.ConfigMap
		dryRun bool
		err    string // part of the message; empty if the request succeeds
	}{
		{"new, dry run", newConfigMap("new"), true, ""},
		{"taken", newConfigMap("taken"), false, `configmaps "taken" already exists`},
		{"taken, dry run", newConfigMap("taken"), true, `configmaps "taken" already exists`},
		{"being deleted", newConfigMap("leaving"), false, `object is being deleted: configmaps "leaving" already exists`},
		{"with a resource version", versioned, false, "resourceVersion should not be set on objects to be created"},
		{"with a resource version, dry run", versioned, true, ""},
	} {
		result, err := w.registry.Create(t.Context(), w.target, test.object.DeepCopy(),
			registry.WriteOptions{DryRun: test.dryRun})
		switch {
		case (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err):
			t.Errorf("%s: got the error %v, want %q", test.name, err, test.err)
		case err == nil && (result.Outcome != registry.Created || !result.DryRun):
			t.Errorf("%s: got %+v", test.name, result)
		}
	}
	if page := w.list(t, registry.ListOptions{}); len(page.Entries) != 2 {
		t.Errorf("%d objects are stored, want 2", len(page.Entries))
	}
}

// recorder records the calls of admission, and rejects the request at a given call.
type recorder struct {
	calls []string
	fails string
}

func (r *recorder) called(step string, a *admission.Attributes) error {
	call := fmt.Sprint(step, " ", a.Operation)
	if a.Subresource != "" {
		call += " " + a.Subresource
	}
	r.calls = append(r.calls, call)
	if r.fails == step {
		return errRefused
	}
	return nil
}

func (r *recorder) Admit(_ context.Context, a *admission.Attributes) error {
	return r.called("admit", a)
}

func (r *recorder) Validate(_ context.Context, a *admission.Attributes) error {
	return r.called("validate", a)
}

func (*recorder) Allocates(schema.GroupResource) bool { return false }

func (r *recorder) Reserve(_ context.Context, a *admission.Attributes) error {
	return r.called("reserve", a)
}

func (r *recorder) Rollback(_ context.Context, a *admission.Attributes) { _ = r.called("rollback", a) }

func (r *recorder) Commit(_ context.Context, a *admission.Attributes) { _ = r.called("commit", a) }

func (r *recorder) chain() *admission.Chain {
	return &admission.Chain{
		Plugins: []admission.Plugin{{
			Operations: []admission.Operation{admission.Create, admission.Update, admission.Delete, admission.Connect},
			Mutator:    r, Validator: r,
		}},
		Reservers: []admission.Reserver{r},
	}
}

// TestOrderOfAdmission checks which steps of admission a write has, and that a reservation is released if the write
// fails.
func TestOrderOfAdmission(t *testing.T) {
	t.Parallel()
	r := &recorder{}
	w := openAdmitted(t, etcdtest.Client(t), configMaps(), r.chain())
	target := named(w.target, "x")
	create := func() error {
		_, err := w.registry.Create(t.Context(), w.target, newConfigMap("x"), registry.WriteOptions{})
		return err
	}
	update := func() error {
		patch := change.Patch{Type: types.MergePatchType, Data: []byte(`{"data":{"a":"b"}}`)}
		_, err := w.registry.Patch(t.Context(), target, patch, registry.WriteOptions{})
		return err
	}
	remove := func() error {
		_, err := w.registry.Delete(t.Context(), target, &metav1.DeleteOptions{}, registry.WriteOptions{})
		return err
	}
	for _, step := range []struct {
		name  string
		write func() error
		fails string
		calls []string
	}{
		{"create, refused by a mutating plugin", create, "admit", []string{"admit CREATE"}},
		{"create, nothing is left to reserve", create, "reserve", []string{"admit CREATE", "reserve CREATE"}},
		{"create, refused by a validating plugin", create, "validate",
			[]string{"admit CREATE", "reserve CREATE", "validate CREATE", "rollback CREATE"}},
		{"create", create, "", []string{"admit CREATE", "reserve CREATE", "validate CREATE"}},
		{"create again", create, "", []string{"admit CREATE", "reserve CREATE", "validate CREATE", "rollback CREATE"}},
		{"update, refused by a mutating plugin", update, "admit", []string{"admit UPDATE"}},
		{"update, nothing is left to reserve", update, "reserve", []string{"admit UPDATE", "reserve UPDATE"}},
		{"update, refused by a validating plugin", update, "validate",
			[]string{"admit UPDATE", "reserve UPDATE", "validate UPDATE", "rollback UPDATE"}},
		{"update", update, "", []string{"admit UPDATE", "reserve UPDATE", "validate UPDATE", "commit UPDATE"}},
		{"update without a change", update, "", []string{"admit UPDATE", "reserve UPDATE", "validate UPDATE"}},
		{"deletion, refused", remove, "validate", []string{"admit DELETE", "validate DELETE"}},
		{"deletion", remove, "", []string{"admit DELETE", "validate DELETE", "commit DELETE"}},
	} {
		// The cache has the object, so that no attempt is repeated from storage.
		if _, err := w.registry.Get(t.Context(), target, ""); err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
		r.calls, r.fails = nil, step.fails
		err := step.write()
		if step.fails != "" && !errors.Is(err, errRefused) ||
			step.fails == "" && err != nil && !apierrors.IsAlreadyExists(err) {
			t.Errorf("%s: got the error %v", step.name, err)
		}
		if !slices.Equal(r.calls, step.calls) {
			t.Errorf("%s: admission was called for %v, want %v", step.name, r.calls, step.calls)
		}
	}
}

// TestActions creates on an endpoint that stores nothing, such as the tokens of a service account.
func TestActions(t *testing.T) {
	t.Parallel()
	failure := errors.New("no token")
	for _, test := range []struct {
		name   string
		action resource.Action
		err    string
		calls  []string
	}{
		{
			name: "succeeds", calls: []string{"admit CREATE token", "validate CREATE token"},
			action: func(ctx context.Context, call resource.Call) (runtime.Object, error) {
				if call.Name != "x" || !call.DryRun || !slices.Equal(call.Options.DryRun, []string{metav1.DryRunAll}) {
					return nil, fmt.Errorf("got %+v", call)
				}
				return call.Body, call.Validate(ctx)
			},
		},
		{
			name: "fails", err: failure.Error(), calls: []string{"admit CREATE token"},
			action: func(context.Context, resource.Call) (runtime.Object, error) { return nil, failure },
		},
		{
			name: "skips validating admission", err: "did not run validating admission", calls: []string{"admit CREATE token"},
			action: func(_ context.Context, call resource.Call) (runtime.Object, error) { return call.Body, nil },
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := &recorder{}
			definition := configMaps()
			version := definition.Versions[0]
			version.Endpoints["token"] = &resource.Endpoint{Subresource: "token", Kind: version.Kind, Action: test.action}
			w := openAdmitted(t, etcdtest.Client(t), definition, r.chain())
			target := named(w.target, "x")
			target.Endpoint = version.Endpoints["token"]
			result, err := w.registry.Create(t.Context(), target, newConfigMap("x"), registry.WriteOptions{DryRun: true})
			if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("got %+v, %v, want the error %q", result, err, test.err)
			}
			if !slices.Equal(r.calls, test.calls) {
				t.Errorf("admission was called for %v, want %v", r.calls, test.calls)
			}
		})
	}
}

// TestConnect connects to a subresource, with admission unless the request only reads.
func TestConnect(t *testing.T) {
	t.Parallel()
	r := &recorder{}
	definition := configMaps()
	version := definition.Versions[0]
	connect := &resource.Connect{Handler: func(_ context.Context, call resource.Call) (http.Handler, error) {
		if call.Name != "x" || call.Namespace != "a" {
			return nil, fmt.Errorf("got %+v", call)
		}
		return http.NotFoundHandler(), nil
	}}
	version.Endpoints["exec"] = &resource.Endpoint{Subresource: "exec", Kind: version.Kind, Connect: connect}
	w := openAdmitted(t, etcdtest.Client(t), definition, r.chain())
	target := named(w.target, "x")
	target.Endpoint = version.Endpoints["exec"]
	for _, test := range []struct {
		reads   bool
		fails   string
		refused bool
		calls   []string
	}{
		{calls: []string{"admit CONNECT exec", "validate CONNECT exec"}},
		{fails: "admit", refused: true, calls: []string{"admit CONNECT exec"}},
		{reads: true, fails: "admit"},
	} {
		connect.Reads = test.reads
		r.calls, r.fails = nil, test.fails
		handler, err := w.registry.Connect(t.Context(), target, newConfigMap("options"))
		if (err != nil) != test.refused || (handler == nil) != test.refused || !slices.Equal(r.calls, test.calls) {
			t.Errorf("%+v: got the error %v and the calls %v", test, err, r.calls)
		}
	}
}

// deciding is an authorizer with one decision. It records its calls.
type deciding struct {
	decision authorizer.Decision
	err      error
	asked    []string
}

func (d *deciding) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	d.asked = append(d.asked,
		fmt.Sprintf("%s %s %s/%s", a.GetUser().GetName(), a.GetVerb(), a.GetNamespace(), a.GetName()))
	return d.decision, "because", d.err
}

// TestUpdateThatCreates updates a missing object of a kind that updates can create. The user needs the permission to
// create.
func TestUpdateThatCreates(t *testing.T) {
	t.Parallel()
	definition := configMaps()
	endpoint := definition.Versions[0].Endpoints[""]
	endpoint.Update = creatable{endpoint.Update.(plain)}
	w := openWorld(t, etcdtest.Client(t), definition)
	alice := genericrequest.WithUser(t.Context(), &user.DefaultInfo{Name: "alice"})
	withUID, stale := newConfigMap("uid"), newConfigMap("stale")
	withUID.UID, stale.ResourceVersion = "u", "5"
	invalid := newConfigMap("invalid")
	invalid.ResourceVersion = "five"
	for _, test := range []struct {
		object  *corev1.ConfigMap
		by      authorizer.UnconditionalAuthorizer
		options registry.WriteOptions
		err     string // part of the message; empty if the object is created
	}{
		{object: newConfigMap("permitted"), by: &deciding{decision: authorizer.DecisionAllow}},
		{object: newConfigMap("refused"), by: &deciding{decision: authorizer.DecisionNoOpinion},
			err: `User "alice" cannot create resource "configmaps" in API group "" in the namespace "a": because`},
		{object: newConfigMap("broken"), by: &deciding{err: errRefused}, err: "refused"},
		{object: newConfigMap("unknown"), err: "has no authorizer"},
		{object: newConfigMap("own"), options: registry.WriteOptions{Internal: true}},
		{object: stale, by: &deciding{decision: authorizer.DecisionAllow}},
		{object: invalid, by: &deciding{decision: authorizer.DecisionAllow}, err: "invalid syntax"},
		{
			object: withUID, by: &deciding{decision: authorizer.DecisionAllow},
			err: "Precondition failed: UID in precondition: u",
		},
	} {
		name := test.object.Name
		test.options.Authorizer = test.by
		result, err := w.registry.Update(alice, named(w.target, name), change.Replacement{Object: test.object}, test.options)
		switch {
		case (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err):
			t.Errorf("%s: got the error %v, want %q", name, err, test.err)
		case err == nil && result.Outcome != registry.Created:
			t.Errorf("%s: got %+v", name, result)
		}
		if by, ok := test.by.(*deciding); ok && len(by.asked) > 0 &&
			!slices.Equal(by.asked, []string{"alice create a/" + name}) {
			t.Errorf("%s: the authorizer was called for %v", name, by.asked)
		}
	}
}
