package services

import (
	"context"
	"fmt"
	"sync"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/reference"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/events/install"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/builtin/own"
	"quorate.dev/apiserver/resource"
)

var eventsResource = schema.GroupResource{Group: "events.k8s.io", Resource: "events"}

// toldMost is how many warnings are remembered before all are forgotten.
const toldMost = 4096

// Events tells users, by Event objects and in the log, what is wrong with their objects. The same is told once.
type Events struct {
	Objects  resource.Objects
	Clock    clock.PassiveClock
	Logger   logr.Logger
	Instance string // which replica this is: the host's name

	mu   sync.Mutex
	told map[string]bool
}

// Warn tells of a warning about an object, in hub form. One that cannot be recorded is told again when it is given again.
func (e *Events) Warn(ctx context.Context, object runtime.Object, controller, reason, action, note string) {
	regarding, err := referenceTo(object)
	if err != nil {
		e.Logger.Error(err, "A warning cannot be recorded", "reason", reason, "note", note)
		return
	}
	what := string(regarding.UID) + "\x00" + reason + "\x00" + note
	if !e.first(what) {
		return
	}
	e.Logger.Info(note, "reason", reason, "kind", regarding.Kind, "namespace", regarding.Namespace, "name", regarding.Name)
	if err := e.record(ctx, regarding, controller, reason, action, note); err != nil {
		e.forget(what)
		if ctx.Err() == nil {
			e.Logger.Error(err, "A warning could not be recorded as an Event", "reason", reason)
		}
	}
}

func (e *Events) record(ctx context.Context, regarding *corev1.ObjectReference, controller, reason, action, note string) error {
	now := e.Clock.Now()
	namespace := regarding.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	event, err := own.ToHub(&eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{Name: fmt.Sprintf("%s.%x", regarding.Name, now.UnixNano()), Namespace: namespace},
		EventTime:           metav1.NewMicroTime(now),
		ReportingController: controller,
		ReportingInstance:   controller + "-" + e.Instance,
		Action:              action,
		Reason:              reason,
		Regarding:           *regarding,
		Note:                note,
		Type:                corev1.EventTypeWarning,
	})
	if err != nil {
		return err
	}
	_, err = e.Objects.Create(own.Context(ctx), eventsResource, namespace, event, false)
	return err
}

// first tells whether something has not been told before.
func (e *Events) first(what string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.told[what] {
		return false
	}
	if e.told == nil || len(e.told) == toldMost {
		e.told = map[string]bool{}
	}
	e.told[what] = true
	return true
}

// forget makes something be told again.
func (e *Events) forget(what string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.told, what)
}

// referenceTo names an object in hub form as clients know it.
func referenceTo(hub runtime.Object) (*corev1.ObjectReference, error) {
	kinds, _, err := legacyscheme.Scheme.ObjectKinds(hub)
	if err != nil {
		return nil, err
	}
	external, err := legacyscheme.Scheme.ConvertToVersion(hub, schema.GroupVersion{Group: kinds[0].Group, Version: "v1"})
	if err != nil {
		return nil, err
	}
	return reference.GetReference(legacyscheme.Scheme, external)
}
