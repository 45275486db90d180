package core

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/policy"
	"k8s.io/kubernetes/pkg/probe"
	testingclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"quorate.dev/apiserver/resource"
)

// objects is a client with one pod and the PodDisruptionBudgets of its namespace. It records deletions.
type objects struct {
	resource.Client
	pod     *api.Pod
	budgets []*policy.PodDisruptionBudget
	// changes is the number of times that the pod changes before its deletion.
	changes int
	deleted []*metav1.DeleteOptions
}

func (o *objects) Get(_ context.Context, key resource.Key, _ resource.ReadOptions) (runtime.Object, error) {
	if key.Name != o.pod.Name {
		return nil, apierrors.NewNotFound(key.GroupResource, key.Name)
	}
	return o.pod.DeepCopy(), nil
}

func (o *objects) List(context.Context, resource.Key, resource.ReadOptions) ([]runtime.Object, error) {
	all := make([]runtime.Object, len(o.budgets))
	for i, budget := range o.budgets {
		all[i] = budget
	}
	return all, nil
}

func (o *objects) Update(
	_ context.Context, key resource.Key, change func(runtime.Object) error, _ resource.WriteOptions,
) (runtime.Object, error) {
	if key.GroupResource == budgets {
		return o.budgets[0], change(o.budgets[0])
	}
	if o.changes > 0 {
		o.changes--
		return nil, apierrors.NewConflict(pods, o.pod.Name, errors.New("the pod has changed"))
	}
	return o.pod, change(o.pod)
}

func (o *objects) Delete(_ context.Context, _ resource.Key, options *metav1.DeleteOptions) error {
	o.deleted = append(o.deleted, options)
	return nil
}

// newPod returns a pod in a phase, with the label app=web.
func newPod(phase api.PodPhase) *api.Pod {
	return &api.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "web", Namespace: "default", UID: "uid", ResourceVersion: "7", Labels: map[string]string{"app": "web"},
		},
		Status: api.PodStatus{Phase: phase},
	}
}

// newBudget returns a budget for pods with the label app=web that allows some disruptions.
func newBudget(name string, allowed int32) *policy.PodDisruptionBudget {
	return &policy.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: policy.PodDisruptionBudgetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		},
		Status: policy.PodDisruptionBudgetStatus{DisruptionsAllowed: allowed},
	}
}

// newEviction returns a valid eviction.
func newEviction() *policy.Eviction {
	return &policy.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"}}
}

// call returns a call of an action of the pod "web".
func call(body runtime.Object) resource.Call {
	return resource.Call{
		Namespace: "default", Name: "web", Body: body, Options: &metav1.CreateOptions{},
		Validate: func(context.Context) error { return nil },
	}
}

func TestRejectedBindings(t *testing.T) {
	t.Parallel()
	valid := func() *api.Binding {
		return &api.Binding{
			ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"},
			Target:     api.ObjectReference{Kind: "Node", Name: "one"},
		}
	}
	for name, test := range map[string]struct {
		change func(*api.Pod, *api.Binding, *resource.Call)
		is     func(error) bool
		want   string
	}{
		"another kind": {
			func(_ *api.Pod, _ *api.Binding, c *resource.Call) { c.Body = &api.Pod{} },
			apierrors.IsBadRequest, "not a Binding object: *core.Pod",
		},
		"another name": {
			func(_ *api.Pod, _ *api.Binding, c *resource.Call) { c.Name = "other" },
			apierrors.IsBadRequest, "name in URL does not match name in Binding object",
		},
		"no name": {
			func(_ *api.Pod, b *api.Binding, c *resource.Call) { b.Name, c.Name = "", "" },
			apierrors.IsBadRequest, "Name parameter required.",
		},
		"no node": {
			func(_ *api.Pod, b *api.Binding, _ *resource.Call) { b.Target.Name = "" }, nil, "target.name: Required value",
		},
		"rejected by admission": {
			func(_ *api.Pod, _ *api.Binding, c *resource.Call) {
				c.Validate = func(context.Context) error { return errors.New("refused") }
			}, nil, "refused",
		},
		"another pod": {
			func(_ *api.Pod, b *api.Binding, _ *resource.Call) { b.UID = "other" }, apierrors.IsConflict,
			`Operation cannot be fulfilled on pods/binding "web": ` +
				"Precondition failed: UID in precondition: other, UID in object meta: uid",
		},
		"a changed pod": {
			func(_ *api.Pod, b *api.Binding, _ *resource.Call) { b.ResourceVersion = "6" }, apierrors.IsConflict,
			`Operation cannot be fulfilled on pods/binding "web": ` +
				"Precondition failed: ResourceVersion in precondition: 6, ResourceVersion in object meta: 7",
		},
		"a deleted pod": {
			func(p *api.Pod, _ *api.Binding, _ *resource.Call) { p.DeletionTimestamp = &metav1.Time{} }, apierrors.IsConflict,
			`Operation cannot be fulfilled on pods/binding "web": pod web is being deleted, cannot be assigned to a host`,
		},
		"a bound pod": {
			func(p *api.Pod, _ *api.Binding, _ *resource.Call) { p.Spec.NodeName = "two" }, apierrors.IsConflict,
			`Operation cannot be fulfilled on pods/binding "web": pod web is already assigned to node "two"`,
		},
		"a gated pod": {
			func(p *api.Pod, _ *api.Binding, _ *resource.Call) {
				p.Spec.SchedulingGates = []api.PodSchedulingGate{{Name: "wait"}}
			}, apierrors.IsConflict,
			`Operation cannot be fulfilled on pods/binding "web": pod web has non-empty .spec.schedulingGates`,
		},
	} {
		pod, binding := newPod(api.PodPending), valid()
		request := call(binding)
		test.change(pod, binding, &request)
		node := pod.Spec.NodeName
		_, err := binder{&objects{pod: pod}}.bind(t.Context(), request)
		if err == nil || err.Error() != test.want || test.is != nil && !test.is(err) {
			t.Errorf("%s: got %v, want %s", name, err, test.want)
		}
		if pod.Spec.NodeName != node || len(pod.Status.Conditions) > 0 {
			t.Errorf("%s: the pod was changed: %+v", name, pod)
		}
	}
}

