package extension

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"quorate.dev/extension/move"
	"quorate.dev/test/upstream"
)

// movedGroup contains kinds of the host that are moved to the extension server and back.
const movedGroup = "parts.example.com"

// movedDefinitions exist in the host before its garbage collector discovers kinds.
const movedDefinitions = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gadgets.parts.example.com, labels: {team: parts}}
spec:
  group: parts.example.com
  scope: Namespaced
  names: {plural: gadgets, singular: gadget, kind: Gadget}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema: &schema
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, properties: {size: {type: integer}, color: {type: string, default: red}}}
          status: {type: object, properties: {observedGeneration: {type: integer}}}
  - name: v1beta1
    served: true
    storage: false
    schema: *schema
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: shelves.parts.example.com}
spec:
  group: parts.example.com
  scope: Cluster
  names: {plural: shelves, singular: shelf, kind: Shelf}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`

var (
	gadgets = schema.GroupVersionResource{Group: movedGroup, Version: "v1", Resource: "gadgets"}
	shelves = schema.GroupVersionResource{Group: movedGroup, Version: "v1", Resource: "shelves"}
	crds    = schema.GroupVersionResource{
		Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions",
	}
)

const (
	partsNamespace = "parts"
	plainGadgets   = 520 // more than one page
	hold           = "parts.example.com/hold"
	// writeBudget is the number of writes after which a run of a move is interrupted.
	writeBudget = 150
)

// movedNames are the definitions of the group.
var movedNames = []string{"gadgets.parts.example.com", "shelves.parts.example.com", "bolts.parts.example.com"}

// moves moves a group to the extension server and back, interrupted at the beginning of every step and within steps.
// Objects keep what docs/move.md promises, and the garbage collector deletes no dependents.
func moves(s *fixture) {
	s.namespaced(partsNamespace)
	s.createGadgets()
	s.createBolts()
	seen := s.watchGadgets()
	s.planWithCommand("--to=extension", "--api-services="+s.movedAPIServices())

	before := s.gadgets(s.objects)
	if s.interrupts {
		(&mover{fixture: s, direction: move.ToExtension}).abort()
		s.compare(before, s.gadgets(s.objects)) // including the resourceVersion
	}
	m := &mover{fixture: s, direction: move.ToExtension}
	m.run()
	after := s.gadgets(s.objects)
	before["gadgets/managed"] = *m.slipped
	s.compare(before, after, "resourceVersion")
	s.isGone("definitions of the host", s.objects, crds, movedNames...)
	s.afterMove(seen, "1")

	before = s.gadgets(s.objects)
	if s.interrupts {
		(&mover{fixture: s, direction: move.ToHost}).abort()
		s.compare(before, s.gadgets(s.objects))
	}
	m = &mover{fixture: s, direction: move.ToHost}
	m.run()
	after = s.gadgets(s.objects)
	before["gadgets/managed"] = *m.slipped
	old := before["bolts/old"] // the webhook is not called for entries of v1beta1
	old.SetManagedFields(nil)
	s.compare(before, after, "resourceVersion", "uid", "creationTimestamp", "generation", "ownerReferences",
		"deletionTimestamp", "deletionGracePeriodSeconds")
	s.isGone("definitions of the extension server", dynamic.NewForConfigOrDie(s.administrator()), crds,
		movedNames...)
	s.afterMove(seen, "2")
}

func gadget(name string, size int64) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "parts.example.com/v1", "kind": "Gadget",
		"metadata": map[string]any{"name": name}, "spec": map[string]any{"size": size},
	}}
}

func ownedBy(owner *unstructured.Unstructured) []metav1.OwnerReference {
	yes := true
	return []metav1.OwnerReference{{
		APIVersion: owner.GetAPIVersion(), Kind: owner.GetKind(), Name: owner.GetName(), UID: owner.GetUID(),
		BlockOwnerDeletion: &yes,
	}}
}

// createGadgets creates objects of each type that a move treats differently. The test changes those with a number at
// the end after the first or the second move.
func (s *fixture) createGadgets() {
	s.Helper()
	in := s.objects.Resource(gadgets).Namespace(partsNamespace)
	create := func(object *unstructured.Unstructured) *unstructured.Unstructured {
		return must(in.Create(s.Context(), object, metav1.CreateOptions{}))(s)
	}
	group := errgroup.Group{}
	group.SetLimit(8)
	for i := range plainGadgets {
		group.Go(func() error {
			_, err := in.Create(s.Context(), gadget(fmt.Sprintf("plain-%d", i), int64(i)), metav1.CreateOptions{})
			return err
		})
	}
	if err := group.Wait(); err != nil {
		s.Fatal(err)
	}
	shelf := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "parts.example.com/v1", "kind": "Shelf", "metadata": map[string]any{"name": "top"}, "free": "form",
	}}
	must(s.objects.Resource(shelves).Create(s.Context(), shelf, metav1.CreateOptions{}))(s)

	managed := create(gadget("managed", 1))
	_ = unstructured.SetNestedField(managed.Object, int64(2), "spec", "size")
	managed = must(in.Update(s.Context(), managed, metav1.UpdateOptions{FieldManager: "second"}))(s)
	managed.Object["status"] = map[string]any{"observedGeneration": int64(2)}
	must(in.UpdateStatus(s.Context(), managed, metav1.UpdateOptions{FieldManager: "third"}))(s)
	for _, n := range []string{"1", "2"} {
		owner := create(gadget("owner"+n, 1))
		child := gadget("child"+n, 1)
		child.SetOwnerReferences(ownedBy(owner))
		create(child)
		dependent := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "dependent" + n, OwnerReferences: ownedBy(owner)}}
		must(s.typed.CoreV1().ConfigMaps(partsNamespace).Create(s.Context(), dependent, metav1.CreateOptions{}))(s)
		dying := gadget("dying"+n, 1)
		dying.SetFinalizers([]string{hold})
		create(dying)
		if err := in.Delete(s.Context(), "dying"+n, metav1.DeleteOptions{}); err != nil {
			s.Fatal(err)
		}
	}
}

// watchGadgets returns the objects that a continuously connected client has observed. A deletion that the test did not
// cause is an error.
func (s *fixture) watchGadgets() cache.Indexer {
	s.Helper()
	informer := dynamicinformer.NewDynamicSharedInformerFactory(s.objects, 0).ForResource(gadgets).Informer()
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: func(object any) {
		name, _ := cache.DeletionHandlingMetaNamespaceKeyFunc(object)
		if !slices.ContainsFunc([]string{"owner", "child", "dying"}, func(kind string) bool {
			return strings.HasPrefix(name, partsNamespace+"/"+kind)
		}) {
			s.Errorf("a watch received the deletion of %s", name)
		}
	}})
	if err != nil {
		s.Fatal(err)
	}
	ctx, cancel := context.WithCancel(s.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		informer.RunWithContext(ctx)
	}()
	s.Cleanup(func() { cancel(); <-done })
	if !cache.WaitForCacheSync(s.Context().Done(), informer.HasSynced) {
		s.Fatal("the informer has not synced")
	}
	return informer.GetIndexer()
}

// gadgets returns all objects of the group by resource and name.
func (s *fixture) gadgets(client dynamic.Interface) map[string]unstructured.Unstructured {
	s.Helper()
	found := map[string]unstructured.Unstructured{}
	for _, resource := range []schema.GroupVersionResource{gadgets, shelves, bolts} {
		list := must(client.Resource(resource).List(s.Context(), metav1.ListOptions{}))(s)
		for _, object := range list.Items {
			found[resource.Resource+"/"+object.GetName()] = object
		}
	}
	return found
}

// compare compares all objects, except for some fields of metadata.
func (s *fixture) compare(before, after map[string]unstructured.Unstructured, except ...string) {
	s.Helper()
	if a, b := slices.Sorted(maps.Keys(before)), slices.Sorted(maps.Keys(after)); !slices.Equal(a, b) {
		s.Fatalf("got %d objects %v, want %d objects %v", len(b), b, len(a), a)
	}
	for name, object := range before {
		moved := after[name]
		if (object.GetDeletionTimestamp() == nil) != (moved.GetDeletionTimestamp() == nil) {
			s.Errorf("%s: deletionTimestamp %v, want %v", name, moved.GetDeletionTimestamp(), object.GetDeletionTimestamp())
		}
		fields := except
		if len(object.GetOwnerReferences()) > 0 && slices.Contains(except, "ownerReferences") {
			fields = append(fields[:len(fields):len(fields)], "managedFields") // because of the rewritten references
		}
		for _, field := range fields {
			unstructured.RemoveNestedField(object.Object, "metadata", field)
			unstructured.RemoveNestedField(moved.Object, "metadata", field)
		}
		if !reflect.DeepEqual(object.Object, moved.Object) {
			s.Errorf("%s: got %v, want %v", name, moved.Object, object.Object)
		}
	}
}

func (s *fixture) isGone(what string, client dynamic.Interface, resource schema.GroupVersionResource, names ...string) {
	s.Helper()
	for _, name := range names {
		if _, err := client.Resource(resource).Get(s.Context(), name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			s.Errorf("%s: %s: %v, want not found", what, name, err)
		}
	}
}

// afterMove uses the objects after a move: clients receive changes, finalizers and garbage collection work.
func (s *fixture) afterMove(seen cache.Indexer, n string) {
	s.Helper()
	s.preferred("after move " + n)
	s.boltsAreConverted()
	s.isGone("APIService", s.objects, apiServices, "quoratetransfer.parts.example.com")
	if _, err := s.typed.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(
		s.Context(), "quorate-move.parts.example.com", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		s.Errorf("the state of the move: %v, want not found", err)
	}
	in := s.objects.Resource(gadgets).Namespace(partsNamespace)
	s.await("writes", func(ctx context.Context) error {
		patch := []byte(`{"spec":{"color":"blue` + n + `"}}`)
		_, err := in.Patch(ctx, "managed", types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	})
	s.await("the informer", func(context.Context) error {
		object, found, err := seen.GetByKey(partsNamespace + "/managed")
		if err != nil || !found {
			return fmt.Errorf("found %v: %w", found, err)
		}
		color, _, _ := unstructured.NestedString(object.(*unstructured.Unstructured).Object, "spec", "color")
		if color != "blue"+n || len(seen.List()) < plainGadgets {
			return fmt.Errorf("got color %s and %d objects", color, len(seen.List()))
		}
		return nil
	})
	if _, err := in.Patch(s.Context(), "dying"+n, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`),
		metav1.PatchOptions{}); err != nil {
		s.Fatal(err)
	}
	owner := must(in.Get(s.Context(), "owner"+n, metav1.GetOptions{}))(s)
	child := must(in.Get(s.Context(), "child"+n, metav1.GetOptions{}))(s)
	configMaps := s.typed.CoreV1().ConfigMaps(partsNamespace)
	dependent := must(configMaps.Get(s.Context(), "dependent"+n, metav1.GetOptions{}))(s)
	for _, references := range [][]metav1.OwnerReference{child.GetOwnerReferences(), dependent.OwnerReferences} {
		if len(references) != 1 || references[0].UID != owner.GetUID() {
			s.Errorf("owner references %v, want UID %s", references, owner.GetUID())
		}
	}
	if err := in.Delete(s.Context(), "owner"+n, metav1.DeleteOptions{}); err != nil {
		s.Fatal(err)
	}
	s.await("finalizers and garbage collection", func(ctx context.Context) error {
		for _, name := range []string{"dying" + n, "child" + n} {
			if _, err := in.Get(ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return fmt.Errorf("%s: %w, want not found", name, err)
			}
		}
		if _, err := configMaps.Get(ctx, "dependent"+n, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the ConfigMap: %w, want not found", err)
		}
		return nil
	})
}

