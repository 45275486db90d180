package flowcontrol

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	upstream "k8s.io/apiserver/pkg/endpoints/request"
	fq "k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing"
	"k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing/eventclock"
	"k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing/queueset"
	"k8s.io/apiserver/pkg/util/flowcontrol/metrics"
	fcrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
	clocktesting "k8s.io/utils/clock/testing"
)

// manual is a clock whose events run when the clock is advanced, in the goroutine that advances it.
type manual struct {
	*clocktesting.FakePassiveClock
	events []event
}

type event struct {
	at  time.Time
	run func()
}

func newManual() *manual {
	return &manual{FakePassiveClock: clocktesting.NewFakePassiveClock(time.Unix(1_000_000, 0))}
}

func (m *manual) after(d time.Duration, run func()) {
	m.events = append(m.events, event{m.Now().Add(d), run})
	slices.SortStableFunc(m.events, func(a, b event) int { return a.at.Compare(b.at) })
}

func (m *manual) advance(d time.Duration) {
	end := m.Now().Add(d)
	for len(m.events) > 0 && !m.events[0].at.After(end) {
		due := m.events[0]
		m.events = m.events[1:]
		m.SetTime(due.at)
		due.run()
	}
	m.SetTime(end)
}

func (m *manual) Sleep(time.Duration) {}

func (m *manual) EventAfterDuration(f eventclock.EventFunc, d time.Duration) {
	m.after(d, func() { f(m.Now()) })
}

func (m *manual) EventAfterTime(f eventclock.EventFunc, at time.Time) {
	m.EventAfterDuration(f, at.Sub(m.Now()))
}

// unmeasured is a gauge without effect.
type unmeasured struct{ metrics.RatioedGauge }

func (unmeasured) Set(float64)            {}
func (unmeasured) Add(float64)            {}
func (unmeasured) SetDenominator(float64) {}

// demand is a gauge that keeps its value.
type demand struct {
	unmeasured
	value *float64
}

func (d demand) Set(value float64) { *d.value = value }

// side is a queue set of upstream's implementation or of this package's, with the clock that the queue set uses and the
// requests that the test has sent to it.
type side struct {
	t       *testing.T
	clock   *manual
	set     fq.QueueSet
	demand  float64
	running map[string]*execution
}

type execution struct {
	cancel               context.CancelFunc
	begun, release, done chan struct{}
}

func newSide(
	t *testing.T, factory func(*manual) fq.QueueSetFactory, queuing fq.QueuingConfig, dispatching fq.DispatchingConfig,
) *side {
	s := &side{t: t, clock: newManual(), running: map[string]*execution{}}
	pair := metrics.RatioedGaugePair{RequestsWaiting: unmeasured{}, RequestsExecuting: unmeasured{}}
	completer, err := factory(s.clock).BeginConstruction(queuing, pair, unmeasured{}, demand{value: &s.demand})
	if err != nil {
		t.Fatal(err)
	}
	s.set = completer.Complete(dispatching)
	return s
}

func (s *side) configure(queuing fq.QueuingConfig, dispatching fq.DispatchingConfig) {
	completer, err := s.set.BeginConfigChange(queuing)
	if err != nil {
		s.t.Fatal(err)
	}
	s.set = completer.Complete(dispatching)
}

// start starts a request whose execution lasts until finish.
func (s *side) start(name string, estimate fcrequest.WorkEstimate, hash uint64) {
	ctx, cancel := context.WithCancel(s.t.Context())
	ctx = upstream.WithUser(ctx, &user.DefaultInfo{Name: "u"})
	request, _ := s.set.StartRequest(ctx, &estimate, hash, name, "schema", nil, nil, nil)
	if request == nil {
		cancel()
		return
	}
	e := &execution{cancel, make(chan struct{}), make(chan struct{}), make(chan struct{})}
	s.running[name] = e
	go func() {
		defer close(e.done)
		request.Finish(func() {
			close(e.begun)
			<-e.release
		})
	}()
}

// end finishes an executing request, or cancels a waiting one.
func (s *side) end(name string, executing bool) {
	e := s.running[name]
	delete(s.running, name)
	if executing {
		close(e.release)
	} else {
		e.cancel()
	}
	<-e.done
	e.cancel()
}

// state returns the complete state as text, and the names of the executing and waiting requests.
func (s *side) state() (text string, executing, waiting []string) {
	var b strings.Builder
	dump := s.set.Dump(false)
	fmt.Fprintf(&b, "waiting %d executing %d seats %d rejected %d cancelled %d\n",
		dump.Waiting, dump.Executing, dump.SeatsInUse, dump.Rejected, dump.Cancelled)
	for i, q := range dump.Queues {
		var w, x []string
		for _, r := range q.Requests {
			w = append(w, r.FlowDistinguisher)
		}
		for _, r := range q.RequestsExecuting {
			x = append(x, r.FlowDistinguisher)
		}
		slices.Sort(x)
		executing, waiting = append(executing, x...), append(waiting, w...)
		if len(w)+len(x) > 0 {
			fmt.Fprintf(&b, "queue %d: %v waiting, %v executing, seats %d, next %s, sum %+v\n", i, w, x, q.SeatsInUse,
				q.NextDispatchR, q.QueueSum)
		}
	}
	for _, r := range dump.QueuelessExecutingRequests {
		executing = append(executing, r.FlowDistinguisher)
	}
	slices.Sort(executing)
	for _, name := range executing {
		<-s.running[name].begun // upstream advances its virtual time there too
	}
	fmt.Fprintf(&b, "of %d queues, executing %v", len(dump.Queues), executing)
	return b.String(), executing, waiting
}

