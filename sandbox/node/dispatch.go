package node

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
)

// dispatch starts a worker for each new Pod of the node, and notifies all other workers. It is also called when a
// Secret, ConfigMap or claim changes, so that workers update their volumes.
func (a *Agent) dispatch(ctx context.Context) error {
	pods, err := a.ownPods()
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	present := map[types.UID]bool{}
	for _, pod := range pods {
		present[pod.UID] = true
		if w, ok := a.workers[pod.UID]; ok {
			w.update(pod)
			continue
		}
		w := newWorker(a, pod)
		a.workers[pod.UID] = w
		a.running.Go(func() { w.run(ctx) })
	}
	for uid, w := range a.workers {
		if !present[uid] {
			w.remove()
		}
	}
	return nil
}

// forget removes the worker of a Pod that has been removed from the API.
func (a *Agent) forget(w *worker) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, removed := w.current(); removed {
		delete(a.workers, w.uid)
	}
}