// movedAPIServices writes the APIServices of the extension server to a file.
func (s *fixture) movedAPIServices() string {
	s.Helper()
	var manifests []string
	for version, spec := range s.movedSpecs() {
		object := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
			"metadata": map[string]any{"name": version + "." + movedGroup}, "spec": spec,
		}}
		manifests = append(manifests, string(must(object.MarshalJSON())(s)))
	}
	return s.file("apiservices.yaml", []byte(strings.Join(manifests, "\n---\n")))
}

// movedSpecs returns the specs of the APIServices of the extension server: those of the other group.
func (s *fixture) movedSpecs() map[string]map[string]any {
	s.Helper()
	specs := map[string]map[string]any{}
	for _, version := range []string{"v1", "v1beta1"} {
		other := must(s.objects.Resource(apiServices).Get(s.Context(), "v1."+widgets.Group, metav1.GetOptions{}))(s)
		spec, _ := other.Object["spec"].(map[string]any)
		spec["group"], spec["version"] = movedGroup, version
		specs[version] = spec
	}
	return specs
}

// planWithCommand runs the command with --dry-run.
func (s *fixture) planWithCommand(arguments ...string) {
	s.Helper()
	arguments = append([]string{"extension", "move", movedGroup, "--dry-run", "--kubeconfig=" + s.hostFile,
		"--extension-kubeconfig=" + s.kubeconfig("local-admin", s.administrator())}, arguments...)
	output, err := exec.CommandContext(s.Context(), must(upstream.Quorate(s.Context()))(s), arguments...).CombinedOutput()
	if err != nil || !strings.Contains(string(output), "gadgets.parts.example.com") {
		s.Errorf("quorate %s: %v\n%s", strings.Join(arguments, " "), err, output)
	}
}

