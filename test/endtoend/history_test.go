package endtoend

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

const namespace = "history"

// history writes and watches continuously, and finally checks that nothing was lost.
type history struct {
	t      *testing.T
	client kubernetes.Interface
	stop   context.CancelFunc
	done   sync.WaitGroup

	mu sync.Mutex
	// acknowledged are the revisions of the ConfigMaps whose creation was acknowledged, by name.
	acknowledged map[string]string
	// counter is the last acknowledged value of the object that is updated continuously.
	counter int
	// longest is the longest time between two acknowledged writes since the last call of longestGap.
	since time.Time
	gap   time.Duration

	// events are the events of the watch, in order, by object.
	events map[string][]string
	seen   string // last revision of the watch

	informer cache.SharedIndexInformer

	failures failures
}

// 50 writes per second: creators create one object after the other, each through its own connection, and one writer
// updates the counter.
const (
	creators       = 5
	createInterval = 200 * time.Millisecond
	updateInterval = 40 * time.Millisecond
	writeTimeout   = 5 * time.Second
)

// record starts writing and watching.
func record(t *testing.T, config *rest.Config) *history {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	h := &history{
		t: t, client: clientOf(t, config), stop: stop,
		acknowledged: map[string]string{}, events: map[string][]string{}, since: time.Now(),
	}
	h.prepare(ctx)
	factory := informers.NewSharedInformerFactoryWithOptions(h.client, 0, informers.WithNamespace(namespace))
	h.informer = factory.Core().V1().ConfigMaps().Informer()
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), h.informer.HasSynced) {
		t.Fatal("the informer did not sync")
	}
	h.done.Go(func() { h.watch(ctx) })
	for writer := range creators {
		client := clientOf(t, config)
		h.done.Go(func() { h.create(ctx, client, writer) })
	}
	h.done.Go(func() { h.update(ctx, clientOf(t, config)) })
	return h
}

func (h *history) prepare(ctx context.Context) {
	h.t.Helper()
	_, err := h.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		metav1.CreateOptions{})
	check(h.t, err)
	_, err = h.client.CoreV1().ConfigMaps(namespace).Create(ctx, configMap("counter", 0), metav1.CreateOptions{})
	check(h.t, err)
	list, err := h.client.CoreV1().ConfigMaps(namespace).List(ctx, metav1.ListOptions{})
	check(h.t, err)
	h.seen = list.ResourceVersion
}

func configMap(name string, value int) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Data:       map[string]string{"value": strconv.Itoa(value)},
	}
}

// create creates objects one after the other, and retries each until its outcome is known.
func (h *history) create(ctx context.Context, client kubernetes.Interface, writer int) {
	ticker := time.NewTicker(createInterval)
	defer ticker.Stop()
	for i := 0; ctx.Err() == nil; i++ {
		<-ticker.C
		name := fmt.Sprintf("object-%d-%05d", writer, i)
		h.untilKnown(ctx, func(ctx context.Context) error {
			var made *corev1.ConfigMap
			err := h.request(ctx, writerName(writer), "create", func(ctx context.Context) (err error) {
				made, err = client.CoreV1().ConfigMaps(namespace).Create(ctx, configMap(name, i), metav1.CreateOptions{})
				return err
			})
			if apierrors.IsAlreadyExists(err) { // an earlier attempt with an unknown outcome succeeded
				made, err = h.get(ctx, client, writerName(writer), name)
			}
			if err != nil {
				return err
			}
			h.confirm(func() { h.acknowledged[name] = made.ResourceVersion })
			return nil
		})
	}
}

