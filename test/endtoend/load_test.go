package endtoend

import (
	"context"
	"fmt"
	"os"
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

// The load in addition to the 50 writes per second of a history. docs/availability.md describes it.
const (
	readers         = 5                      // 50 reads per second
	readInterval    = 100 * time.Millisecond // of each reader
	watchers        = 20
	connectInterval = 300 * time.Millisecond
	requestTimeout  = 10 * time.Second
)

// budget limits the failures that clients may observe during an event.
type budget struct {
	reads, writes map[outcome]int // GET requests, and other requests, that fail with an outcome
	gap           time.Duration   // longest time without an acknowledged write
}

// Planned changes cause no failures. A killed process fails the writes to which it has not responded, at most one for
// each client: client-go does not retry them, because they may have taken effect. It does retry reads. A refused
// connection is not retried: the Service selects the replica until its endpoint is removed. A process that stops
// without closing its connections, or is partitioned, fails the requests on these connections until the client closes
// them, by client-go's defaults after 45 seconds. No event causes an error response.
var (
	planned    = budget{gap: time.Second}
	kill       = killed(time.Second)
	killLeader = killed(3 * time.Second)
	silence    = budget{reads: silent, writes: silent, gap: 3 * time.Second}

	silent = map[outcome]int{interrupted: unlimited, unreachable: unlimited, timedOut: unlimited}
)

func killed(gap time.Duration) budget {
	return budget{
		reads:  map[outcome]int{unreachable: refusals},
		writes: map[outcome]int{interrupted: creators + 1, unreachable: refusals}, gap: gap,
	}
}

// refusals is the number of reads and of writes that may fail because a connection is refused. The writers of a
// history retry every 20 ms.
const refusals = 30

const unlimited = 1 << 20

// strict applies the budgets exactly. A machine that also runs other tests pauses for longer than some of the gaps,
// and few requests time out.
func strict() bool { return os.Getenv("QUORATE_AVAILABILITY") != "" }

// failure is a failed request, as observed by a client.
type failure struct {
	read    bool
	outcome outcome
	text    string
}

func (f failure) String() string { return f.text }

// failures are the failed requests of all clients.
type failures struct {
	mu        sync.Mutex
	list      []failure
	succeeded map[string]time.Time // start of each client's last successful request
	// requests and failed are the numbers of successful and failed requests since the start.
	requests, failed int
}

// success records a successful request of a client.
func (f *failures) success(client string, a *attempt) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.succeeded == nil {
		f.succeeded = map[string]time.Time{}
	}
	f.succeeded[client] = a.begin
	f.requests++
}

// totals returns the numbers of successful and failed requests since the start.
func (f *failures) totals() (requests, failed int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.requests, f.failed
}

// waiting returns the clients whose last successful request began before a time.
func (f *failures) waiting(since time.Time) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var clients []string
	for client, begin := range f.succeeded {
		if begin.Before(since) {
			clients = append(clients, client)
		}
	}
	return clients
}

func (f *failures) add(what string, read bool, a *attempt, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	kind := a.outcome()
	f.failed++
	f.list = append(f.list, failure{
		read, kind, fmt.Sprintf("%s %s: %s: %v (%s)", time.Now().Format("15:04:05.000"), what, kind, err, a),
	})
}

// take returns the failures since its last call.
func (f *failures) take() []failure {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := f.list
	f.list = nil
	return list
}

// load reads, watches and opens connections. Each reader and watcher has its own connection.
type load struct {
	t        *testing.T
	config   *rest.Config
	failures *failures
	// repeat calls a function at the interval of the readers until the load stops.
	repeat func(do func(context.Context))
	stop   context.CancelFunc
	done   sync.WaitGroup
	stores []cache.Store
}

// addLoad starts a load in addition to a history. The failures of both are counted together.
func (h *history) addLoad(config *rest.Config) *load {
	h.t.Helper()
	ctx, stop := context.WithCancel(h.t.Context())
	l := &load{t: h.t, config: config, failures: &h.failures, stop: stop}
	l.repeat = func(do func(context.Context)) {
		l.done.Go(func() { l.every(ctx, readInterval, do) })
	}
	for i := range readers {
		client := clientOf(h.t, config)
		l.done.Go(func() { l.read(ctx, client, fmt.Sprintf("reader %d", i)) })
	}
	for range watchers {
		l.watch(ctx)
	}
	l.done.Go(func() { l.connect(ctx) })
	return l
}