// mover runs a move in several processes.
type mover struct {
	*fixture
	direction move.Direction
	began     map[string]bool
	writes    atomic.Int64
	slipped   *unstructured.Unstructured // an object that was written although writes were blocked
	budget    int64
}

var errInterrupted = errors.New("interrupted by the test")

// limited fails all writes of a run that exceed its budget, so that it ends within a step.
func (m *mover) limited(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.Method != http.MethodGet && m.writes.Add(1) > m.budget {
			return nil, errInterrupted
		}
		return next.RoundTrip(r)
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// writeDespiteBlock changes an object after all objects are verified, as if a stale API server of the host had admitted
// it.
func (m *mover) writeDespiteBlock() {
	m.Helper()
	registration := m.typed.AdmissionregistrationV1()
	err := registration.ValidatingAdmissionPolicyBindings().Delete(m.Context(),
		"quorate-move.parts.example.com", metav1.DeleteOptions{})
	if err != nil {
		m.Fatal(err)
	}
	m.await("a write after the verification", func(ctx context.Context) error {
		m.slipped, err = m.objects.Resource(gadgets).Namespace(partsNamespace).Patch(ctx, "managed", types.MergePatchType,
			fmt.Appendf(nil, `{"spec":{"color":"after %s"}}`, m.direction), metav1.PatchOptions{})
		return err
	})
}

// before interrupts each step once when it begins, and checks what clients observe then.
func (m *mover) before(step string) error {
	// last has the last step before clients are disconnected.
	last := map[move.Direction]string{move.ToExtension: "Register", move.ToHost: "Disconnect"}
	m.preferred("before " + step)
	if m.slipped == nil && step == last[m.direction] {
		m.writeDespiteBlock()
		return nil
	}
	if m.began[step] {
		return nil
	}
	m.began[step] = true
	in := m.objects.Resource(gadgets).Namespace(partsNamespace)
	m.preferred("before " + step)
	switch {
	case step == "Verify":
		_, err := in.Create(m.Context(), gadget("late", 1), metav1.CreateOptions{})
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "are being moved") {
			m.Errorf("a write during the move: %v", err)
		}
	case step == "Activate" && m.direction == move.ToExtension, step == "Register" && m.direction == move.ToHost:
		if _, err := in.Get(m.Context(), "managed", metav1.GetOptions{}); !apierrors.IsServiceUnavailable(err) {
			m.Errorf("a read while requests go elsewhere: %v", err)
		}
	}
	if !m.interrupts {
		return nil
	}
	return errInterrupted
}

