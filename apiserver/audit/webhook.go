package audit

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	auditapi "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/util/webhook"
	_ "k8s.io/apiserver/plugin/pkg/audit/webhook" // registers the types of audit.Scheme
	"k8s.io/client-go/rest"

	"quorate.dev/apiserver/transport"
)

const (
	// webhookName is the plugin's name in logs and metrics, as in kube-apiserver.
	webhookName = "webhook"
	// minPending is the minimum limit of the memory of events that wait for the webhook, in bytes. defaultPending is
	// the limit for a process without a memory limit. kube-apiserver has no such limit: while the webhook does not
	// respond, each of up to ten batches per second waits for up to three minutes.
	minPending, defaultPending = 32 << 20, 256 << 20
	// eventSize estimates an event without the objects of request and response, in bytes.
	eventSize = 2 << 10
	// deliveryTimeout bounds the delivery of the last events after the end of the last request.
	deliveryTimeout = 10 * time.Second
)

var errPending = errors.New("too many events wait for the webhook")

// webhookSink sends events to a webhook. It mirrors upstream's backend, which limits neither responses nor the events
// that wait, and delays the end of the process for minutes.
type webhookSink struct {
	webhook *webhook.GenericWebhook
	// maxPending bounds pending, which is in bytes.
	maxPending int64
	pending    atomic.Int64
	ctx        context.Context //nolint:containedctx // ends after Run; upstream passes no context
	cancel     context.CancelFunc
}

// pendingWithin returns the limit of the memory of waiting events, in bytes. It is an eighth of limit, the memory of
// the process in bytes; limit 0 means that the memory of the process is not limited.
func pendingWithin(limit int64) int64 {
	// part is the reciprocal of the share of the memory that waiting events may take.
	const part = 8
	if limit == 0 {
		return defaultPending
	}
	return max(limit/part, minPending)
}

// newWebhook returns the backend of a kubeconfig file.
func newWebhook(
	file string, version schema.GroupVersion, backoff wait.Backoff, options Options,
) (audit.Backend, error) {
	config, err := webhook.LoadKubeconfig(file, options.Dial)
	if err != nil {
		return nil, err
	}
	config.Wrap(transport.Reviews)
	client, err := webhook.NewGenericWebhook(audit.Scheme, audit.Codecs, config, []schema.GroupVersion{version}, backoff)
	if err != nil {
		return nil, err
	}
	client.ShouldRetry = func(err error) bool { return err != nil } // as in kube-apiserver
	s := &webhookSink{webhook: client, maxPending: pendingWithin(options.MemoryLimit)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s, nil
}

// Run implements audit.Backend. When stop is closed, the last events have deliveryTimeout.
func (s *webhookSink) Run(stop <-chan struct{}) error {
	go func() {
		<-stop
		time.AfterFunc(deliveryTimeout, s.cancel)
	}()
	return nil
}

// Shutdown implements audit.Backend.
func (s *webhookSink) Shutdown() { s.cancel() }

// ProcessEvents implements audit.Sink. Events that exceed maxPending are dropped, counted and logged like events that
// cannot be delivered.
func (s *webhookSink) ProcessEvents(events ...*auditapi.Event) bool {
	if err := s.send(events); err != nil {
		audit.HandlePluginError(webhookName, err, events...)
		return false
	}
	return true
}

func (s *webhookSink) send(events []*auditapi.Event) error {
	size := sizeOf(events)
	defer s.pending.Add(-size)
	if waiting := s.pending.Add(size); waiting > s.maxPending && waiting > size {
		return errPending
	}
	list := &auditapi.EventList{Items: make([]auditapi.Event, 0, len(events))}
	for _, event := range events {
		list.Items = append(list.Items, *event)
	}
	return s.webhook.WithExponentialBackoff(s.ctx, func() rest.Result {
		return s.webhook.RestClient.Post().Body(list).Do(s.ctx)
	}).Error()
}

func (s *webhookSink) String() string { return webhookName }

// sizeOf estimates the memory of events.
func sizeOf(events []*auditapi.Event) (size int64) {
	for _, event := range events {
		size += eventSize
		if event.RequestObject != nil {
			size += int64(len(event.RequestObject.Raw))
		}
		if event.ResponseObject != nil {
			size += int64(len(event.ResponseObject.Raw))
		}
	}
	return size
}
