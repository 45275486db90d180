package serviceip_test

import (
	"context"
	"testing"
	"time"

	"github.com/go-logr/logr"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/apis/core"
	clocktesting "k8s.io/utils/clock/testing"

	"quorate.dev/apiserver/admission"
	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/builtin/builtintest"
	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/serviceip"
)

// TestSeriesOfServiceEvents checks that repeated warnings are counted in one Event.
func TestSeriesOfServiceEvents(t *testing.T) {
	server := builtintest.NewServerOn(t, etcdtest.Client(t), builtin.Options{}, &admission.Chain{})
	time0 := time.Now()
	clock := clocktesting.NewFakeClock(time0)
	events := &serviceip.Events{Objects: server, Clock: clock, Logger: logr.Discard(), Instance: "test"}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); events.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	eventually(t, "Run has created its tickers", func() bool { return clock.Waiters() == 2 })
	service := builtintest.NewService(t, "a", func(s *v1.Service) { s.UID = "1" })
	other := builtintest.NewService(t, "b", func(s *v1.Service) { s.UID = "2" })
	warn := func(of *core.Service, note string) {
		events.Warn(t.Context(), of, serviceip.Warning{
			Controller: "controller", Reason: "Reason", Action: "Action", Note: note,
		})
	}
	// expect waits for the Events of a Service.
	expect := func(name string, counts ...int32) {
		t.Helper()
		var got []int32
		for deadline := time.Now().Add(20 * time.Second); ; {
			got = nil
			for _, object := range must[[]core.Event](t)(listedEvents(t, server)) {
				if object.InvolvedObject.Name != name {
					continue
				}
				count := int32(1)
				if object.Series != nil {
					count = object.Series.Count
				}
				got = append(got, count)
			}
			if sum(got) == sum(counts) && len(got) == len(counts) {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("Events of %s count %v, want %v", name, got, counts)
			}
		}
	}
	warn(service, "first")
	warn(other, "first")
	expect("a", 1)
	warn(service, "second") // another note is the same series
	expect("a", 2)
	for range 3 {
		clock.Step(time.Minute)
		warn(service, "third")
	}
	expect("a", 2) // later warnings are counted and not yet written
	expect("b", 1)
	clock.Step(7 * time.Minute)
	expect("a", 5) // the series is complete
	warn(service, "new series")
	expect("a", 5, 1)

	// The count of an active series is written periodically; an expired Event is created again.
	warn(service, "again")
	expect("a", 5, 2)
	for _, object := range must[[]core.Event](t)(listedEvents(t, server)) {
		key := resource.Key{GroupResource: eventsResource, Namespace: "default", Name: object.Name}
		if err := server.Delete(t.Context(), key, &metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for range 20 {
		clock.Step(2 * time.Minute)
		warn(service, "again")
	}
	clock.Step(7 * time.Minute)
	expect("a", 22)
}

var eventsResource = schema.GroupResource{Resource: "events"}

func listedEvents(t *testing.T, server *builtintest.Server) ([]core.Event, error) {
	objects, err := server.List(t.Context(),
		resource.Key{GroupResource: eventsResource, Namespace: "default"}, resource.ReadOptions{})
	events := make([]core.Event, len(objects))
	for i, object := range objects {
		events[i] = *object.(*core.Event)
	}
	return events, err
}

func sum(counts []int32) (total int32) {
	for _, count := range counts {
		total += count
	}
	return total
}
