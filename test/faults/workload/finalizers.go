package workload

import (
	"context"
	"fmt"

	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

const finalizer = "faults.quorate.dev/held"

// The stages of a pod with a finalizer.
const (
	created = iota + 1
	deleted // the pod has a deletionTimestamp
	gone
)

// finalizers creates pods with a finalizer, deletes the pods, and removes the finalizer. The check requires that a pod
// exists until its finalizer is removed, never loses its deletionTimestamp, and never reappears.
type finalizers struct {
	crew
	pods []*pod // all pods that were created
}

type pod struct {
	stage
	name string
	uid  types.UID
}

const podClients = 2

func (w *finalizers) Start(ctx context.Context) error {
	for id := range podClients {
		generation := 0
		w.work(ctx, id, func(ctx context.Context, c *client) {
			generation++
			w.live(ctx, c, fmt.Sprintf("finalized-%d-%d", id, generation))
		})
	}
	w.work(ctx, podClients, func(ctx context.Context, c *client) {
		if p := w.choose(c); p != nil {
			_ = w.read(ctx, c.any(), p) // Check reads the final state, so an error here is ignored
		}
	})
	return nil
}

// live creates a pod, deletes it and removes its finalizer. It stops after a request with an unknown outcome.
func (w *finalizers) live(ctx context.Context, c *client, name string) {
	object := &core.Pod{
		ObjectMeta: meta.ObjectMeta{Name: name, Finalizers: []string{finalizer}},
		Spec:       core.PodSpec{Containers: []core.Container{{Name: "main", Image: "none"}}},
	}
	made, err := request(ctx, func(ctx context.Context) (*core.Pod, error) {
		return c.any().CoreV1().Pods("default").Create(ctx, object, meta.CreateOptions{})
	})
	if err != nil {
		return
	}
	p := &pod{name: name, uid: made.UID, stage: stage{created, created}}
	w.mu.Lock()
	w.pods = append(w.pods, p)
	w.mu.Unlock()
	_ = c.pause(ctx)
	if w.advance(ctx, c, p, deleted, remove) && c.pause(ctx) {
		w.advance(ctx, c, p, gone, release)
	}
}

// advance sends the write that brings a pod to a stage, and reports whether the write was acknowledged.
func (w *finalizers) advance(ctx context.Context, c *client, p *pod, to int,
	write func(context.Context, kubernetes.Interface, string) error) bool {
	w.mu.Lock()
	p.tried = to
	w.mu.Unlock()
	ctx, cancel := limit(ctx)
	defer cancel()
	if err := write(ctx, c.any(), p.name); err != nil {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	p.known = max(p.known, to)
	return true
}

func remove(ctx context.Context, server kubernetes.Interface, name string) error {
	return server.CoreV1().Pods("default").Delete(ctx, name, meta.DeleteOptions{})
}

func release(ctx context.Context, server kubernetes.Interface, name string) error {
	_, err := server.CoreV1().Pods("default").Patch(ctx, name, types.MergePatchType,
		[]byte(`{"metadata":{"finalizers":null}}`), meta.PatchOptions{})
	return err
}

// choose returns a random pod among the newest, or nil without pods.
func (w *finalizers) choose(c *client) *pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.pods) == 0 {
		return nil
	}
	return w.pods[len(w.pods)-1-c.random.IntN(min(len(w.pods), 4*podClients))]
}

// read reads a pod and records a fault if its stage is impossible.
func (w *finalizers) read(ctx context.Context, server kubernetes.Interface, p *pod) error {
	w.mu.Lock()
	atLeast := p.begin()
	w.mu.Unlock()
	object, err := request(ctx, func(ctx context.Context) (*core.Pod, error) {
		return server.CoreV1().Pods("default").Get(ctx, p.name, meta.GetOptions{})
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	got := gone
	if err == nil {
		got = stageOf(object)
	}
	w.mu.Lock()
	err = p.end(atLeast, got)
	w.mu.Unlock()
	if err != nil {
		err = fmt.Errorf("finalizers: pod %s %w", p.name, p.explain(err, object))
	}
	w.observe(err)
	return nil
}

// explain adds the UIDs of the pod that was read, if a pod was read, and of the pod that was created to an error.
func (p *pod) explain(err error, object *core.Pod) error {
	if object == nil {
		return err
	}
	return fmt.Errorf("%w: it has UID %s and resourceVersion %s, the created one had UID %s", err, object.UID,
		object.ResourceVersion, p.uid)
}

func stageOf(object *core.Pod) int {
	if object.DeletionTimestamp != nil {
		return deleted
	}
	return created
}

// Check reads all pods through each server, by name and in lists, and returns those faults and all earlier ones.
func (w *finalizers) Check(ctx context.Context) []error {
	failures := w.everyServer(ctx, func(ctx context.Context, server kubernetes.Interface) error {
		list, err := server.CoreV1().Pods("default").List(ctx, meta.ListOptions{})
		if err != nil {
			return err
		}
		listed := map[string]*core.Pod{}
		for i := range list.Items {
			listed[list.Items[i].Name] = &list.Items[i]
		}
		for _, p := range w.pods {
			object, got := listed[p.name], gone
			if object != nil {
				got = stageOf(object)
			}
			if err := p.end(p.begin(), got); err != nil {
				w.observe(fmt.Errorf("finalizers: pod %s in a list %w", p.name, p.explain(err, object)))
			}
		}
		return nil
	})
	for _, p := range w.pods[max(0, len(w.pods)-20):] {
		failures = append(failures, w.everyServer(ctx, func(ctx context.Context, server kubernetes.Interface) error {
			return w.read(ctx, server, p)
		})...)
	}
	return append(w.found(), failures...)
}
