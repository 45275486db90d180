package flowcontrol

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/prometheus/client_golang/prometheus"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/runtime"
	defaults "k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/storage"
	fcrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/request"
)

// begin returns a running controller with the suggested configuration and further objects.
func begin(t testing.TB, seats int, more ...runtime.Object) (*Controller, *fake.Clientset) {
	t.Helper()
	objects := more
	for _, level := range append(defaults.MandatoryPriorityLevelConfigurations, defaults.SuggestedPriorityLevelConfigurations...) {
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
		Clock: clock.RealClock{}, Logger: testr.New(&testing.T{}), Registerer: prometheus.NewRegistry(),
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	factory.Start(ctx.Done())
	go func() { ended <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		factory.Shutdown()
	})
	eventually(t, "the configuration is digested", func() bool {
		return len(c.table().flows) == len(of.FlowSchemas().Informer().GetStore().List()) && c.Synced()
	})
	return c, client
}

func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

func as(method, target string, who user.Info) (*http.Request, *request.Record) {
	r := httptest.NewRequest(method, target, nil)
	record := request.Begin(r, time.Now(), testr.New(&testing.T{}))
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
		Name: "system:serviceaccount:a:b", Groups: []string{"system:serviceaccounts", "system:serviceaccounts:a", user.AllAuthenticated},
	}
	jane = &user.DefaultInfo{Name: "jane", Groups: []string{user.AllAuthenticated}}
)

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
			for b.Loop() {
				handle()
			}
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

var _ flowcontrolv1.FlowSchema
