package failover

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typed "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/util/flowcontrol"
)

const (
	namespacePrefix = "failover-"
	shards          = 5 // of a namespace
	loaders         = 32
	writers         = 6
	writesPerSecond = 30 // of a writer
)

func namespace(i int) string { return fmt.Sprintf("%s%d", namespacePrefix, i) }

func configMap(namespace, name string, shard int) *core.ConfigMap {
	return &core.ConfigMap{
		ObjectMeta: meta.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"shard": fmt.Sprint(shard)}},
		Data:       map[string]string{"value": "0"},
	}
}

// load creates the namespaces and the objects.
func (r *replicas) load(size size) {
	r.Helper()
	namespaces := size.informers / shards
	clients := []kubernetes.Interface{r.client(0), r.client(1)}
	work, ctx := errgroup.WithContext(r.Context())
	for i := range namespaces {
		_, err := clients[0].CoreV1().Namespaces().Create(ctx,
			&core.Namespace{ObjectMeta: meta.ObjectMeta{Name: namespace(i)}}, meta.CreateOptions{})
		if err != nil {
			r.Fatal(err)
		}
	}
	for loader := range loaders {
		client := clients[loader%len(clients)]
		work.Go(func() error {
			for i := loader; i < size.objects; i += loaders {
				object := configMap(namespace(i%namespaces), fmt.Sprintf("object-%d", i), i/namespaces%shards)
				created, err := client.CoreV1().ConfigMaps(object.Namespace).Create(ctx, object, meta.CreateOptions{})
				if err != nil {
					return err
				}
				r.answers.written(created, revision(r, created))
			}
			return nil
		})
	}
	if err := work.Wait(); err != nil {
		r.Fatal(err)
	}
}

// writing holds the clients that change and read objects.
type writing struct {
	acknowledged, reads, failures atomic.Int64
	group                         sync.WaitGroup
	stop                          context.CancelFunc
	changed                       chan struct{} // holds an element after an acknowledged write
}

// write starts writers. Each increments the counter in its own object, and creates and deletes others.
func (r *replicas) write(size size) *writing {
	ctx, stop := context.WithCancel(r.Context())
	w := &writing{stop: stop, changed: make(chan struct{}, 1)}
	for i := range writers {
		// Each has its own clients, and reads through another replica than it writes through.
		writer := &writer{replicas: r, writing: w, namespace: namespace(i % (size.informers / shards)),
			name: fmt.Sprintf("writer-%d", i),
			to:   r.client(i), from: r.client(i + 1), limit: flowcontrol.NewTokenBucketRateLimiter(writesPerSecond, 1)}
		w.group.Add(1)
		go func() {
			defer w.group.Done()
			writer.run(ctx)
		}()
	}
	return w
}

// end waits until the writers have finished their current requests.
func (w *writing) end() {
	w.stop()
	w.group.Wait()
}

// await waits for the given number of further acknowledged writes.
func (w *writing) await(r *replicas, count int64) {
	r.Helper()
	target := w.acknowledged.Load() + count
	timeout := time.After(patience)
	for w.acknowledged.Load() < target {
		select {
		case <-w.changed:
		case <-timeout:
			r.Fatalf("writers are stuck: %d of %d writes, %d failures", w.acknowledged.Load(), target, w.failures.Load())
		}
	}
}

type writer struct {
	*replicas
	*writing
	namespace, name string
	to, from        kubernetes.Interface
	limit           flowcontrol.RateLimiter

	newest int64 // revision read or acknowledged
}

// run writes and reads in turn. Requests that fail while a replica is killed are retried, as clients do.
func (w *writer) run(ctx context.Context) {
	for i := 0; w.limit.Wait(ctx) == nil; i++ {
		if err := w.write(w.Context(), i); err != nil {
			w.failures.Add(1)
			continue
		}
		w.acknowledged.Add(1)
		select {
		case w.changed <- struct{}{}:
		default:
		}
		w.read(w.Context())
	}
}

// write increments the counter, and creates or deletes another object.
func (w *writer) write(ctx context.Context, i int) error {
	if err := w.count(ctx, i); err != nil {
		return err
	}
	other := configMap(w.namespace, fmt.Sprintf("%s-%d", w.name, i/2), i/2%shards)
	if i%2 == 0 {
		_, err := w.create(ctx, other)
		return err
	}
	return w.delete(ctx, other)
}

// count writes a number into the writer's object.
func (w *writer) count(ctx context.Context, i int) error {
	current, err := w.maps().Get(ctx, w.name, meta.GetOptions{})
	if apierrors.IsNotFound(err) {
		if w.newest > 0 {
			w.Errorf("%s is not there for a GET, after revision %d", w.name, w.newest)
		}
		current, err = w.create(ctx, configMap(w.namespace, w.name, 0))
	}
	if err != nil {
		return err
	}
	w.see("GET", current)
	current.Data["value"] = fmt.Sprint(i)
	updated, err := w.maps().Update(ctx, current, meta.UpdateOptions{})
	if err != nil {
		w.answers.unknown(current)
		return err
	}
	w.see("PUT", updated)
	w.answers.written(updated, revision(w.replicas, updated))
	return nil
}

func (w *writer) maps() typed.ConfigMapInterface { return w.to.CoreV1().ConfigMaps(w.namespace) }

func (w *writer) create(ctx context.Context, object *core.ConfigMap) (*core.ConfigMap, error) {
	created, err := w.maps().Create(ctx, object, meta.CreateOptions{})
	if err == nil {
		w.answers.written(created, revision(w.replicas, created))
	}
	return created, err
}

// delete deletes an existing object, unless its creation failed.
func (w *writer) delete(ctx context.Context, object *core.ConfigMap) error {
	err := w.maps().Delete(ctx, object.Name, meta.DeleteOptions{})
	switch {
	case err == nil:
		w.answers.deleted(object)
	case !apierrors.IsNotFound(err):
		w.answers.unknown(object)
	case w.answers.has(object):
		w.Errorf("%s, whose creation was acknowledged, is not there for a DELETE", object.Name)
	default:
		err = nil
	}
	return err
}

// read reads the object and the list, whose revision is the newest, through the other replica if that is up.
func (w *writer) read(ctx context.Context) {
	maps := w.from.CoreV1().ConfigMaps(w.namespace)
	if current, err := maps.Get(ctx, w.name, meta.GetOptions{}); err == nil {
		w.reads.Add(1)
		w.see("GET through the other replica", current)
	} else if apierrors.IsNotFound(err) {
		w.Errorf("%s is not there for the other replica, after revision %d", w.name, w.newest)
	}
	if list, err := maps.List(ctx, meta.ListOptions{Limit: 1}); err == nil {
		w.reads.Add(1)
		if at := revision(w.replicas, &meta.ObjectMeta{ResourceVersion: list.ResourceVersion}); at < w.newest {
			w.Errorf("LIST of %s went back from %d to %d", w.namespace, w.newest, at)
		}
	}
}

// see checks that the writer's object, which only the writer changes, is not older than before.
func (w *writer) see(what string, object *core.ConfigMap) {
	at := revision(w.replicas, object)
	if at < w.newest {
		w.Errorf("%s of %s went back from %d to %d", what, w.name, w.newest, at)
	}
	w.newest = max(w.newest, at)
}
