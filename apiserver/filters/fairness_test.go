package filters

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/apiserver/pkg/storage"
	flowrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"quorate.dev/apiserver/flowcontrol"
	"quorate.dev/apiserver/request"
)

// narrow is a level with one seat and no queue, and its schema for the requests of alice.
func narrow() []runtime.Object {
	return []runtime.Object{
		&flowcontrolv1.PriorityLevelConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "narrow", UID: "level-uid"},
			Spec: flowcontrolv1.PriorityLevelConfigurationSpec{
				Type: flowcontrolv1.PriorityLevelEnablementLimited,
				Limited: &flowcontrolv1.LimitedPriorityLevelConfiguration{
					NominalConcurrencyShares: ptr.To[int32](1), LendablePercent: ptr.To[int32](0),
					BorrowingLimitPercent: ptr.To[int32](0),
					LimitResponse:         flowcontrolv1.LimitResponse{Type: flowcontrolv1.LimitResponseTypeReject},
				},
			},
		},
		&flowcontrolv1.FlowSchema{
			ObjectMeta: metav1.ObjectMeta{Name: "alice", UID: "schema-uid"},
			Spec: flowcontrolv1.FlowSchemaSpec{
				PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: "narrow"},
				MatchingPrecedence:         100,
				Rules: []flowcontrolv1.PolicyRulesWithSubjects{{
					Subjects: []flowcontrolv1.Subject{{
						Kind: flowcontrolv1.SubjectKindUser, User: &flowcontrolv1.UserSubject{Name: "alice"},
					}},
					ResourceRules: []flowcontrolv1.ResourcePolicyRule{{
						Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"},
						Namespaces: []string{"*"}, ClusterScope: true,
					}},
				}},
			},
		},
	}
}

// suggested are the objects of every cluster.
func suggested() []runtime.Object {
	var all []runtime.Object
	for _, schema := range append(bootstrap.MandatoryFlowSchemas, bootstrap.SuggestedFlowSchemas...) {
		schema := schema.DeepCopy()
		schema.UID = types.UID(schema.Name)
		all = append(all, schema)
	}
	for _, level := range append(
		bootstrap.MandatoryPriorityLevelConfigurations, bootstrap.SuggestedPriorityLevelConfigurations...,
	) {
		all = append(all, level.DeepCopy())
	}
	return all
}

// fair returns options with priority and fairness for objects. There is one seat for every share of a level.
func fair(t testing.TB, objects ...runtime.Object) func(*Options) {
	t.Helper()
	client := fake.NewClientset(objects...)
	factory := informers.NewSharedInformerFactory(client, 0)
	informed := factory.Flowcontrol().V1()
	flows := flowcontrol.New(flowcontrol.Options{
		Client: client.FlowcontrolV1(), Schemas: informed.FlowSchemas(),
		Levels: informed.PriorityLevelConfigurations(), Seats: 600,
		Stats: func(string) (storage.Stats, error) { return storage.Stats{}, flowrequest.ObjectCountNotFoundErr },
		Clock: clock.RealClock{}, Logger: logr.Discard(), Registerer: prometheus.NewRegistry(),
	})
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		_ = flows.Run(ctx)
	}()
	t.Cleanup(func() { cancel(); <-stopped })
	return func(o *Options) { o.Fairness = flows }
}

// held is a handler that holds requests with the query "hold" until it is released.
type held struct {
	entered, release chan struct{}
}

func newHeld() held { return held{make(chan struct{}, 100), make(chan struct{})} }

func (h held) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Query().Has("initialize"):
		request.From(r.Context()).ReleaseSeat()
		h.entered <- struct{}{}
		<-h.release
	case r.URL.Query().Has("hold"):
		h.entered <- struct{}{}
		<-h.release
	case r.URL.Query().Has("panic"):
		panic("of the handler")
	}
	_, _ = fmt.Fprint(w, "served")
}

