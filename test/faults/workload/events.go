package workload

import (
	"context"
	"fmt"
	"time"

	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// eventTTL is the servers' flag --event-ttl.
const eventTTL = 5 * time.Second

// events creates Events, which expire. The check requires that an Event exists for at least its TTL, does not reappear,
// and is deleted eventually.
type events struct {
	crew
	all []*event
}

type event struct {
	name   string
	sent   time.Time // time before the request that created the Event and was acknowledged
	absent bool      // a client has read that the Event does not exist
}

const eventClients = 2

func (w *events) Start(ctx context.Context) error {
	for id := range eventClients {
		number := 0
		w.work(ctx, id, func(ctx context.Context, c *client) {
			number++
			w.create(ctx, c, fmt.Sprintf("expiring-%d-%d", id, number))
		})
	}
	w.work(ctx, eventClients, func(ctx context.Context, c *client) {
		if e := w.choose(c); e != nil {
			_, _ = w.read(ctx, c.any(), e) // Check reads the final state, so an error here is ignored
		}
	})
	return nil
}

func (w *events) create(ctx context.Context, c *client, name string) {
	object := &core.Event{
		ObjectMeta: meta.ObjectMeta{Name: name, Namespace: "default"}, Reason: "Faults", Message: name,
		Type:           core.EventTypeNormal,
		InvolvedObject: core.ObjectReference{Kind: "Namespace", Name: "default", Namespace: "default", APIVersion: "v1"},
	}
	e := &event{name: name, sent: time.Now()}
	_, err := request(ctx, func(ctx context.Context) (*core.Event, error) {
		return c.any().CoreV1().Events("default").Create(ctx, object, meta.CreateOptions{})
	})
	if err != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, e)
}

// choose returns a random Event among the last 200, or nil without Events.
func (w *events) choose(c *client) *event {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.all) == 0 {
		return nil
	}
	const recent = 200
	return w.all[len(w.all)-1-c.random.IntN(min(len(w.all), recent))]
}

// read reports whether an Event exists, and records a fault if it expired early or reappeared.
func (w *events) read(ctx context.Context, server kubernetes.Interface, e *event) (exists bool, err error) {
	w.mu.Lock()
	wasAbsent := e.absent
	w.mu.Unlock()
	_, err = request(ctx, func(ctx context.Context) (*core.Event, error) {
		return server.CoreV1().Events("default").Get(ctx, e.name, meta.GetOptions{})
	})
	age := time.Since(e.sent)
	switch {
	case err == nil && wasAbsent:
		w.observe(fmt.Errorf("events: %s was gone, and is there again", e.name))
	case err == nil:
		w.observe(nil)
	case !apierrors.IsNotFound(err):
		return false, err
	case age < eventTTL:
		w.observe(fmt.Errorf("events: %s is gone after %v, its TTL is %v", e.name, age, eventTTL))
	default:
		w.observe(nil)
		w.mu.Lock()
		e.absent = true
		w.mu.Unlock()
	}
	return err == nil, nil
}

// Check waits until all events are gone.
func (w *events) Check(ctx context.Context) []error {
	failures := w.everyServer(ctx, func(ctx context.Context, server kubernetes.Interface) error {
		list, err := server.CoreV1().Events("default").List(ctx, meta.ListOptions{FieldSelector: "reason=Faults"})
		if err == nil && len(list.Items) > 0 {
			err = fmt.Errorf("events: %d have not expired, the first is %s", len(list.Items), list.Items[0].Name)
		}
		return err
	})
	return append(w.found(), failures...)
}