// preferred checks the resources that the garbage collector watches. It loses track of owners if it watches no
// version, or one from which the move deletes them.
func (s *fixture) preferred(when string) {
	s.Helper()
	for name, client := range map[string]discovery.DiscoveryInterface{
		"aggregated": s.typed.Discovery(), "legacy": s.typed.Discovery().WithLegacy(),
	} {
		var found []string
		for _, list := range must(client.ServerPreferredResources())(s) {
			for _, resource := range list.APIResources {
				if strings.HasPrefix(list.GroupVersion, movedGroup+"/") {
					found = append(found, list.GroupVersion+"/"+resource.Name)
				}
			}
		}
		slices.Sort(found)
		if want := []string{movedGroup + "/v1/bolts", movedGroup + "/v1/gadgets",
			movedGroup + "/v1/shelves"}; !slices.Equal(found, want) {
			s.Errorf("%s, %s discovery prefers %v, want %v", when, name, found, want)
		}
	}
}

func (m *mover) run() {
	m.Helper()
	m.began = map[string]bool{}
	began := time.Now()
	for runs := 1; ; runs++ {
		err := m.once()
		if err == nil {
			m.Logf("moved %s in %d runs and %v", m.direction, runs, time.Since(began).Round(time.Millisecond))
			return
		}
		if !errors.Is(err, errInterrupted) || runs == 100 {
			m.Fatalf("run %d: %v", runs, err)
		}
	}
}