// TestBindingDropsAnnotationsOfInitContainers checks that a binding cannot add annotations that the strategy of pods
// drops.
func TestBindingDropsAnnotationsOfInitContainers(t *testing.T) {
	t.Parallel()
	pod, binding := newPod(api.PodPending), &api.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", Annotations: map[string]string{
			"a": "b", "pod.beta.kubernetes.io/init-containers": "[]",
		}},
		Target: api.ObjectReference{Kind: "Node", Name: "one"},
	}
	if _, err := (binder{&objects{pod: pod}}).bind(t.Context(), call(binding)); err != nil {
		t.Fatal(err)
	}
	if len(pod.Annotations) != 1 || pod.Annotations["a"] != "b" {
		t.Errorf("got the annotations %v", pod.Annotations)
	}
}

func TestRejectedEvictions(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*policy.Eviction, *resource.Call)
		is     func(error) bool
		want   string
	}{
		"another kind": {
			func(_ *policy.Eviction, c *resource.Call) { c.Body = &api.Pod{} }, apierrors.IsBadRequest,
			"not a Eviction object: *core.Pod",
		},
		"another name": {
			func(e *policy.Eviction, _ *resource.Call) { e.Name = "other" }, apierrors.IsBadRequest,
			"name in URL does not match name in Eviction object",
		},
		"a pod that does not exist": {
			func(e *policy.Eviction, c *resource.Call) { e.Name, c.Name = "other", "other" }, apierrors.IsNotFound,
			`pods "other" not found`,
		},
		"rejected by admission": {
			func(_ *policy.Eviction, c *resource.Call) {
				c.Validate = func(context.Context) error { return errors.New("refused") }
			}, nil, "refused",
		},
		"the deletion of unreadable objects": {
			func(e *policy.Eviction, _ *resource.Call) {
				e.DeleteOptions = &metav1.DeleteOptions{IgnoreStoreReadErrorWithClusterBreakingPotential: ptr.To(true)}
			}, apierrors.IsInvalid,
			`Eviction.policy "web" is invalid: deleteOptions.ignoreStoreReadErrorWithClusterBreakingPotential: ` +
				"Invalid value: true: can not be set for pod eviction, try after removing the option",
		},
		"two kinds of dry runs": {
			func(e *policy.Eviction, c *resource.Call) {
				e.DeleteOptions = &metav1.DeleteOptions{DryRun: []string{"Some"}}
				c.Options.DryRun = []string{metav1.DryRunAll}
			}, nil, "Non-matching dry-run options in request and content: [All] and [Some]",
		},
		"another UID": {
			func(e *policy.Eviction, _ *resource.Call) {
				e.DeleteOptions = metav1.NewPreconditionDeleteOptions("other")
			}, apierrors.IsConflict,
			`Operation cannot be fulfilled on Pod "web": the UID in the precondition (other) does not match the UID in ` +
				"record (uid). The object might have been deleted and then recreated",
		},
		"another resource version": {
			func(e *policy.Eviction, _ *resource.Call) {
				e.DeleteOptions = metav1.NewRVDeletionPrecondition("6")
			}, apierrors.IsConflict,
			`Operation cannot be fulfilled on Pod "web": the ResourceVersion in the precondition (6) does not match the ` +
				"ResourceVersion in record (7). The object might have been modified",
		},
	} {
		client, eviction := &objects{pod: newPod(api.PodSucceeded)}, newEviction()
		request := call(eviction)
		test.change(eviction, &request)
		_, err := evictor{client, testingclock.NewFakePassiveClock(time.Time{})}.evict(t.Context(), request)
		if err == nil || err.Error() != test.want || test.is != nil && !test.is(err) {
			t.Errorf("%s: got %v, want %s", name, err, test.want)
		}
		if len(client.deleted) > 0 {
			t.Errorf("%s: the pod was deleted", name)
		}
	}
}

