package audit

import (
	"io"
	"sync"

	auditapi "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	auditlog "k8s.io/apiserver/plugin/pkg/audit/log"
)

// jsonLog is the log backend for the format json.
type jsonLog struct{ to io.Writer }

// encoders is a pool of encoders, which are reused for their buffers. The pool is global, because no caller can observe
// its state.
var encoders = sync.Pool{New: func() any { return new(encoder) }}

// maxPooledLine is the size in bytes above which a buffer is not returned to the pool after a very large event.
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
