package serviceip

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/reference"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/events/install"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/system"
)

var eventsResource = schema.GroupResource{Group: "events.k8s.io", Resource: "events"}

// As in client-go's broadcaster, which the repairs of kube-apiserver tell their events to:
const (
	// seriesEnd is how long nothing must have happened for a series to be over. Its last count is written then.
	seriesEnd = 6 * time.Minute
	// seriesRefresh is how often the count of a series that goes on is written, so that the Event does not expire.
	seriesRefresh = 30 * time.Minute
	// maxSeries is how many are remembered before all are forgotten.
	maxSeries = 4096
)

// Events tells users, by Event objects and in the log, what is wrong with their objects. What happens again is counted as
// a series of one Event.
type Events struct {
	Objects  resource.Client
	Clock    clock.WithTicker
	Logger   logr.Logger
	Instance string // which replica this is: the host's name

	mu     sync.Mutex                    // also held while an Event is written, so that those of a series are written in order
	series map[seriesKey]*eventsv1.Event // as last written, and counted since
}

// seriesKey is what the events of a series have in common, the version of the object among it.
type seriesKey struct {
	regarding                  corev1.ObjectReference
	controller, reason, action string
}

// Warn tells of a warning about an object, in internal version. One that cannot be recorded is told again when it is given again.
func (e *Events) Warn(ctx context.Context, object runtime.Object, controller, reason, action, note string) {
	regarding, err := referenceTo(object)
	if err != nil {
		e.Logger.Error(err, "A warning cannot be recorded", "reason", reason, "note", note)
		return
	}
	key := seriesKey{*regarding, controller, reason, action}
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.record(ctx, key, regarding, note); err != nil && ctx.Err() == nil {
		e.Logger.Error(err, "A warning could not be recorded as an Event", "reason", reason)
	}
}

// record writes an Event, or makes it one of a series. The caller holds the lock.
func (e *Events) record(ctx context.Context, key seriesKey, regarding *corev1.ObjectReference, note string) error {
	now := metav1.NewMicroTime(e.Clock.Now())
	event := e.series[key]
	switch {
	case event == nil:
		e.Logger.Info(note, "reason", key.reason, "kind", regarding.Kind, "namespace", regarding.Namespace, "name", regarding.Name)
		event = e.event(key, regarding, note, now)
		if err := e.create(ctx, event); err != nil {
			return err
		}
		e.remember(key, event)
	case event.Series == nil:
		event.Series = &eventsv1.EventSeries{Count: 2, LastObservedTime: now}
		if err := e.write(ctx, event); err != nil {
			event.Series = nil
			return err
		}
	default: // written when the series ends, or is refreshed
		event.Series.Count++
		event.Series.LastObservedTime = now
	}
	return nil
}

func (e *Events) event(key seriesKey, regarding *corev1.ObjectReference, note string, now metav1.MicroTime) *eventsv1.Event {
	namespace := regarding.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	return &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{Name: fmt.Sprintf("%s.%x", regarding.Name, now.UnixNano()), Namespace: namespace},
		EventTime:           now,
		ReportingController: key.controller,
		ReportingInstance:   key.controller + "-" + e.Instance,
		Action:              key.action,
		Reason:              key.reason,
		Regarding:           *regarding,
		Note:                note,
		Type:                corev1.EventTypeWarning,
	}
}

func (e *Events) create(ctx context.Context, event *eventsv1.Event) error {
	internal, err := system.ToInternal(event)
	if err != nil {
		return err
	}
	_, err = e.Objects.Create(system.WithServerUser(ctx),
		resource.Key{GroupResource: eventsResource, Namespace: event.Namespace}, internal, resource.WriteOptions{})
	return err
}

// write writes the series of an Event, which is made again if it has expired.
func (e *Events) write(ctx context.Context, event *eventsv1.Event) error {
	count := func(object runtime.Object) error {
		object.(*core.Event).Series = &core.EventSeries{Count: event.Series.Count, LastObservedTime: event.Series.LastObservedTime}
		return nil
	}
	_, err := e.Objects.Update(system.WithServerUser(ctx),
		resource.Key{GroupResource: eventsResource, Namespace: event.Namespace, Name: event.Name},
		count, resource.WriteOptions{})
	if apierrors.IsNotFound(err) {
		return e.create(ctx, event)
	}
	return err
}

// remember keeps an Event that may begin a series. The caller holds the lock.
func (e *Events) remember(key seriesKey, event *eventsv1.Event) {
	if e.series == nil || len(e.series) == maxSeries {
		e.series = map[seriesKey]*eventsv1.Event{}
	}
	e.series[key] = event
}

// Run writes the counts of series until ctx ends.
func (e *Events) Run(ctx context.Context) {
	ending, refreshing := e.Clock.NewTicker(seriesEnd), e.Clock.NewTicker(seriesRefresh)
	defer ending.Stop()
	defer refreshing.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ending.C():
			e.finish(ctx)
		case <-refreshing.C():
			e.refresh(ctx)
		}
	}
}

// finish writes the last count of series that are over, and forgets them.
func (e *Events) finish(ctx context.Context) {
	e.mu.Lock()
	defer e.mu.Unlock()
	over := e.Clock.Now().Add(-seriesEnd)
	for key, event := range e.series {
		switch {
		case event.Series == nil && event.EventTime.Time.Before(over):
			delete(e.series, key)
		case event.Series != nil && event.Series.LastObservedTime.Time.Before(over):
			if err := e.write(ctx, event); err != nil {
				e.Logger.Error(err, "The count of an Event could not be written", "namespace", event.Namespace, "name", event.Name)
				continue
			}
			delete(e.series, key)
		}
	}
}

// refresh writes the count of all series.
func (e *Events) refresh(ctx context.Context) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, event := range e.series {
		if event.Series == nil {
			continue
		}
		if err := e.write(ctx, event); err != nil {
			e.Logger.Error(err, "The count of an Event could not be written", "namespace", event.Namespace, "name", event.Name)
		}
	}
}

// referenceTo names an object in internal version as clients know it.
func referenceTo(internal runtime.Object) (*corev1.ObjectReference, error) {
	kinds, _, err := legacyscheme.Scheme.ObjectKinds(internal)
	if err != nil {
		return nil, err
	}
	external, err := legacyscheme.Scheme.ConvertToVersion(internal, schema.GroupVersion{Group: kinds[0].Group, Version: "v1"})
	if err != nil {
		return nil, err
	}
	return reference.GetReference(legacyscheme.Scheme, external)
}
