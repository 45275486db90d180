package serving

import (
	"bytes"
	"errors"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// errorLog receives the log lines of net/http. It counts failed handshakes and logs them only at V(5), because probes
// and port scanners cause them constantly.
type errorLog struct {
	logger     logr.Logger
	handshakes prometheus.Counter
}

func newErrorLog(logger logr.Logger, registerer prometheus.Registerer) *errorLog {
	return &errorLog{logger: logger, handshakes: promauto.With(registerer).NewCounter(prometheus.CounterOpts{
		Name: "apiserver_tls_handshake_errors_total",
		Help: "[ALPHA] Number of requests dropped with 'TLS handshake error from' error",
	})}
}

// Write implements io.Writer for log.Logger, which passes one line in each call.
func (l *errorLog) Write(line []byte) (int, error) {
	message := string(bytes.TrimSpace(line))
	if bytes.Contains(line, []byte("TLS handshake error")) {
		l.handshakes.Inc()
		l.logger.V(5).Info(message)
		return len(line), nil
	}
	l.logger.Error(errors.New(message), "HTTP server error")
	return len(line), nil
}
