package node

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
)

// dispatch tells each Pod's worker what the API holds now, and starts workers for new Pods. It also runs when a
// Secret, ConfigMap or claim changes, for the workers to look at their volumes again.
func (a *Agent) dispatch(ctx context.Context) error {
	pods, err := a.mine()
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

// forget drops the worker of a Pod that is neither in the API nor running.
func (a *Agent) forget(w *worker) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, removed := w.current(); removed {
		delete(a.workers, w.uid)
	}
}
