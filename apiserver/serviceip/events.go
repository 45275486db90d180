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

// seriesEnd and seriesRefresh are finishTime and refreshTime of client-go's event broadcaster, which kube-apiserver's
// repairs use.
const (
	// seriesEnd is the time without an occurrence after which a series ends and its final count is written.
	seriesEnd = 6 * time.Minute
	// seriesRefresh is the interval at which the count of a series is written, so that the Event does not expire.
	seriesRefresh = 30 * time.Minute
	// maxSeries bounds the number of cached series. When it is reached, all cached series are dropped.
	maxSeries = 4096
)

// Events reports warnings about objects as Events and in the log. Repeated warnings are a series of one Event.
type Events struct {
	Objects resource.Client
	Clock   clock.WithTicker
	Logger  logr.Logger
	// Instance is the host name of this replica.
	Instance string

	// mu is also held during writes, which keeps the writes of a series in order.
	mu sync.Mutex
	// series has the last written state of each Event, with the current count.
	series map[seriesKey]*eventsv1.Event
}

// seriesKey identifies a series. It includes the resourceVersion of the object.
type seriesKey struct {
	regarding                  corev1.ObjectReference
	controller, reason, action string
}

// Warning is the content of an Event.
type Warning struct {
	Controller, Reason, Action, Note string
}

// Warn reports a warning about an object in the internal version. A warning whose Event cannot be written is written
// when it occurs again.
func (e *Events) Warn(ctx context.Context, object runtime.Object, w Warning) {
	regarding, err := referenceTo(object)
	if err != nil {
		e.Logger.Error(err, "Failed to reference the object of a warning", "reason", w.Reason, "note", w.Note)
		return
	}
	key := seriesKey{*regarding, w.Controller, w.Reason, w.Action}
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.record(ctx, key, regarding, w.Note); err != nil && ctx.Err() == nil {
		e.Logger.Error(err, "Failed to record a warning as an Event", "reason", w.Reason)
	}
}

// record creates an Event, or counts an occurrence of its series. The caller must hold e.mu.
func (e *Events) record(ctx context.Context, key seriesKey, regarding *corev1.ObjectReference, note string) error {
	now := metav1.NewMicroTime(e.Clock.Now())
	event := e.series[key]
	switch {
	case event == nil:
		e.Logger.Info(note, "reason", key.reason, "kind", regarding.Kind, "namespace", regarding.Namespace,
			"name", regarding.Name)
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
	// finish and refresh write the count.
	default:
		event.Series.Count++
		event.Series.LastObservedTime = now
	}
	return nil
}

func (e *Events) event(
	key seriesKey, regarding *corev1.ObjectReference, note string, now metav1.MicroTime,
) *eventsv1.Event {
	namespace := regarding.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	return &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("%s.%x", regarding.Name, now.UnixNano()), Namespace: namespace,
		},
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

// write updates the series of an Event. It creates the Event again if the Event has expired.
func (e *Events) write(ctx context.Context, event *eventsv1.Event) error {
	count := func(object runtime.Object) error {
		object.(*core.Event).Series = &core.EventSeries{
			Count: event.Series.Count, LastObservedTime: event.Series.LastObservedTime,
		}
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

// remember caches an Event, which may become a series. The caller must hold e.mu.
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

// finish writes the final counts of series that have ended and drops the series.
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
				e.Logger.Error(err, "Failed to write the count of an Event", "namespace", event.Namespace, "name", event.Name)
				continue
			}
			delete(e.series, key)
		}
	}
}

// refresh writes the counts of all series.
func (e *Events) refresh(ctx context.Context) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, event := range e.series {
		if event.Series == nil {
			continue
		}
		if err := e.write(ctx, event); err != nil {
			e.Logger.Error(err, "Failed to write the count of an Event", "namespace", event.Namespace, "name", event.Name)
		}
	}
}

// referenceTo returns a reference to an object in the internal version. The reference has the kind of the version v1.
func referenceTo(internal runtime.Object) (*corev1.ObjectReference, error) {
	kinds, _, err := legacyscheme.Scheme.ObjectKinds(internal)
	if err != nil {
		return nil, err
	}
	external, err := legacyscheme.Scheme.ConvertToVersion(internal,
		schema.GroupVersion{Group: kinds[0].Group, Version: "v1"})
	if err != nil {
		return nil, err
	}
	return reference.GetReference(legacyscheme.Scheme, external)
}