// TestEvictionWithinBudget evicts running pods under one budget, several budgets and none.
func TestEvictionWithinBudget(t *testing.T) {
	t.Parallel()
	other := newBudget("other", 0)
	other.Spec.Selector.MatchLabels["app"] = "other"
	unhealthy := newBudget("unhealthy", 0)
	unhealthy.Spec.UnhealthyPodEvictionPolicy = ptr.To(policy.AlwaysAllow)
	for name, test := range map[string]struct {
		budgets []*policy.PodDisruptionBudget
		changes int
		want    string // a part of the error's causes or of its text; empty if the pod is deleted
	}{
		"no budget":                {nil, 0, ""},
		"a budget of other pods":   {[]*policy.PodDisruptionBudget{other}, 0, ""},
		"a disruption is allowed":  {[]*policy.PodDisruptionBudget{newBudget("web", 1)}, 0, ""},
		"no disruption is allowed": {[]*policy.PodDisruptionBudget{newBudget("web", 0)}, 0, "needs 0 healthy pods and has 0"},
		"two budgets": {
			[]*policy.PodDisruptionBudget{newBudget("web", 1), newBudget("also", 1)}, 0, "more than one PodDisruptionBudget",
		},
		"an unhealthy pod": {[]*policy.PodDisruptionBudget{unhealthy}, 0, ""},
		"an unhealthy pod that changes": {
			[]*policy.PodDisruptionBudget{unhealthy}, 1, "is still being processed by the server",
		},
		"a changed pod is not tried again": {nil, 1, "the pod has changed"},
	} {
		client := &objects{pod: newPod(api.PodRunning), budgets: test.budgets, changes: test.changes}
		clock := testingclock.NewFakePassiveClock(time.Time{})
		response, err := evictor{client, clock}.evict(t.Context(), call(newEviction()))
		if test.want != "" {
			if err == nil || !strings.Contains(describeError(err), test.want) || len(client.deleted) > 0 {
				t.Errorf("%s: got %v, want an error with %q", name, err, test.want)
			}
			continue
		}
		if err != nil || response.(*metav1.Status).Status != metav1.StatusSuccess || len(client.deleted) != 1 {
			t.Errorf("%s: got %v, %v after %d deletions", name, response, err, len(client.deleted))
		}
		if conditions := client.pod.Status.Conditions; len(conditions) != 1 ||
			conditions[0].Type != api.DisruptionTarget || conditions[0].Reason != "EvictionByEvictionAPI" {
			t.Errorf("%s: got the conditions %+v", name, conditions)
		}
	}
}

// describeError returns the text of an API error and its causes.
func describeError(err error) string {
	text := err.Error()
	var status *apierrors.StatusError
	if errors.As(err, &status) && status.ErrStatus.Details != nil {
		for _, cause := range status.ErrStatus.Details.Causes {
			text += "\n" + cause.Message
		}
	}
	return text
}

// TestEvictionOfChangingPod: a pending pod is deleted only in the version that was read, and read again if it changes.
func TestEvictionOfChangingPod(t *testing.T) {
	t.Parallel()
	for changes, want := range map[int]int{0: 1, 3: 1, evictionAttempts: 0} {
		client := &objects{pod: newPod(api.PodPending), changes: changes}
		_, err := evictor{client, testingclock.NewFakePassiveClock(time.Time{})}.evict(t.Context(), call(newEviction()))
		if len(client.deleted) != want || (err == nil) != (want == 1) {
			t.Errorf("after %d changes: got %d deletions, %v", changes, len(client.deleted), err)
			continue
		}
		if want == 1 && ptr.Deref(client.deleted[0].Preconditions.ResourceVersion, "") != "7" {
			t.Errorf("after %d changes: deleted with %+v", changes, client.deleted[0].Preconditions)
		}
	}
}

