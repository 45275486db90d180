package crd_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/crd"
	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/apiserver/lazy"
	"quorate.dev/apiserver/resource"
	"quorate.dev/test/upstream"
)

// TestUnservedInstancesAreDeleted: as with kube-apiserver, the objects of a definition without a served version are
// deleted with it.
func TestUnservedInstancesAreDeleted(t *testing.T) {
	s := startServer(t)
	s.create(t, sample(t))
	s.establish(t)
	s.createWidget(t, "a")
	s.change(t, func(d *apiextensions.CustomResourceDefinition) {
		for i := range d.Spec.Versions {
			d.Spec.Versions[i].Served = false
		}
	})
	eventually(t, "no longer served", func() bool { return !s.serves() })
	s.deleteDefinition(t)
	eventually(t, "definition gone", func() bool {
		return s.condition(t, "widgets.example.com", apiextensions.Terminating) == "NotFound"
	})
	if left := keys(t, s.etcd, "/registry/example.com/"); left > 0 {
		t.Errorf("%d objects are left", left)
	}
}

// TestInstancesAreDeletedWhateverTheCondition: objects of a definition that is not established, which former releases
// accepted, are deleted with it.
func TestInstancesAreDeletedWhateverTheCondition(t *testing.T) {
	s := startServer(t)
	content := `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"a","namespace":"default","uid":"1"}}`
	if _, err := s.etcd.Put(t.Context(), "/registry/example.com/widgets/default/a", content); err != nil {
		t.Fatal(err)
	}
	other := sample(t) // takes the kind of the second
	other.Name = "gadgets.example.com"
	other.Spec.Names.Plural, other.Spec.Names.Singular = "gadgets", "gadget"
	s.create(t, other)
	eventually(t, "the other established", func() bool {
		return s.condition(t, other.Name, apiextensions.Established) == "True InitialNamesAccepted"
	})
	s.create(t, sample(t))
	eventually(t, "not accepted", func() bool {
		return s.condition(t, "widgets.example.com", apiextensions.Established) == "False NotAccepted"
	})
	s.deleteDefinition(t)
	eventually(t, "definition gone", func() bool {
		return s.condition(t, "widgets.example.com", apiextensions.Terminating) == "NotFound"
	})
	if left := keys(t, s.etcd, "/registry/example.com/widgets/"); left > 0 {
		t.Errorf("%d objects are left", left)
	}
}

// TestServedOnlyIfEstablished: whenever a replica serves a definition, its condition Established is stored.
func TestServedOnlyIfEstablished(t *testing.T) {
	etcd := etcdtest.Client(t)
	replicas := []*server{startReplica(t, etcd, func() {}), startReplica(t, etcd, func() {})}
	for range 20 {
		replicas[0].create(t, sample(t))
		for _, s := range replicas {
			eventually(t, "served", s.serves)
			if got := s.condition(t, "widgets.example.com", apiextensions.Established); got != "True InitialNamesAccepted" {
				t.Fatalf("served while Established is %q", got)
			}
		}
		replicas[1].deleteDefinition(t)
		for _, s := range replicas {
			eventually(t, "no longer served", func() bool { return !s.serves() })
		}
	}
}

// TestNothingOutlivesItsDefinition: of objects that are created while their definition is deleted, on two replicas,
// each is either refused or deleted with it.
func TestNothingOutlivesItsDefinition(t *testing.T) {
	upstream.NeedsTime(t)
	etcd := etcdtest.Client(t)
	replicas := []*server{startReplica(t, etcd, func() {}), startReplica(t, etcd, func() {})}
	accepted := 0
	for round := range 60 {
		replicas[round%2].create(t, sample(t))
		for _, s := range replicas {
			eventually(t, "served", s.serves)
		}
		const attempts = 30 // of each replica
		attempted := make(chan struct{}, 2*attempts)
		var creating sync.WaitGroup
		var lock sync.Mutex
		for i, s := range replicas {
			creating.Go(func() {
				for n := range attempts {
					key := resource.Key{GroupResource: widgets, Namespace: "default"}
					_, err := s.Create(t.Context(), key, newWidget(fmt.Sprintf("w%d-%d", i, n)), resource.WriteOptions{})
					if err != nil && !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err) {
						t.Error(err)
					}
					attempted <- struct{}{}
					lock.Lock()
					if err == nil {
						accepted++
					}
					lock.Unlock()
				}
			})
		}
		for range rand.IntN(2 * attempts) { // another moment in each round
			<-attempted
		}
		replicas[(round+1)%2].deleteDefinition(t)
		eventually(t, "definition gone", func() bool {
			return replicas[0].condition(t, "widgets.example.com", apiextensions.Terminating) == "NotFound"
		})
		creating.Wait()
		if left := keys(t, etcd, "/registry/example.com/"); left > 0 {
			t.Fatalf("round %d: %d objects outlive their definition", round, left)
		}
	}
	if accepted == 0 {
		t.Error("no object was accepted")
	}
}

