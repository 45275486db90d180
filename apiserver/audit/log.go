package audit

import (
	"io"
	"sync"

	auditapi "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	auditlog "k8s.io/apiserver/plugin/pkg/audit/log"
)

// jsonLog is the log backend in format json.
type jsonLog struct{ to io.Writer }

// encoders are reused for their buffers. The pool is global, because its contents cannot be observed.
var encoders = sync.Pool{New: func() any { return new(encoder) }}

// maxPooledLine keeps the pool from collecting buffers that a huge event has grown.
const maxPooledLine = 64 << 10

// ProcessEvents implements audit.Sink.
func (l jsonLog) ProcessEvents(events ...*auditapi.Event) bool {
	success := true
	for _, event := range events {
		if err := l.write(event); err != nil {
			audit.HandlePluginError(auditlog.PluginName, err, event)
			success = false
		}
	}
	return success
}

func (l jsonLog) write(event *auditapi.Event) error {
	e := encoders.Get().(*encoder)
	defer encoders.Put(e)
	line, err := e.encode(event)
	if cap(line) > maxPooledLine {
		e.line = nil
	}
	if err != nil {
		return err
	}
	_, err = l.to.Write(line)
	return err
}

// Run implements audit.Backend.
func (jsonLog) Run(<-chan struct{}) error { return nil }

// Shutdown implements audit.Backend.
func (jsonLog) Shutdown() {}

func (jsonLog) String() string { return auditlog.PluginName }
