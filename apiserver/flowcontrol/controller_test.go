package flowcontrol

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	defaults "k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/storage"
	fcrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/request"
)

// begin returns a running controller with the mandatory, the suggested and further objects.
func begin(t testing.TB, seats int, more ...*flowcontrolv1.FlowSchema) (*Controller, *fake.Clientset) {
	t.Helper()
	var objects []runtime.Object
	for _, schema := range more {
		objects = append(objects, schema)
	}
	for _, level := range append(
		defaults.MandatoryPriorityLevelConfigurations, defaults.SuggestedPriorityLevelConfigurations...,
	) {
		objects = append(objects, level)
	}
	for _, schema := range append(defaults.MandatoryFlowSchemas, defaults.SuggestedFlowSchemas...) {
		objects = append(objects, schema)
	}
	client := fake.NewClientset(objects...)
	factory := informers.NewSharedInformerFactory(client, 0)
	of := factory.Flowcontrol().V1()
	c := New(Options{
		Client: client.FlowcontrolV1(), Schemas: of.FlowSchemas(), Levels: of.PriorityLevelConfigurations(), Seats: seats,
		Stats: func(string) (storage.Stats, error) { return storage.Stats{}, fcrequest.ObjectCountNotFoundErr },
		Clock: clock.RealClock{}, Logger: logr.Discard(), Registerer: prometheus.NewRegistry(),
	})
	ctx := t.Context()
	ended := make(chan error, 1)
	factory.Start(ctx.Done())
	go func() { ended <- c.Run(ctx) }()
	t.Cleanup(func() {
		if err := <-ended; err != nil {
			t.Error(err)
		}
		factory.Shutdown()
	})
	eventually(t, "the configuration is in force", func() bool { return c.Synced() && hasLevel(c, "leader-election") })
	return c, client
}

func hasLevel(c *Controller, name string) bool {
	return slices.ContainsFunc(c.table().flows, func(f *Flow) bool { return f.Level == name })
}

func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	same := func(context.Context) (bool, error) { return holds(), nil }
	if wait.PollUntilContextTimeout(t.Context(), time.Millisecond, time.Minute, true, same) != nil {
		t.Fatalf("not within a minute: %s", what)
	}
}

func as(method, target string, who user.Info) (*http.Request, *request.Record) {
	r := httptest.NewRequest(method, target, nil)
	record := request.Begin(r, time.Now(), logr.Discard())
	record.User = who
	if err := record.Resolve(method); err != nil {
		panic(err)
	}
	return r.WithContext(record), record
}

var (
	admin   = &user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated}}
	node    = &user.DefaultInfo{Name: "system:node:a", Groups: []string{user.NodesGroup, user.AllAuthenticated}}
	account = &user.DefaultInfo{
		Name: "system:serviceaccount:a:b", Groups: []string{
			"system:serviceaccounts", "system:serviceaccounts:a", user.AllAuthenticated,
		},
	}
	jane = &user.DefaultInfo{Name: "jane", Groups: []string{user.AllAuthenticated}}
)

// processorTime returns the processor time that this process has used. Other processes of the machine do not change
// it.
func processorTime(b *testing.B) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// BenchmarkGet measures a GET that does not wait. It must cost less than 5 µs.
func BenchmarkGet(b *testing.B) {
	c, _ := begin(b, 600)
	for _, who := range []user.Info{admin, node, account, jane} {
		r, record := as(http.MethodGet, "/api/v1/namespaces/a/pods/b", who)
		limit := time.Now().Add(time.Hour)
		handle := func() {
			started := c.Start(r, record, c.Match(record))
			started.Wait(record, limit)
			started.Finish()
		}
		b.Run(who.GetName(), func(b *testing.B) {
			b.ReportAllocs()
			before := processorTime(b)
			for b.Loop() {
				handle()
			}
			b.ReportMetric(float64(processorTime(b)-before)/float64(b.N), "cpu-ns/op")
		})
		b.Run(who.GetName()+"/parallel", func(b *testing.B) {
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					handle()
				}
			})
		})
	}
}

func BenchmarkMatch(b *testing.B) {
	c, _ := begin(b, 600)
	_, record := as(http.MethodGet, "/api/v1/namespaces/a/pods/b", jane)
	for b.Loop() {
		if c.Match(record).Level != "global-default" {
			b.Fatal("wrong level")
		}
	}
}