// update increments a counter in one object, reading it before each write: an acknowledged value must never decrease.
func (h *history) update(ctx context.Context, client kubernetes.Interface) {
	ticker := time.NewTicker(updateInterval)
	defer ticker.Stop()
	for ctx.Err() == nil {
		<-ticker.C
		h.untilKnown(ctx, func(ctx context.Context) error {
			object, err := h.get(ctx, client, updater, "counter")
			if err != nil {
				return err
			}
			value, err := strconv.Atoi(object.Data["value"])
			if err != nil {
				return err
			}
			h.mu.Lock()
			if value < h.counter {
				h.t.Errorf("lost an acknowledged write: the counter is %d, acknowledged was %d", value, h.counter)
			}
			h.mu.Unlock()
			object.Data["value"] = strconv.Itoa(value + 1)
			err = h.request(ctx, updater, "update", func(ctx context.Context) error {
				_, err := client.CoreV1().ConfigMaps(namespace).Update(ctx, object, metav1.UpdateOptions{})
				return err
			})
			if err == nil {
				h.confirm(func() { h.counter = max(h.counter, value+1) })
			}
			return err
		})
	}
}

func (h *history) get(
	ctx context.Context, client kubernetes.Interface, who, name string,
) (object *corev1.ConfigMap, err error) {
	err = h.request(ctx, who, "get", func(ctx context.Context) (err error) {
		object, err = client.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
		return err
	})
	return object, err
}

// updater is the name of the client that updates the counter.
const updater = "updater"

func writerName(number int) string { return fmt.Sprintf("writer %d", number) }

// untilKnown retries until the outcome is certain.
func (h *history) untilKnown(ctx context.Context, try func(context.Context) error) {
	_ = wait.PollUntilContextCancel(ctx, 20*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		return try(ctx) == nil, nil
	})
}

// request sends one request with a short timeout and counts its failure.
func (h *history) request(ctx context.Context, client, what string, do func(context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	limited, a := newAttempt(limited)
	err := do(limited)
	if err != nil && ctx.Err() == nil && !apierrors.IsAlreadyExists(err) {
		h.failures.add(what, what == "get", a, err)
	}
	if err == nil {
		h.failures.success(client, a)
	}
	return err
}

// confirm records an acknowledged write and the time since the previous one.
func (h *history) confirm(note func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	note()
	h.gap = max(h.gap, time.Since(h.since))
	h.since = time.Now()
}

// awaitWrites waits for a number of acknowledged creations.
func (h *history) awaitWrites(number int) {
	h.t.Helper()
	created := func() int {
		h.mu.Lock()
		defer h.mu.Unlock()
		return len(h.acknowledged)
	}
	until := created() + number
	err := wait.PollUntilContextTimeout(h.t.Context(), updateInterval, waitTimeout, true, func(
		context.Context,
	) (bool, error) {
		return created() >= until, nil
	})
	check(h.t, err)
}

// longestGap returns the longest time without an acknowledged write since its last call.
func (h *history) longestGap() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	gap := h.gap
	h.gap = 0
	return gap
}

// watch watches the namespace, and resumes from the last revision when the connection ends.
func (h *history) watch(ctx context.Context) {
	for ctx.Err() == nil {
		stream, err := h.client.CoreV1().ConfigMaps(namespace).Watch(ctx, metav1.ListOptions{
			ResourceVersion: h.seen, AllowWatchBookmarks: true,
		})
		if err != nil {
			_ = wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, 20*time.Millisecond, false,
				func(context.Context) (bool, error) { return true, nil })
			continue
		}
		h.receive(stream)
	}
}

func (h *history) receive(stream watch.Interface) {
	defer stream.Stop()
	for event := range stream.ResultChan() {
		if event.Type == watch.Error {
			// Resume after a broken connection. An expired revision is an error.
			if err := apierrors.FromObject(event.Object); apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
				h.t.Errorf("the watch cannot resume: %v", err)
			}
			return
		}
		object := event.Object.(*corev1.ConfigMap)
		h.mu.Lock()
		h.seen = object.ResourceVersion
		if event.Type != watch.Bookmark {
			h.events[object.Name] = append(h.events[object.Name], object.ResourceVersion)
		}
		h.mu.Unlock()
	}
}