// TestDryRunOfEviction: a dry run charges no budget and changes no pod.
func TestDryRunOfEviction(t *testing.T) {
	t.Parallel()
	client := &objects{pod: newPod(api.PodSucceeded)}
	request := call(newEviction())
	request.Options.DryRun = []string{metav1.DryRunAll}
	if _, err := (evictor{objects: client}).evict(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	if len(client.deleted) != 1 || !slices.Equal(client.deleted[0].DryRun, []string{metav1.DryRunAll}) {
		t.Errorf("got the deletions %+v", client.deleted)
	}
	if len(client.pod.Status.Conditions) > 0 {
		t.Errorf("the pod was changed: %+v", client.pod.Status)
	}
}

// TestExhaustedBudgets checks the reason that clients get for a budget without disruptions.
func TestExhaustedBudgets(t *testing.T) {
	t.Parallel()
	for want, condition := range map[string]metav1.Condition{
		"The disruption budget web does not allow evicting pods currently because it failed sync: no controller": {
			Reason: "SyncFailed", Message: "no controller",
		},
		"The disruption budget web does not allow evicting pods currently (InsufficientPods): two pods are left": {
			Reason: "InsufficientPods", Message: "two pods are left",
		},
		"The disruption budget web does not allow evicting pods currently": {Reason: "InsufficientPods"},
	} {
		budget := newBudget("web", 0)
		budget.Status.CurrentHealthy = 1
		condition.Type, condition.Status = "DisruptionAllowed", metav1.ConditionFalse
		budget.Status.Conditions = []metav1.Condition{condition}
		err := exhausted(budget)
		if text := describeError(err); !strings.HasSuffix(text, "\n"+want) || !apierrors.IsTooManyRequests(err) {
			t.Errorf("got %s, want %s", text, want)
		}
	}
}

func TestComponentStatuses(t *testing.T) {
	t.Parallel()
	all := components{
		"healthy": checkMember(func(context.Context) error { return nil }),
		"failing": checkMember(func(context.Context) error { return errors.New("no quorum") }),
		"unknown": func(context.Context) (probe.Result, string, error) { return probe.Unknown, "", errors.New("no route") },
		"refusing": func(context.Context) (probe.Result, string, error) {
			return probe.Failure, "connection refused", nil
		},
	}
	statuses, err := all.compute(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	want := []api.ComponentStatus{
		{Conditions: []api.ComponentCondition{{Status: api.ConditionFalse, Error: "no quorum"}}},
		{Conditions: []api.ComponentCondition{{Status: api.ConditionTrue, Message: "ok"}}},
		{Conditions: []api.ComponentCondition{{Status: api.ConditionFalse, Message: "connection refused"}}},
		{Conditions: []api.ComponentCondition{{Status: api.ConditionUnknown, Error: "no route"}}},
	}
	for i, name := range []string{"failing", "healthy", "refusing", "unknown"} {
		want[i].Conditions[0].Type = api.ComponentHealthy
		got := statuses[i].(*api.ComponentStatus)
		if got.Name != name || !slices.Equal(got.Conditions, want[i].Conditions) {
			t.Errorf("got %s %+v, want %s %+v", got.Name, got.Conditions, name, want[i].Conditions)
		}
	}
	if one, err := all.compute(t.Context(), "healthy"); err != nil || len(one) != 1 {
		t.Errorf("one component: got %v, %v", one, err)
	}
	if _, err := all.compute(t.Context(), "absent"); !apierrors.IsNotFound(err) {
		t.Errorf("an unknown component: got %v", err)
	}
}

// TestComponents: the control plane has a scheduler, a controller manager and the members of etcd.
func TestComponents(t *testing.T) {
	t.Parallel()
	ask := func(context.Context) error { return nil }
	all := newComponents([]func(context.Context) error{ask, ask})
	for _, name := range []string{"controller-manager", "etcd-0", "etcd-1", "scheduler"} {
		if all[name] == nil {
			t.Errorf("there is no component %s", name)
		}
	}
	if len(all) != 4 {
		t.Errorf("got %d components, want 4", len(all))
	}
}

// TestBindingChecksNothingElse: a binding changes the node of a pod, which the strategy of pod updates forbids.
func TestBindingChecksNothingElse(t *testing.T) {
	t.Parallel()
	strategy := bindingSubresource(nil).Update
	before, after := newPod(api.PodPending), newPod(api.PodPending)
	after.Spec.NodeName, after.Status.Phase = "one", api.PodRunning
	strategy.PrepareForUpdate(t.Context(), after, before)
	errs := strategy.ValidateUpdate(t.Context(), after, before)
	if len(errs) > 0 || after.Status.Phase != api.PodRunning ||
		len(strategy.WarningsOnUpdate(t.Context(), after, before)) > 0 {
		t.Errorf("got %v for %+v", errs, after)
	}
}
