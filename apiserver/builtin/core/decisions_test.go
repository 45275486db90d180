package core

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/policy"
	testingclock "k8s.io/utils/clock/testing"
)

func TestChargeOfBudgets(t *testing.T) {
	for name, test := range map[string]struct {
		status  policy.PodDisruptionBudgetStatus
		refused func(error) bool
		left    int32
	}{
		"allowed": {policy.PodDisruptionBudgetStatus{ObservedGeneration: 2, DisruptionsAllowed: 2}, nil, 1},
		"not counted": {
			policy.PodDisruptionBudgetStatus{ObservedGeneration: 1, DisruptionsAllowed: 2}, apierrors.IsTooManyRequests, 2,
		},
		"exhausted": {policy.PodDisruptionBudgetStatus{ObservedGeneration: 2}, apierrors.IsTooManyRequests, 0},
		"negative":  {policy.PodDisruptionBudgetStatus{ObservedGeneration: 2, DisruptionsAllowed: -1}, forbidden, -1},
		"too many at once": {
			policy.PodDisruptionBudgetStatus{ObservedGeneration: 2, DisruptionsAllowed: 2,
				DisruptedPods: manyPods(maxDisruptedPods + 1)}, forbidden, 2,
		},
	} {
		budget := &policy.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "b", Generation: 2}, Status: test.status}
		err := checkAndDecrement(budget, "web", metav1.Now())
		if (err != nil) != (test.refused != nil) || err != nil && !test.refused(err) {
			t.Errorf("%s: %v", name, err)
		}
		if status, ok := errors.AsType[*apierrors.StatusError](err); ok {
			causes := status.ErrStatus.Details.Causes
			if len(causes) != 1 || causes[0].Type != policyv1.DisruptionBudgetCause ||
				!strings.Contains(causes[0].Message, "The disruption budget b ") {
				t.Errorf("%s: got the causes %+v", name, causes)
			}
		}
		if _, noted := budget.Status.DisruptedPods["web"]; noted != (err == nil) ||
			budget.Status.DisruptionsAllowed != test.left {
			t.Errorf("%s: status %+v", name, budget.Status)
		}
	}
}

// forbidden reports whether an error has kube-apiserver's text, which has a singular resource here.
func forbidden(err error) bool {
	return apierrors.IsForbidden(err) && strings.HasPrefix(err.Error(), `poddisruptionbudget.policy "b" is forbidden: `)
}

func manyPods(pods int) map[string]metav1.Time {
	disrupted := map[string]metav1.Time{}
	for i := range pods {
		disrupted[strconv.Itoa(i)] = metav1.Time{}
	}
	return disrupted
}

func TestUnhealthyPods(t *testing.T) {
	always := policy.AlwaysAllow
	unready, ready := &api.Pod{}, &api.Pod{
		Status: api.PodStatus{Conditions: []api.PodCondition{{Type: api.PodReady, Status: api.ConditionTrue}}},
	}
	healthy := policy.PodDisruptionBudgetStatus{CurrentHealthy: 2, DesiredHealthy: 2}
	for name, test := range map[string]struct {
		pod    *api.Pod
		budget policy.PodDisruptionBudget
		want   bool
	}{
		"ready":          {ready, policy.PodDisruptionBudget{Status: healthy}, false},
		"enough healthy": {unready, policy.PodDisruptionBudget{Status: healthy}, true},
		"too few healthy": {
			unready, policy.PodDisruptionBudget{Status: policy.PodDisruptionBudgetStatus{CurrentHealthy: 1, DesiredHealthy: 2}},
			false,
		},
		"too few, always allow": {
			unready, policy.PodDisruptionBudget{Spec: policy.PodDisruptionBudgetSpec{UnhealthyPodEvictionPolicy: &always}}, true,
		},
	} {
		if got := canEvictUnhealthy(&test.budget, test.pod); got != test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestDeletionOfNamespaceSetsPropagationFinalizer(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	deletion := namespaceDeletion{clock: testingclock.NewFakePassiveClock(now)}
	foreground, background := metav1.DeletePropagationForeground, metav1.DeletePropagationBackground
	yes := true
	for name, test := range map[string]struct {
		options *metav1.DeleteOptions
		want    []string
	}{
		"unsaid":     {&metav1.DeleteOptions{}, []string{"orphan"}},
		"foreground": {&metav1.DeleteOptions{PropagationPolicy: &foreground}, []string{"foregroundDeletion"}},
		"background": {&metav1.DeleteOptions{PropagationPolicy: &background}, nil},
		"orphan":     {&metav1.DeleteOptions{OrphanDependents: &yes}, []string{"orphan"}},
	} {
		namespace := &api.Namespace{
			ObjectMeta: metav1.ObjectMeta{Finalizers: []string{"orphan"}}, Spec: api.NamespaceSpec{
				Finalizers: []api.FinalizerName{"kubernetes"},
			},
		}
		if !deletion.Terminate(namespace, test.options) {
			t.Errorf("%s: not pending", name)
		}
		if !slices.Equal(namespace.Finalizers, test.want) || !namespace.DeletionTimestamp.Time.Equal(now) ||
			namespace.Status.Phase != api.NamespaceTerminating {
			t.Errorf("%s: %+v", name, namespace)
		}
	}
}

// TestBindingKeepsStatus checks that only errors without an API status become conflicts, also if the status is wrapped.
func TestBindingKeepsStatus(t *testing.T) {
	missing := apierrors.NewNotFound(pods, "web")
	for name, test := range map[string]struct {
		err  error
		want func(error) bool
	}{
		"status":         {missing, apierrors.IsNotFound},
		"wrapped status": {fmt.Errorf("update pod: %w", missing), apierrors.IsNotFound},
		"other error":    {errors.New("pod web is already assigned"), apierrors.IsConflict},
	} {
		if err := asConflict(test.err, "web"); !test.want(err) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}