// TestFailingDeletionWritesRarely: while objects cannot be listed, with another error each time, the condition says so,
// and is written at most as often as the backoff permits.
func TestFailingDeletionWritesRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		definition := &apiextensions.CustomResourceDefinition{}
		external := sample(t)
		external.UID, external.ResourceVersion = "1", "1"
		external.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		external.Finalizers = []string{apiextensionsv1.CustomResourceCleanupFinalizer}
		if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(
			external, definition, nil,
		); err != nil {
			t.Fatal(err)
		}
		stored := &failing{definition: definition, changed: make(chan runtime.Object, 1000)}
		stored.changed <- definition
		controller, err := crd.NewController(crd.ControllerOptions{
			Objects: stored, Follow: stored.follow, AwaitFollowed: func(context.Context) error { return nil },
			Publish: func([]*resource.Definition) {}, BuiltIn: func(schema.GroupResource) bool { return false },
			Idle: &lazy.Set{}, Converters: newConverters(t), Clock: clock.RealClock{}, Logger: logr.Discard(),
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = controller.Run(ctx) })
		<-time.After(time.Hour) // of the bubble
		cancel()
		running.Wait()
		if stored.lists < 100 || stored.writes > 150 {
			t.Errorf("in an hour: %d attempts, %d writes", stored.lists, stored.writes)
		}
		if stored.cleared > 0 {
			t.Errorf("the failure was cleared %d times", stored.cleared)
		}
		if condition := apiextensions.FindCRDCondition(stored.definition, apiextensions.Terminating); condition == nil ||
			condition.Reason != "InstanceDeletionFailed" {
			t.Errorf("Terminating is %v", condition)
		}
	})
}

// failing stores one definition, whose objects cannot be listed.
type failing struct {
	resource.Client
	lock                   sync.Mutex
	definition             *apiextensions.CustomResourceDefinition
	changed                chan runtime.Object
	lists, writes, cleared int
}

func (f *failing) follow(
	ctx context.Context, _ schema.GroupResource, handle func(string, runtime.Object), synced func(),
) error {
	const name = "widgets.example.com"
	handle(name, <-f.changed)
	synced()
	for {
		select {
		case object := <-f.changed:
			handle(name, object)
		case <-ctx.Done():
			return nil
		}
	}
}

func (f *failing) Get(context.Context, resource.Key, resource.ReadOptions) (runtime.Object, error) {
	f.lock.Lock()
	defer f.lock.Unlock()
	return f.definition, nil
}

func (f *failing) List(context.Context, resource.Key, resource.ReadOptions) ([]runtime.Object, error) {
	f.lock.Lock()
	defer f.lock.Unlock()
	f.lists++
	return nil, fmt.Errorf("failure %d", f.lists)
}

func (f *failing) Update(
	_ context.Context, _ resource.Key, change func(runtime.Object) error, _ resource.WriteOptions,
) (runtime.Object, error) {
	f.lock.Lock()
	defer f.lock.Unlock()
	next := f.definition.DeepCopy()
	if err := change(next); err != nil {
		return nil, err
	}
	reason := func(d *apiextensions.CustomResourceDefinition) string {
		if condition := apiextensions.FindCRDCondition(d, apiextensions.Terminating); condition != nil {
			return condition.Reason
		}
		return ""
	}
	if reason(f.definition) == "InstanceDeletionFailed" && reason(next) != "InstanceDeletionFailed" {
		f.cleared++
	}
	f.writes++
	next.ResourceVersion = fmt.Sprint(f.writes + 1)
	f.definition = next
	select {
	case f.changed <- next:
	default:
		return nil, errors.New("too many writes")
	}
	return next, nil
}

// establish waits until the definition of sample is established and served. The stored condition Established precedes
// the served version.
func (s *server) establish(t *testing.T) {
	t.Helper()
	eventually(t, "established and served", func() bool {
		return s.condition(t, "widgets.example.com", apiextensions.Established) == "True InitialNamesAccepted" && s.serves()
	})
}

func (s *server) serves() bool {
	_, ok := s.publisher.Current().Lookup("example.com", "v1", "widgets")
	return ok
}

func (s *server) change(t *testing.T, change func(*apiextensions.CustomResourceDefinition)) {
	t.Helper()
	key := resource.Key{GroupResource: crd.Resource, Name: "widgets.example.com"}
	_, err := s.Update(t.Context(), key, func(object runtime.Object) error {
		change(object.(*apiextensions.CustomResourceDefinition))
		return nil
	}, resource.WriteOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

func (s *server) deleteDefinition(t *testing.T) {
	t.Helper()
	key := resource.Key{GroupResource: crd.Resource, Name: "widgets.example.com"}
	if err := s.Delete(t.Context(), key, &metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// keys returns the number of keys with a prefix in etcd.
func keys(t *testing.T, etcd *clientv3.Client, prefix string) int64 {
	t.Helper()
	found, err := etcd.Get(t.Context(), prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		t.Fatal(err)
	}
	return found.Count
}
