package watchcache

import (
	"context"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// TestHistoryWithoutPrevious compacts etcd while it reads the previous states of events. A watch from before such an
// event must expire, because it would report a modification as a creation and miss a deletion.
func TestHistoryWithoutPrevious(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(w *world) int64
	}{
		{"update", func(w *world) int64 { return w.update("pods/a/1", "y;") }},
		{"deletion", func(w *world) int64 { return w.delete("pods/a/1") }},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newStoppedWorld(t, Options{})
			start := w.create("pods/a/1", "x;")
			changed := test.change(w)
			w.client.Watcher = overtaken{w.client.Watcher, changed}
			w.run()
			w.create("pods/a/2", "x;")
			pods := w.cache("pods")
			w.latest(pods)
			w.expectExpired(w.watch(pods, start, Scope{}))
			w.expect(w.watch(pods, changed, Scope{}), "ADDED pods/a/2@x;")
		})
	}
}

// overtaken is an etcd whose event at one revision lacks the previous state.
type overtaken struct {
	clientv3.Watcher
	revision int64
}

func (o overtaken) Watch(ctx context.Context, key string, options ...clientv3.OpOption) clientv3.WatchChan {
	responses := make(chan clientv3.WatchResponse)
	go func() {
		defer close(responses)
		for response := range o.Watcher.Watch(ctx, key, options...) {
			for _, event := range response.Events {
				if event.Kv.ModRevision == o.revision {
					event.PrevKv = nil
				}
			}
			select {
			case responses <- response:
			case <-ctx.Done():
				return
			}
		}
	}()
	return responses
}
