package reconcile

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/limited"
	"quorate.dev/operator/reconcile/outcome"
	"quorate.dev/test/invariants"
	"quorate.dev/test/upstream"
	"quorate.dev/writelimit"
)

// faultLimits returns the duration of a fault, and the number of writes of one object, including failed ones, that it
// may cause: three in each reconciliation, of which there is one every 15 seconds, and more in the beginning. The
// duration is an hour in the long form of the tests.
func faultLimits() (duration time.Duration, maximum int) {
	if os.Getenv("QUORATE_HOSTILE") == "" {
		duration = 10 * time.Minute
	} else {
		duration = time.Hour
	}
	return duration, 3 * (int(duration/(15*time.Second)) + 20)
}

// refusals are the errors with which a hosting cluster refuses a write.
var refusals = map[string]func(client.Object) error{
	"forbidden": func(o client.Object) error {
		return apierrors.NewForbidden(schema.GroupResource{}, o.GetName(), errors.New("exceeded quota"))
	},
	"conflict": func(o client.Object) error {
		return apierrors.NewConflict(schema.GroupResource{}, o.GetName(), errors.New("the object has been modified"))
	},
	"timeout": func(client.Object) error { return apierrors.NewTimeoutError("the webhook does not respond", 0) },
}

// tasks are the changes that the operator has to make when a fault begins, in a cluster with three replicas.
var tasks = map[string]func(*simulation){
	"launch": func(w *simulation) {
		object := &v1alpha1.ApiServerCluster{}
		object.Namespace, object.Name, object.UID = "ns", "demo", "demo"
		object.Spec.Replicas = ptr.To[int32](3)
		w.must(w.raw.Create(w.t.Context(), object))
	},
	"roll":       func(w *simulation) { w.roll() },
	"scale up":   func(w *simulation) { w.scaleTo(5) },
	"scale down": func(w *simulation) { w.scaleTo(1) },
	"lose labels": func(w *simulation) {
		pod := w.podNamed("demo-1")
		pod.Labels = nil
		w.must(w.raw.Update(w.t.Context(), pod))
	},
	"lose the quorum": func(w *simulation) {
		for _, name := range []string{"demo-0", "demo-1"} {
			w.etcd.processes[string(w.podNamed(name).UID)].frozen = true
		}
	},
	"lose a Secret": func(w *simulation) { w.must(w.raw.Delete(w.t.Context(), w.secret("demo-serving"))) },
	"delete":        func(w *simulation) { w.must(w.raw.Delete(w.t.Context(), w.get())) },
}

func (w *simulation) scaleTo(replicas int32) {
	object := w.get()
	object.Spec.Replicas = ptr.To(replicas)
	w.must(w.raw.Update(w.t.Context(), object))
}

func (w *simulation) podNamed(name string) *corev1.Pod {
	pod := &corev1.Pod{}
	w.must(w.raw.Get(w.t.Context(), client.ObjectKey{Namespace: "ns", Name: name}, pod))
	return pod
}

// refusedWrites are the kinds of writes that TestRefusedWritesAreBounded refuses, each with the task that needs it.
var refusedWrites = map[string]string{
	"create *v1.Pod": "launch", "delete *v1.Pod": "roll", "patch *v1.Pod": "lose labels",
	"create *v1.PersistentVolumeClaim": "scale up", "delete *v1.PersistentVolumeClaim": "scale down",
	"patch *v1.PersistentVolumeClaim": "launch",
	"create *v1.Secret":               "lose a Secret", "update *v1.Secret": "lose a Secret",
	"create *v1.Service": "launch", "status *v1alpha1.ApiServerCluster": "launch",
	"patch *v1alpha1.ApiServerCluster": "delete", "nothing": "lose the quorum",
}

// TestRefusedWritesAreBounded makes the hosting cluster refuse one kind of write for a time while the operator has a
// task that needs it. The operator writes no object more than a few hundred times an hour. The short form tests only
// conflicts, which the operator retries without an error.
func TestRefusedWritesAreBounded(t *testing.T) {
	upstream.NeedsTime(t)
	duration, maximum := faultLimits()
	for refused, task := range refusedWrites {
		for reason, refuse := range refusals {
			if os.Getenv("QUORATE_HOSTILE") == "" && (reason != "conflict" || refused == "nothing") {
				continue
			}
			t.Run(task+", "+reason+", "+refused, func(t *testing.T) {
				b := newBounded(t, task)
				b.refuse = func(verb string, object client.Object) error {
					if fmt.Sprintf("%s %T", verb, object) == refused {
						return refuse(object)
					}
					return nil
				}
				b.run(duration, maximum)
			})
		}
	}
}