// dump returns the priority levels of upstream's controller.
func dump(c *Controller) string {
	w := httptest.NewRecorder()
	c.Debug().ServeHTTP(w,
		httptest.NewRequest(http.MethodGet, "/debug/api_priority_and_fairness/dump_priority_levels", nil))
	return w.Body.String()
}

// TestDeletedLevelDrains checks that a deleted level remains until its last request has finished.
func TestDeletedLevelDrains(t *testing.T) {
	c, client := begin(t, 600)
	r, record := as(http.MethodGet, "/api/v1/namespaces/a/pods/b", jane)
	flow := c.Match(record)
	started := c.Start(r, record, flow)
	if started == nil || started.Waits() || !started.Wait(record, time.Time{}) {
		t.Fatal("the request does not run")
	}
	levels := client.FlowcontrolV1().PriorityLevelConfigurations()
	if err := levels.Delete(t.Context(), flow.Level, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the level has no flow", func() bool { return !hasLevel(c, flow.Level) })
	if next := c.Match(record); next.Level != flowcontrolv1.PriorityLevelConfigurationNameCatchAll {
		t.Errorf("then the level is %s", next.Level)
	}
	if !strings.Contains(dump(c), flow.Level) {
		t.Error("the level is gone while a request executes")
	}
	started.Finish()
	eventually(t, "the level is gone", func() bool { return !strings.Contains(dump(c), flow.Level) })
	status := func() string {
		object, err := client.FlowcontrolV1().FlowSchemas().Get(t.Context(), flow.Schema, metav1.GetOptions{})
		if err != nil || len(object.Status.Conditions) == 0 {
			return ""
		}
		return string(object.Status.Conditions[0].Status)
	}
	eventually(t, "the flow schema dangles", func() bool { return status() == string(flowcontrolv1.ConditionTrue) })
}

// fill starts requests until one waits or is rejected. It returns the requests that execute, and the waiting one.
func fill(
	t *testing.T, c *Controller, r *http.Request, record *request.Record,
) (executing []*Request, waiting *Request) {
	t.Helper()
	flow := c.Match(record)
	for range 100 {
		started := c.Start(r, record, flow)
		if started == nil || started.Waits() {
			return executing, started
		}
		started.Wait(record, time.Time{})
		executing = append(executing, started)
	}
	t.Fatalf("%s has no limit", flow.Level)
	return nil, nil
}

// TestRejectionWithoutQueues fills the mandatory level.
func TestRejectionWithoutQueues(t *testing.T) {
	c, _ := begin(t, 1)
	r, record := as(http.MethodGet, "/api/v1/namespaces/a/pods/b", &user.DefaultInfo{Name: "unknown"}) // in no group
	flow := c.Match(record)
	if flow.Level != flowcontrolv1.PriorityLevelConfigurationNameCatchAll {
		t.Fatal(flow.Level)
	}
	executing, waiting := fill(t, c, r, record)
	if waiting != nil {
		t.Fatal("the catch-all level has queues")
	}
	if got := c.RetryAfter(flow); got != 1 {
		t.Errorf("retry after %d s", got)
	}
	executing[0].Finish()
	if c.Start(r, record, flow) == nil {
		t.Error("the seat of a finished request is not free")
	}
}

// TestQueue fills a level with queues.
func TestQueue(t *testing.T) {
	c, _ := begin(t, 1)
	r, record := as(http.MethodGet, "/api/v1/namespaces/a/pods/b", jane)
	executing, second := fill(t, c, r, record)
	third := c.Start(r, record, c.Match(record))
	if second == nil || third == nil || !third.Waits() {
		t.Fatal("no request waits")
	}
	if third.Wait(record, time.Now()) {
		t.Error("a request waits for longer than its limit")
	}
	ended := make(chan bool)
	go func() { ended <- second.Wait(record, time.Time{}) }()
	for _, one := range executing {
		one.Finish()
	}
	if !<-ended || second.Waited() <= 0 {
		t.Error("the next request does not execute")
	}
	second.Finish()
	if again, _ := fill(t, c, r, record); len(again) < len(executing) {
		t.Errorf("then %d requests execute, at first %d did", len(again), len(executing))
	}
}