// read reads the counter repeatedly. No client may read an older state than it has read before.
func (l *load) read(ctx context.Context, client kubernetes.Interface, name string) {
	last := "0"
	l.every(ctx, readInterval, func(ctx context.Context) {
		ctx, a := newAttempt(ctx)
		object, err := client.CoreV1().ConfigMaps(namespace).Get(ctx, "counter", metav1.GetOptions{})
		switch {
		case err != nil:
			l.failures.add("read", true, a, err)
		case later(last, object.ResourceVersion):
			l.t.Errorf("a client read revision %s after %s", object.ResourceVersion, last)
		default:
			last = object.ResourceVersion
			l.failures.success(name, a)
		}
	})
}

// connect sends each request on a new connection.
func (l *load) connect(ctx context.Context) {
	l.every(ctx, connectInterval, func(ctx context.Context) {
		ctx, a := newAttempt(ctx)
		config, err := loaded(l.config)
		if err == nil {
			err = get(ctx, ownConnection(config))
		}
		if err != nil {
			l.failures.add("new connection", true, a, err)
			return
		}
		l.failures.success("new connections", a)
	})
}

// watch starts an informer.
func (l *load) watch(ctx context.Context) {
	factory := informers.NewSharedInformerFactoryWithOptions(clientOf(l.t, l.config), 0,
		informers.WithNamespace(namespace))
	informer := factory.Core().V1().ConfigMaps().Informer()
	must(informer.AddEventHandler(cache.ResourceEventHandlerFuncs{UpdateFunc: func(before, after any) {
		if old, now := before.(*corev1.ConfigMap), after.(*corev1.ConfigMap); !later(
			now.ResourceVersion, old.ResourceVersion,
		) {
			l.t.Errorf("a watcher got revision %s of %s after %s", now.ResourceVersion, now.Name, old.ResourceVersion)
		}
	}}))(l.t)
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		l.t.Fatal("an informer did not sync")
	}
	l.stores = append(l.stores, informer.GetStore())
}

// awaitProgress waits until every client has completed a request that it began after the call, so that a failure is
// attributed to the event that caused it.
func (l *load) awaitProgress(s *sandbox) {
	s.t.Helper()
	begin := time.Now()
	s.waitFor("every client completes a request", func() (bool, string) {
		waiting := l.failures.waiting(begin)
		return len(waiting) == 0, fmt.Sprint(waiting)
	})
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

// verify stops the load. Every watcher must have received the history's last object, or receive it soon.
func (l *load) verify(s *sandbox) {
	l.t.Helper()
	for i, store := range l.stores {
		s.waitFor(fmt.Sprintf("watcher %d to receive the last object", i), func() (bool, string) {
			_, found, err := store.GetByKey(namespace + "/last")
			return found, fmt.Sprint(err)
		})
	}
	l.stop()
	l.done.Wait()
}

// spend compares the failures that clients observed during an event with its budget.
func (h *history) spend(t *testing.T, b budget) {
	t.Helper()
	failed, gap := h.failures.take(), h.longestGap()
	reads, writes := map[outcome]int{}, map[outcome]int{}
	for _, f := range failed {
		t.Log(f)
		if f.read {
			reads[f.outcome]++
		} else {
			writes[f.outcome]++
		}
	}
	t.Logf("failed writes: %v, failed reads: %v, longest time without a confirmed write: %s", writes, reads, gap)
	for _, o := range []outcome{interrupted, unreachable, timedOut, rejected} {
		spare := 0
		if !strict() {
			spare = 3
		}
		if writes[o] > b.writes[o]+spare || reads[o] > b.reads[o]+spare {
			t.Errorf("%s: %d writes and %d reads failed, at most %d and %d may", o, writes[o], reads[o], b.writes[o], b.reads[o])
		}
	}
	if gap > b.gap && strict() {
		t.Errorf("no write was confirmed for %s, at most %s", gap, b.gap)
	}
}