// checkSums checks sums that cannot be compared with upstream's dump: where the final seats of a request are reduced
// at its dispatch, upstream's number of waiting seats, and with it the demand, stays too large for ever.
func (s *side) checkSums() {
	s.t.Helper()
	dump := s.set.Dump(false)
	waiting := 0
	for _, q := range dump.Queues {
		waiting += q.QueueSum.MaxSeatsSum
	}
	if dump.SeatsWaiting != waiting || s.demand != float64(waiting+dump.SeatsInUse) {
		s.t.Fatalf("%d seats wait, the demand is %v: want %d, %d", dump.SeatsWaiting, s.demand,
			waiting, waiting+dump.SeatsInUse)
	}
}

// TestDecisionsOfUpstream sends the same random requests to a queue set of this package and to one of upstream's, and
// compares their states after each step. Either requests have additional latencies or the configuration changes,
// never both: a request whose latency ends after its queue has been removed makes upstream remove another queue.
func TestDecisionsOfUpstream(t *testing.T) {
	configurations := []fq.QueuingConfig{
		{Name: "a", DesiredNumQueues: 8, QueueLengthLimit: 3, HandSize: 2},
		{Name: "a", DesiredNumQueues: 1, QueueLengthLimit: 5, HandSize: 1},
		{Name: "a", DesiredNumQueues: 4, QueueLengthLimit: 4, HandSize: 4},
		{Name: "a"},
		{Name: "a", DesiredNumQueues: -1},
	}
	for seed := range uint64(60) {
		random := rand.New(rand.NewPCG(seed, 1))
		configuration := func() (fq.QueuingConfig, fq.DispatchingConfig) {
			limit := 1 + random.IntN(8)
			return configurations[random.IntN(len(configurations)-1)], fq.DispatchingConfig{
				ConcurrencyLimit: limit, ConcurrencyDenominator: limit,
			}
		}
		queuing, dispatching := configuration()
		if seed%10 > 7 {
			queuing = configurations[len(configurations)-1]
		}
		ours := newSide(t, func(m *manual) fq.QueueSetFactory {
			return &factory{clock: m, after: m.after, configured: func(string, *queueSet) {}}
		}, queuing, dispatching)
		theirs := newSide(t, func(m *manual) fq.QueueSetFactory {
			return queueset.NewQueueSetFactory(m)
		}, queuing, dispatching)
		compare(t, random, seed, ours, theirs, configuration)
	}
}

// tick is a duration in which the virtual time advances by a whole number of its units, with up to 8 busy queues, so
// that the sums do not depend on how often upstream rounds.
const tick = 8400 * time.Nanosecond

func compare(
	t *testing.T, random *rand.Rand, seed uint64, ours, theirs *side,
	configuration func() (fq.QueuingConfig, fq.DispatchingConfig),
) {
	t.Helper()
	var log []string
	sides := []*side{theirs, ours}
	_, executing, waiting := ours.state()
	for step := range 150 {
		switch choice := random.IntN(20); {
		case choice < 10:
			estimate := fcrequest.WorkEstimate{InitialSeats: 1 + random.Uint64N(3)}
			if seed%2 == 0 && random.IntN(3) == 0 {
				estimate.FinalSeats = random.Uint64N(12)
				estimate.AdditionalLatency = time.Duration(random.IntN(4)) * 840 * tick
			}
			hash := random.Uint64()
			log = append(log, fmt.Sprintf("start %d %+v", step, estimate))
			for _, s := range sides {
				s.start(fmt.Sprint(step), estimate, hash)
			}
		case choice < 15 && len(executing) > 0:
			name := executing[random.IntN(len(executing))]
			log = append(log, "finish "+name)
			for _, s := range sides {
				s.end(name, true)
			}
		case choice == 15 && len(waiting) > 0:
			name := waiting[random.IntN(len(waiting))]
			log = append(log, "cancel "+name)
			for _, s := range sides {
				s.end(name, false)
			}
		case choice == 16 && random.IntN(4) == 0 && seed%2 == 1 && ours.set.(*queueSet).queuing.DesiredNumQueues >= 0:
			queuing, dispatching := configuration()
			log = append(log, fmt.Sprintf("configure %+v %+v", queuing, dispatching))
			for _, s := range sides {
				s.configure(queuing, dispatching)
			}
		default:
			d := time.Duration(random.IntN(1200)) * tick
			log = append(log, fmt.Sprintf("advance %v", d))
			for _, s := range sides {
				s.clock.advance(d)
			}
		}
		want, _, _ := theirs.state()
		var got string
		if got, executing, waiting = ours.state(); got != want {
			t.Fatalf("seed %d, step %d: got\n%s\nwant\n%s\nafter\n%s", seed, step, got, want, strings.Join(log, "\n"))
		}
		ours.checkSums()
	}
	for len(executing) > 0 || len(waiting) > 0 {
		name, runs := "", len(executing) > 0
		if runs {
			name = executing[0]
		} else {
			name = waiting[0]
		}
		for _, s := range sides {
			s.end(name, runs)
			s.clock.advance(time.Second)
		}
		_, executing, waiting = ours.state()
	}
	if !ours.set.IsIdle() || !theirs.set.IsIdle() {
		t.Errorf("seed %d: not idle", seed)
	}
}
