package endtoend

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// The load beside the 50 writes per second of a history. docs/availability.md describes it.
const (
	readers         = 5                      // 50 reads per second
	readInterval    = 100 * time.Millisecond // of each reader
	watchers        = 20
	connectInterval = 300 * time.Millisecond
	requestTimeout  = 10 * time.Second
)

// budget is what clients may notice of an event.
type budget struct {
	failed int           // requests; client-go's own retries are not counted; unlimited: not limited
	gap    time.Duration // without an acknowledged write
}

// Clients notice nothing of planned changes. A crash fails the requests in flight, of at most one per client.
var (
	planned = budget{failed: 0, gap: time.Second}
	crash   = budget{failed: creators + readers + 2, gap: 3 * time.Second}
	// A client whose connection leads to a process that has stopped without closing it notices after 45 seconds, by
	// client-go's defaults. Until then all of its requests fail.
	freeze = budget{failed: unlimited, gap: 3 * time.Second}
)

const unlimited = 1 << 20

// strict makes the budgets apply exactly. A machine that runs other tests pauses for longer than some of the gaps, and few
// requests time out.
func strict() bool { return os.Getenv("QUORATE_AVAILABILITY") != "" }

// failures are requests that failed, as seen by clients.
type failures struct {
	mu    sync.Mutex
	notes []string
}

func (f *failures) add(what string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.notes = append(f.notes, fmt.Sprintf("%s %s: %v", time.Now().Format("15:04:05.000"), what, err))
}

// take returns the failures since its last call.
func (f *failures) take() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	notes := f.notes
	f.notes = nil
	return notes
}

// load reads, watches and opens connections. Each reader and watcher has its own connection.
type load struct {
	t        *testing.T
	config   *rest.Config
	failures *failures
	stop     context.CancelFunc
	done     sync.WaitGroup
	stores   []cache.Store
}

// addLoad starts a load beside a history. The failures of both are counted together.
func (h *history) addLoad(config *rest.Config) *load {
	h.t.Helper()
	ctx, stop := context.WithCancel(h.t.Context())
	l := &load{t: h.t, config: config, failures: &h.failures, stop: stop}
	for range readers {
		client := clientOf(h.t, config)
		l.done.Go(func() { l.read(ctx, client) })
	}
	for range watchers {
		l.watch(ctx)
	}
	l.done.Go(func() { l.connect(ctx) })
	return l
}

// clientOf returns a client with its own connection, unless the configuration has a transport.
func clientOf(t *testing.T, config *rest.Config) kubernetes.Interface {
	t.Helper()
	if config.Transport == nil {
		config = rest.CopyConfig(config)
		config.Dial = (&net.Dialer{Timeout: requestTimeout}).DialContext
	}
	return must(kubernetes.NewForConfig(config))(t)
}

// read reads the counter: no client reads an older state than it has read before.
func (l *load) read(ctx context.Context, client kubernetes.Interface) {
	last := "0"
	l.every(ctx, readInterval, func(ctx context.Context) {
		object, err := client.CoreV1().ConfigMaps(namespace).Get(ctx, "counter", metav1.GetOptions{})
		switch {
		case err != nil:
			l.failures.add("read", err)
		case later(last, object.ResourceVersion):
			l.t.Errorf("a client read revision %s after %s", object.ResourceVersion, last)
		default:
			last = object.ResourceVersion
		}
	})
}

// connect sends each request on a new connection.
func (l *load) connect(ctx context.Context) {
	l.every(ctx, connectInterval, func(ctx context.Context) {
		if err := get(ctx, l.config); err != nil {
			l.failures.add("new connection", err)
		}
	})
}

// watch starts an informer.
func (l *load) watch(ctx context.Context) {
	factory := informers.NewSharedInformerFactoryWithOptions(clientOf(l.t, l.config), 0, informers.WithNamespace(namespace))
	informer := factory.Core().V1().ConfigMaps().Informer()
	must(informer.AddEventHandler(cache.ResourceEventHandlerFuncs{UpdateFunc: func(before, after any) {
		if old, now := before.(*corev1.ConfigMap), after.(*corev1.ConfigMap); !later(now.ResourceVersion, old.ResourceVersion) {
			l.t.Errorf("a watcher got revision %s of %s after %s", now.ResourceVersion, now.Name, old.ResourceVersion)
		}
	}}))(l.t)
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		l.t.Fatal("an informer did not sync")
	}
	l.stores = append(l.stores, informer.GetStore())
}

// every calls a function at an interval until ctx is done.
func (l *load) every(ctx context.Context, interval time.Duration, do func(context.Context)) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		attempt, cancel := context.WithTimeout(ctx, requestTimeout)
		do(attempt)
		cancel()
		if ctx.Err() != nil {
			return // the last request was aborted
		}
	}
}

// verify stops the load. Every watcher must have seen the history's last object by then, or see it soon.
func (l *load) verify(s *sandbox) {
	l.t.Helper()
	for i, store := range l.stores {
		s.waitFor(fmt.Sprintf("watcher %d sees the last object", i), func() (bool, string) {
			_, found, err := store.GetByKey(namespace + "/last")
			return found, fmt.Sprint(err)
		})
	}
	l.stop()
	l.done.Wait()
}

// spend compares what clients noticed of an event with its budget.
func (h *history) spend(t *testing.T, b budget) {
	t.Helper()
	failed, gap := h.failures.take(), h.longestGap()
	t.Logf("%d failed requests, longest time without a confirmed write: %s", len(failed), gap)
	if !strict() {
		b.failed += 3
	}
	if len(failed) > b.failed {
		t.Errorf("%d requests failed, at most %d may:\n%s", len(failed), b.failed, strings.Join(failed, "\n"))
	}
	if gap > b.gap && strict() {
		t.Errorf("no write was confirmed for %s, at most %s", gap, b.gap)
	}
}