// TestRevertedWritesAreBounded lets another controller revert each write of one kind immediately. Each write succeeds,
// and the watch of the object triggers the next reconciliation, so that only the limit of the client bounds the writes.
func TestRevertedWritesAreBounded(t *testing.T) {
	limit, duration := writelimit.Limit{Burst: 10, PerHour: 360}, 20*time.Second
	permitted := limit.Burst + limit.PerHour/180 + 1
	for reverted, task := range map[string]string{"patch *v1.Pod": "lose labels"} {
		t.Run(reverted, func(t *testing.T) {
			b := newBounded(t, task)
			b.reverts = reverted
			b.limit(limit)
			if most := b.run(duration, permitted); most < limit.Burst {
				t.Errorf("an object was written %d times: the limit was not reached, so that this test shows nothing", most)
			}
		})
	}
}

// bounded is a simulation that counts the writes of one operator.
type bounded struct {
	*simulation
	// Returns the error of a write, or nil; nil: no write is refused.
	refuse  func(verb string, object client.Object) error
	reverts string          // verb and type of writes that are reverted
	before  []client.Object // former states of the objects to be reverted
	// Number of writes by verb, type and name, including failed ones.
	counts map[string]int
}

func newBounded(t *testing.T, task string) *bounded {
	b := &bounded{simulation: newSimulation(t, 1), counts: map[string]int{}}
	if task != "launch" {
		b.launch(3)
	}
	b.limit(limited.Limit)
	b.operators[0].Retries = outcome.NewRetries()
	tasks[task](b.simulation)
	b.refused = b.count
	return b
}

// limit limits the writes of the operator with the given limit.
func (b *bounded) limit(limit writelimit.Limit) {
	operator := b.operators[0]
	operator.Client = limited.New(operator.Client, writelimit.New(limit, b.clock, writelimit.NewCounter(limited.Help)),
		"test")
}

// count is called before each write of the operator.
func (b *bounded) count(verb string, object client.Object) error {
	b.counts[fmt.Sprintf("%s %T %s", verb, object, object.GetName())]++
	if b.refuse != nil {
		if err := b.refuse(verb, object); err != nil {
			return err
		}
	}
	if fmt.Sprintf("%s %T", verb, object) == b.reverts {
		current, _ := object.DeepCopyObject().(client.Object)
		b.must(b.raw.Get(b.t.Context(), client.ObjectKeyFromObject(object), current))
		b.before = append(b.before, current)
	}
	return nil
}

// run calls Reconcile for a duration, with the backoff of controller-runtime, and returns the greatest number of writes
// of one object. It ends early if that number exceeds a maximum, or if only an event could change anything.
func (b *bounded) run(duration time.Duration, maximum int) (most int) {
	b.t.Helper()
	failures, end := 0, b.clock.Now().Add(duration)
	for b.clock.Now().Before(end) {
		result, err := b.operators[0].Reconcile(b.t.Context(), ctrl.Request{NamespacedName: demo})
		triggered := slices.ContainsFunc(b.history, triggers)
		b.progress()
		delay := result.RequeueAfter
		if err != nil {
			delay = min(50*time.Millisecond<<min(failures, 10), 15*time.Second) // the rate limiter of watches.SetUp
			failures++
		} else {
			failures = 0
		}
		if triggered {
			delay = time.Millisecond
		}
		for name, count := range b.counts {
			if most = max(most, count); count > maximum {
				b.t.Fatalf("wrote %s %d times, at most %d are permitted; last result: %+v, %v", name, count, maximum, result, err)
			}
		}
		if delay == 0 {
			break
		}
		b.clock.Step(delay)
	}
	return most
}

// triggers reports whether a step is a write whose watch event triggers a reconciliation. The watch of clusters ignores
// changes of their status.
func triggers(s invariants.Step) bool { return s.Operator && !strings.Contains(s.Action, ": status ") }

// progress lets the kubelets, etcd and the other controller act.
func (b *bounded) progress() {
	b.results, b.history = nil, nil
	for _, object := range b.before {
		current, _ := object.DeepCopyObject().(client.Object)
		b.must(b.raw.Get(b.t.Context(), client.ObjectKeyFromObject(object), current))
		object.SetResourceVersion(current.GetResourceVersion())
		b.must(b.raw.Update(b.t.Context(), object))
	}
	b.before = nil
	b.kubelets()
	b.etcd.mutex.Lock()
	b.etcd.tick()
	b.etcd.mutex.Unlock()
	b.kubelets()
}