func TestFairness(t *testing.T) {
	h := newHeld()
	f := start(t, false, fair(t, append(suggested(), narrow()...)...), h.ServeHTTP)
	get := func(who, target string) *http.Response {
		t.Helper()
		response, err := f.server.Client().Do(f.newRequest(t, http.MethodGet, target, who))
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		return response
	}
	eventuallyTrue(t, func() bool { return get("alice", podsPath).Header.Get(schemaHeader) == "schema-uid" })
	if got := get("alice", podsPath); got.StatusCode != http.StatusOK || got.Header.Get(levelHeader) != "level-uid" {
		t.Errorf("%d, %v", got.StatusCode, got.Header)
	}
	seats := 0 // of the level
	done := make(chan struct{}, 100)
	for ; ; seats++ {
		go func() {
			get("alice", podsPath+"?hold")
			done <- struct{}{}
		}()
		<-h.entered
		if code := get("alice", podsPath).StatusCode; code != http.StatusOK {
			break
		}
		if seats > 50 {
			t.Fatal("the level has no limit")
		}
	}
	rejected := get("alice", podsPath)
	if rejected.StatusCode != http.StatusTooManyRequests || rejected.Header.Get("Retry-After") != "1" ||
		rejected.Header.Get(schemaHeader) != "schema-uid" {
		t.Errorf("%d, %v", rejected.StatusCode, rejected.Header)
	}
	if code := get("bob", podsPath).StatusCode; code != http.StatusOK {
		t.Errorf("another level: %d", code)
	}
	close(h.release)
	for range seats + 1 {
		<-done
	}
	if code := get("alice", podsPath).StatusCode; code != http.StatusOK {
		t.Errorf("after the others: %d", code)
	}
	if n := f.final(t, "apiserver_request_terminations_total", `code="429"`); n < 2 {
		t.Errorf("%v terminations", n)
	}
}

// TestFairnessOfWatches: a watch holds its seat until it is initialized.
func TestFairnessOfWatches(t *testing.T) {
	h := newHeld()
	f := start(t, false, fair(t, append(suggested(), narrow()...)...), h.ServeHTTP)
	get := func(target string) int {
		response, err := f.server.Client().Do(f.newRequest(t, http.MethodGet, target, "alice"))
		if err != nil {
			return 0 // the handler has panicked
		}
		defer func() { _ = response.Body.Close() }()
		if response.Header.Get(schemaHeader) != "schema-uid" {
			return -1
		}
		return response.StatusCode
	}
	eventuallyTrue(t, func() bool { return get(podsPath) == http.StatusOK })
	const watches = 60
	done := make(chan int, watches)
	for range watches {
		go func() { done <- get(podsPath + "?watch=1&initialize") }()
		<-h.entered
	}
	if code := get(podsPath); code != http.StatusOK {
		t.Errorf("with initialized watches: %d", code)
	}
	for range watches {
		get(podsPath + "?watch=1&panic")
	}
	if code := get(podsPath); code != http.StatusOK {
		t.Errorf("after panics: %d", code)
	}
	close(h.release)
	for range watches {
		if code := <-done; code != http.StatusOK {
			t.Errorf("a watch: %d", code)
		}
	}
}

func eventuallyTrue(t *testing.T, holds func() bool) {
	t.Helper()
	same := func(context.Context) (bool, error) { return holds(), nil }
	if err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, time.Minute, true, same); err != nil {
		t.Fatal("the condition does not hold: ", err)
	}
}

func BenchmarkFairness(b *testing.B) {
	for name, change := range map[string]func(*Options){"limits": nil, "fairness": fair(b, suggested()...)} {
		f := &fixture{registry: prometheus.NewRegistry(), drain: &request.Drain{}}
		chain := Chain(f.options(change), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte("fine"))
		}))
		for _, target := range []string{
			"/api/v1/namespaces/default/pods/web-0", "/api/v1/namespaces/default/pods", "/healthz",
		} {
			b.Run(name+target, func(b *testing.B) {
				r := httptest.NewRequest("GET", target, nil)
				w := discard{header: http.Header{}}
				b.ReportAllocs()
				for b.Loop() {
					r.Header["Authorization"] = []string{"alice"}
					clear(w.header)
					chain.ServeHTTP(w, r)
				}
			})
		}
	}
}