// verify stops writing and compares the acknowledged writes, the stored objects, the watch and the informer.
func (h *history) verify() {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), waitTimeout)
	defer cancel()
	last := must(h.client.CoreV1().ConfigMaps(namespace).Create(ctx, configMap("last", 0), metav1.CreateOptions{}))(h.t)
	h.awaitEvent(ctx, "last")
	h.stop()
	h.done.Wait()
	list := must(h.client.CoreV1().ConfigMaps(namespace).List(ctx,
		metav1.ListOptions{ResourceVersion: last.ResourceVersion,
			ResourceVersionMatch: metav1.ResourceVersionMatchExact}))(h.t)
	stored := map[string]string{}
	for _, object := range list.Items {
		stored[object.Name] = object.ResourceVersion
	}
	h.compareStored(stored, last.ResourceVersion)
	h.compareEvents(stored, last.ResourceVersion)
}

func (h *history) awaitEvent(ctx context.Context, name string) {
	h.t.Helper()
	err := wait.PollUntilContextCancel(ctx, 20*time.Millisecond, true, func(context.Context) (bool, error) {
		h.mu.Lock()
		defer h.mu.Unlock()
		_, inCache, err := h.informer.GetStore().GetByKey(namespace + "/" + name)
		return inCache && len(h.events[name]) > 0, err
	})
	if err != nil {
		h.t.Fatalf("watch and informer did not see %q: %v", name, err)
	}
}

// compareStored checks that every acknowledged object is stored at its revision.
func (h *history) compareStored(stored map[string]string, until string) {
	h.t.Helper()
	for _, name := range slices.Sorted(maps.Keys(h.acknowledged)) {
		if later(h.acknowledged[name], until) {
			continue
		}
		if stored[name] != h.acknowledged[name] {
			h.t.Errorf("%s was acknowledged at revision %s, stored at %q", name, h.acknowledged[name], stored[name])
		}
	}
	h.t.Logf("%d objects acknowledged, counter %d", len(h.acknowledged), h.counter)
	if len(h.acknowledged) < 50 {
		h.t.Errorf("only %d writes were acknowledged, too few for a result", len(h.acknowledged))
	}
}

// compareEvents checks that the watch and the informer reached the stored state, without repeated or unordered events.
func (h *history) compareEvents(stored map[string]string, until string) {
	h.t.Helper()
	for name, revision := range stored {
		seen := slices.DeleteFunc(slices.Clone(h.events[name]), func(r string) bool { return later(r, until) })
		if len(seen) == 0 {
			if name != "counter" {
				h.t.Errorf("the watch missed %s", name)
			}
			continue
		}
		if seen[len(seen)-1] != revision {
			h.t.Errorf("last event of %s has revision %s, stored is %s", name, seen[len(seen)-1], revision)
		}
		for i := 1; i < len(seen); i++ {
			if !later(seen[i], seen[i-1]) {
				h.t.Errorf("event of %s with revision %s after %s", name, seen[i], seen[i-1])
			}
		}
		if name != "counter" && len(seen) != 1 {
			h.t.Errorf("%s was written once and has %d events", name, len(seen))
		}
	}
	for name, revision := range stored {
		cached, ok, err := h.informer.GetStore().GetByKey(namespace + "/" + name)
		if err != nil || !ok {
			h.t.Errorf("the informer has no %s: %v", name, err)
			continue
		}
		if held := cached.(*corev1.ConfigMap).ResourceVersion; held != revision && !later(held, until) {
			h.t.Errorf("the informer has %s at revision %s, stored is %s", name, held, revision)
		}
	}
}

// later compares revisions.
func later(a, b string) bool {
	x, errX := strconv.ParseUint(a, 10, 64)
	y, errY := strconv.ParseUint(b, 10, 64)
	return errX == nil && errY == nil && x > y
}
