package owned

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	"quorate.dev/operator/api/v1alpha1"
)

// maxEventMessage bounds the note of an Event, in bytes. API servers reject notes of more than 1024 bytes.
const maxEventMessage = 1000

// Event is an Event that regards a cluster.
type Event struct {
	Warning bool
	Related *corev1.ObjectReference // another object that the Event is about; nil: none
	Reason  string
	Action  string
	Message string
}

// Event records an event that regards a cluster. It shortens messages that the API server would reject.
func (o Objects) Event(cluster *v1alpha1.ApiServerCluster, e Event) {
	kind := corev1.EventTypeNormal
	if e.Warning {
		kind = corev1.EventTypeWarning
	}
	if len(e.Message) > maxEventMessage {
		e.Message = strings.ToValidUTF8(e.Message[:maxEventMessage], "") // the limit may be within a character
	}
	if e.Related == nil { // a nil *ObjectReference in an interface would not be nil
		o.Recorder.Eventf(cluster, nil, kind, e.Reason, e.Action, "%s", e.Message)
		return
	}
	o.Recorder.Eventf(cluster, e.Related, kind, e.Reason, e.Action, "%s", e.Message)
}
