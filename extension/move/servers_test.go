package move

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"quorate.dev/test/upstream"
)

const (
	movedGroup = "parts.example.com"
	movedCRD   = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gadgets.parts.example.com, labels: {team: parts}}
spec:
  group: parts.example.com
  scope: Namespaced
  names: {plural: gadgets, singular: gadget, kind: Gadget, listKind: GadgetList}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`
)

var gadgets = schema.GroupVersionResource{Group: movedGroup, Version: "v1", Resource: "gadgets"}

// servers are a host and an extension server, which the host does not know yet.
type servers struct {
	*testing.T
	options Options // of moves; Direction and Before are not set
	host    *cluster
	report  []string // of the last run
}

// startServers starts both servers. The host has a definition with some objects.
func startServers(t *testing.T) *servers {
	t.Helper()
	upstream.NeedsProcesses(t)
	directory := t.TempDir()
	pki, err := upstream.NewPKI(filepath.Join(directory, "pki"))
	noError(t, err)
	frontProxy, err := pki.WriteFrontProxy()
	noError(t, err)
	host, err := upstream.StartQuorate(t.Context(), upstream.Options{
		Directory: filepath.Join(directory, "host"), PKI: pki, Arguments: frontProxy,
	})
	noError(t, err)
	host.StopAfter(t)
	admin, specs := startExtension(t, directory, host.Admin)
	s := &servers{T: t, options: Options{
		Group: movedGroup, Host: host.Admin, Extension: admin, Namespace: "default",
		Registration: Registration{Specs: map[string]map[string]any{"v1": specs}},
		Settle:       50 * time.Millisecond, Timeout: time.Minute, Clock: clock.RealClock{},
	}}
	s.options.Report = func(line string) { s.report = append(s.report, line) }
	s.host, err = connect("host", host.Admin)
	noError(t, err)
	_, err = s.host.typed.CoreV1().Services("default").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "extension"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "127.0.0.1"},
	}, metav1.CreateOptions{})
	noError(t, err)
	return s
}

// startExtension starts an extension server of a host. It returns the client configuration of its administrator and the
// spec of its APIService.
func startExtension(t *testing.T, directory string, host *rest.Config) (*rest.Config, map[string]any) {
	t.Helper()
	serving, err := upstream.NewAuthority("extension")
	noError(t, err)
	administrators, err := upstream.NewAuthority("administrators")
	noError(t, err)
	kubeconfig, clients := filepath.Join(directory, "host.kubeconfig"), filepath.Join(directory, "administrators.crt")
	noError(t, upstream.WriteKubeconfig(kubeconfig, host))
	noError(t, os.WriteFile(clients, administrators.PEM(), 0o600))
	server, err := upstream.StartExtension(t.Context(), upstream.ExtensionOptions{
		Directory: filepath.Join(directory, "extension"), Serving: serving, Names: []string{"extension.default.svc"},
		Arguments: []string{"--extension-groups=" + movedGroup, "--kubeconfig=" + kubeconfig, "--client-ca-file=" + clients},
	})
	noError(t, err)
	server.StopAfter(t)
	admin := rest.CopyConfig(server.Admin)
	admin.CertData, admin.KeyData, err = administrators.Client("local-admin", "system:masters")
	noError(t, err)
	address, err := url.Parse(server.Admin.Host)
	noError(t, err)
	port, err := strconv.ParseInt(address.Port(), 10, 64)
	noError(t, err)
	return admin, map[string]any{
		"group": movedGroup, "version": "v1", "groupPriorityMinimum": int64(1000), "versionPriority": int64(15),
		"caBundle": base64.StdEncoding.EncodeToString(serving.PEM()), "service": map[string]any{
			"namespace": "default", "name": "extension", "port": port,
		},
	}
}

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// mover returns a move in a direction. edit, which may be nil, changes its options.
func (s *servers) mover(direction Direction, edit func(*Options)) *Mover {
	s.Helper()
	options := s.options
	options.Direction = direction
	if edit != nil {
		edit(&options)
	}
	s.report = nil
	m, err := New(options)
	noError(s.T, err)
	return m
}

// create creates an object in the host.
func (s *servers) create(resource schema.GroupVersionResource, manifest string) *unstructured.Unstructured {
	s.Helper()
	o := object(s.T, manifest)
	var created *unstructured.Unstructured
	err := wait.PollUntilContextTimeout(s.Context(), 20*time.Millisecond, time.Minute, true, func(
		ctx context.Context,
	) (bool, error) {
		at := collection{s.host.objects, resource, o.GetNamespace() != ""}.in(o.GetNamespace())
		var err error
		created, err = at.Create(ctx, o, metav1.CreateOptions{})
		return err == nil, ignoreNotFound(err) // a definition that is not served yet
	})
	noError(s.T, err)
	return created
}

// objects returns the objects of the group through the host, by name.
func (s *servers) objects() map[string]*unstructured.Unstructured {
	s.Helper()
	found := map[string]*unstructured.Unstructured{}
	_, err := collection{s.host.objects, gadgets, true}.each(s.Context(), func(o *unstructured.Unstructured) error {
		found[o.GetName()] = o
		return nil
	})
	noError(s.T, err)
	return found
}

// definitionIn reports whether a server has the definition.
func (s *servers) definitionIn(config *rest.Config) bool {
	s.Helper()
	c, err := connect("server", config)
	noError(s.T, err)
	_, err = c.objects.Resource(definitions).Get(s.Context(), "gadgets."+movedGroup, metav1.GetOptions{})
	noError(s.T, ignoreNotFound(err))
	return err == nil
}

var errStopped = errors.New("stopped by the test")

// before returns an option that stops a run at a step.
func before(step string) func(*Options) {
	return func(o *Options) {
		o.Before = func(name string) error {
			if name == step {
				return errStopped
			}
			return nil
		}
	}
}

// problems returns the problems of a plan as one text.
func (s *servers) problems(direction Direction, edit func(*Options)) string {
	s.Helper()
	plan, err := s.mover(direction, edit).Plan(s.Context())
	noError(s.T, err)
	return strings.Join(plan.Problems, "; ")
}

// TestMoves moves a group into an extension server and back, with moves that are refused, aborted and continued. It is
// the story of one operator; test/extension has the same with a garbage collector, replicas, webhooks and writes
// meanwhile.
func TestMoves(t *testing.T) {
	t.Parallel()
	s := startServers(t)
	if got := s.problems(ToExtension, nil); !strings.Contains(
		got, "the host has no CustomResourceDefinitions of "+movedGroup,
	) {
		t.Errorf("without definitions: %s", got)
	}
	if err := s.mover(ToExtension, nil).Abort(t.Context()); err == nil ||
		!strings.Contains(err.Error(), "no move is under way") {
		t.Errorf("abort without a move: %v", err)
	}
	s.create(definitions, movedCRD)
	owner := s.create(gadgets,
		"{apiVersion: parts.example.com/v1, kind: Gadget, metadata: {name: owner, namespace: default}, size: 1}")
	s.create(gadgets,
		fmt.Sprintf(`{apiVersion: parts.example.com/v1, kind: Gadget, size: 2, metadata: {name: owned, namespace: default,
		ownerReferences: [{apiVersion: parts.example.com/v1, kind: Gadget, name: owner, uid: %s}]}}`, owner.GetUID()))
	s.create(gadgets,
		`{apiVersion: parts.example.com/v1, kind: Gadget, metadata: {name: leaving, namespace: default, finalizers: [example.com/hold]}}`)
	noError(t,
		s.host.objects.Resource(gadgets).Namespace("default").Delete(t.Context(), "leaving", metav1.DeleteOptions{}))

	s.refusesToExtension()
	original := s.objects()
	s.aborts(ToExtension, original, "Copy", "Disconnect")
	s.moves(ToExtension)
	if s.definitionIn(s.options.Host) || !s.definitionIn(s.options.Extension) {
		t.Error("the definition was not moved to the extension server")
	}
	s.equal(original, s.objects(), "resourceVersion")

	if got := s.problems(ToExtension, nil); !strings.Contains(got, "the host has no CustomResourceDefinitions") {
		t.Errorf("a second move: %s", got)
	}
	inExtension := s.objects()
	s.aborts(ToHost, inExtension, "Copy", "Owners")
	s.moves(ToHost)
	if !s.definitionIn(s.options.Host) || s.definitionIn(s.options.Extension) {
		t.Error("the definition was not moved to the host")
	}
	back := s.objects()
	if got, want := back["owned"].GetOwnerReferences()[0].UID, back["owner"].GetUID(); got != want {
		t.Errorf("the owner reference has the UID %s, want %s", got, want)
	}
	if back["leaving"].GetDeletionTimestamp() == nil {
		t.Error("a deleted object is not deleted any more")
	}
	s.equal(original, back, "resourceVersion", "uid", "creationTimestamp", "generation",
		"managedFields", "ownerReferences", "deletionTimestamp", "deletionGracePeriodSeconds")
}

// refusesToExtension plans moves that cannot begin.
func (s *servers) refusesToExtension() {
	s.Helper()
	if got := s.problems(
		ToExtension, func(o *Options) { o.Registration = Registration{} },
	); !strings.Contains(got, "is not registered for the versions v1") {
		s.Errorf("without a registration: %s", got)
	}
	if got := s.problems(ToHost, nil); !strings.Contains(got, "the extension server has no CustomResourceDefinitions") {
		s.Errorf("in the other direction: %s", got)
	}
	var refused *ProblemsError
	err := s.mover(ToExtension, func(o *Options) { o.Registration = Registration{} }).Run(s.Context())
	if !errors.As(err, &refused) {
		s.Errorf("run in spite of problems: %v", err)
	}
	plan, err := s.mover(ToExtension, nil).Plan(s.Context())
	noError(s.T, err)
	want := []Kind{{Definition: "gadgets." + movedGroup, Versions: []string{"v1"}, Objects: 3, Finalizers: 1, Deleting: 1}}
	if len(plan.Problems) > 0 || !reflect.DeepEqual(plan.Kinds, want) {
		s.Errorf("the plan has the kinds %+v and the problems %v", plan.Kinds, plan.Problems)
	}
}

// aborts begins a move, stops it at each of some steps, and aborts it. The objects are as before.
func (s *servers) aborts(direction Direction, original map[string]*unstructured.Unstructured, stops ...string) {
	s.Helper()
	other := ToHost
	if direction == ToHost {
		other = ToExtension
	}
	for _, step := range stops {
		if err := s.mover(direction, before(step)).Run(s.Context()); !errors.Is(err, errStopped) {
			s.Fatalf("%s, stopped at %s: %v", direction, step, err)
		}
		if err := s.mover(other, nil).Run(s.Context()); err == nil ||
			!strings.Contains(err.Error(), "finish or abort it first") {
			s.Errorf("%s while %s is under way: %v", other, direction, err)
		}
		err := s.mover(direction, nil).Abort(s.Context())
		if step == "Owners" { // the first step of a move to the host that cannot be undone
			if err == nil || !strings.Contains(err.Error(), "cannot be undone") {
				s.Errorf("abort at %s: %v", step, err)
			}
			return
		}
		if err != nil {
			s.Fatalf("%s, aborted at %s: %v", direction, step, err)
		}
		s.equal(original, s.objects())
	}
}

// moves runs a move, or continues it, and checks its report and that it leaves nothing behind.
func (s *servers) moves(direction Direction) {
	s.Helper()
	if err := s.mover(direction, nil).Run(s.Context()); err != nil {
		s.Fatalf("%s: %v\n%s", direction, err, strings.Join(s.report, "\n"))
	}
	if s.report[len(s.report)-1] != "Done" {
		s.Errorf("%s reports %q", direction, s.report)
	}
	_, err := s.host.typed.CoreV1().ConfigMaps("default").Get(s.Context(), stateName(movedGroup), metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		s.Errorf("the state of the move: %v, want not found", err)
	}
	_, err = s.host.typed.AdmissionregistrationV1().ValidatingAdmissionPolicies().Get(s.Context(),
		policyName(movedGroup), metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		s.Errorf("the policy that blocks writes: %v, want not found", err)
	}
}

// equal compares objects by name, except for some fields of metadata.
func (s *servers) equal(want, got map[string]*unstructured.Unstructured, except ...string) {
	s.Helper()
	if a, b := slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(got)); !slices.Equal(a, b) {
		s.Fatalf("got the objects %v, want %v", b, a)
	}
	for name := range want {
		before, after := want[name].DeepCopy(), got[name].DeepCopy()
		for _, field := range except {
			unstructured.RemoveNestedField(before.Object, "metadata", field)
			unstructured.RemoveNestedField(after.Object, "metadata", field)
		}
		if !reflect.DeepEqual(before.Object, after.Object) {
			s.Errorf("%s: got %v, want %v", name, after.Object, before.Object)
		}
	}
}