// abort starts a move, interrupts it within the last step that can be undone, and undoes it.
func (m *mover) abort() {
	m.Helper()
	m.budget = 1 << 30
	one := must(move.New(m.options(func(step string) error {
		if step == "Disconnect" {
			m.writes.Store(0)
			m.budget = 2 // of the writes to definitions
		}
		return nil
	})))(m)
	if err := one.Run(m.Context()); !errors.Is(err, errInterrupted) {
		m.Fatalf("got %v, want an interruption", err)
	}
	m.budget = 1 << 30
	if err := must(move.New(m.options(nil)))(m).Abort(m.Context()); err != nil {
		m.Fatal(err)
	}
	if m.direction == move.ToExtension {
		m.isGone("definitions of the extension server", dynamic.NewForConfigOrDie(m.administrator()), crds, movedNames...)
	} else {
		m.isGone("definitions of the host", m.objects, crds, movedNames...)
	}
	m.isGone("APIService", m.objects, apiServices, "quoratetransfer.parts.example.com")
	m.preferred("after the undone move " + string(m.direction))
}

func (m *mover) once() error {
	m.writes.Store(0)
	m.budget = writeBudget
	if !m.interrupts {
		m.budget = 1 << 30
	}
	one, err := move.New(m.options(m.before))
	if err != nil {
		return err
	}
	return one.Run(m.Context())
}

func (m *mover) options(before func(string) error) move.Options {
	config := func(c *rest.Config) *rest.Config {
		c = rest.CopyConfig(c)
		c.Wrap(m.limited)
		return c
	}
	options := move.Options{
		Group: movedGroup, Direction: m.direction, Host: config(m.host), Extension: config(m.administrator()),
		Namespace: metav1.NamespaceSystem, Settle: 1500 * time.Millisecond, Timeout: time.Minute, Clock: clock.RealClock{},
		Registration: move.Registration{Specs: m.movedSpecs()}, Before: before,
	}
	if testing.Verbose() {
		options.Report = func(line string) { fmt.Fprintln(os.Stderr, line) }
	}
	return options
}
