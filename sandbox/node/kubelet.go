package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"quorate.dev/sandbox/logs"
)

// Kubelet configures the kubelet API.
type Kubelet struct {
	// TLS has the serving certificate and the authority of client certificates.
	TLS *tls.Config
	// Client is the common name of the API server's certificate, the only authorized client.
	Client string
}

// listen listens on a free port, because a kubelet of the machine may use the default port on all addresses. The port
// is in the status of the Node.
func (a *Agent) listen() (net.Listener, error) {
	listener, err := net.Listen("tcp", netip.AddrPortFrom(a.options.Network.Node(), 0).String())
	if err != nil {
		return nil, fmt.Errorf("listening for the kubelet API: %w", err)
	}
	return listener, nil
}

// serveKubelet serves the logs endpoint of the kubelet API until ctx is done.
func (a *Agent) serveKubelet(ctx context.Context, listener net.Listener) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", a.containerLogs)
	server := &http.Server{
		Handler: requireCommonName(a.options.Kubelet.Client, mux), TLSConfig: a.options.Kubelet.TLS, ReadHeaderTimeout: 10 * time.Second,
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    slog.NewLogLogger(logr.ToSlogHandler(a.log), slog.LevelInfo),
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.ServeTLS(listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving the kubelet API: %w", err)
	}
	return nil
}

// requireCommonName rejects clients whose certificate has another common name.
func requireCommonName(client string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 || r.TLS.PeerCertificates[0].Subject.CommonName != client {
			http.Error(w, "Forbidden", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// containerLogs serves the log of a container.
func (a *Agent) containerLogs(w http.ResponseWriter, r *http.Request) {
	namespace, name, container := r.PathValue("namespace"), r.PathValue("pod"), r.PathValue("container")
	pod, err := a.lister.pods.Pods(namespace).Get(name)
	if err != nil || pod.Spec.NodeName != a.options.Name {
		writeError(w, http.StatusNotFound, fmt.Sprintf("pod %q not found", name))
		return
	}
	status := containerStatus(pod, container)
	if status == nil || (status.State.Waiting != nil && status.RestartCount == 0 && status.LastTerminationState.Terminated == nil) {
		writeError(w, http.StatusBadRequest, fmt.Sprintf("container %q in pod %q is waiting to start: %s",
			container, name, waitingReason(status)))
		return
	}
	query := r.URL.Query()
	if query.Get("previous") == "true" {
		writeError(w, http.StatusBadRequest, fmt.Sprintf("previous terminated container %q in pod %q not found",
			container, name))
		return
	}
	options, err := logOptions(query, a.options.Clock)
	if err != nil {
		writeError(w, http.StatusBadRequest, err.Error())
		return
	}
	options.Running = func() bool { return a.runs(pod, container) }
	a.sendLog(w, r, a.path("logs", namespace, name, container+".log"), options)
}

// sendLog sends a log. A client that follows it receives everything that is written after the response header.
func (a *Agent) sendLog(w http.ResponseWriter, r *http.Request, file string, options logs.Options) {
	log, err := logs.Open(file, options)
	if err != nil {
		writeError(w, http.StatusInternalServerError, err.Error())
		return
	}
	defer log.Close()
	w.Header().Set("Content-Type", "text/plain")
	w.WriteHeader(http.StatusOK)
	out := flushed{w, http.NewResponseController(w)}
	_ = out.control.Flush()
	if err := log.Copy(r.Context(), out, clock.RealClock{}); err != nil {
		a.log.V(1).Info("Failed to send a log", "file", file, "err", err.Error())
	}
}

// writeError responds with an error. The API server forwards the message.
func writeError(w http.ResponseWriter, code int, message string) {
	w.Header().Set("Content-Type", "text/plain")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, message)
}

// runs reports whether a container of a Pod may still write output.
func (a *Agent) runs(pod *corev1.Pod, container string) bool {
	current, err := a.lister.pods.Pods(pod.Namespace).Get(pod.Name)
	if err != nil || current.UID != pod.UID {
		return false
	}
	status := containerStatus(current, container)
	return status != nil && status.State.Running != nil
}

func containerStatus(pod *corev1.Pod, container string) *corev1.ContainerStatus {
	for _, all := range [][]corev1.ContainerStatus{pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses} {
		for i := range all {
			if all[i].Name == container {
				return &all[i]
			}
		}
	}
	return nil
}

func waitingReason(status *corev1.ContainerStatus) string {
	if status == nil || status.State.Waiting == nil {
		return "ContainerCreating"
	}
	return status.State.Waiting.Reason
}

// logOptions parses the query of the API server.
func logOptions(query url.Values, clock clock.PassiveClock) (options logs.Options, err error) {
	options.Follow = query.Get("follow") == "true"
	options.Timestamps = query.Get("timestamps") == "true"
	if options.Tail, err = number(query, "tailLines"); err != nil {
		return options, err
	}
	if options.Limit, err = number(query, "limitBytes"); err != nil {
		return options, err
	}
	seconds, err := number(query, "sinceSeconds")
	if err != nil {
		return options, err
	}
	if seconds != nil {
		options.Since = clock.Now().Add(-time.Duration(*seconds) * time.Second)
	}
	if since := query.Get("sinceTime"); since != "" {
		if options.Since, err = time.Parse(time.RFC3339, since); err != nil {
			return options, fmt.Errorf("sinceTime: %w", err)
		}
	}
	return options, nil
}

func number(query url.Values, name string) (*int64, error) {
	if !query.Has(name) {
		return nil, nil
	}
	value, err := strconv.ParseInt(query.Get(name), 10, 64)
	if err != nil || value < 0 {
		return nil, fmt.Errorf("%s: not a non-negative integer: %q", name, query.Get(name))
	}
	return &value, nil
}

// flushed flushes every write.
type flushed struct {
	w       http.ResponseWriter
	control *http.ResponseController
}

func (f flushed) Write(p []byte) (int, error) {
	n, err := f.w.Write(p)
	if err != nil {
		return n, err
	}
	return n, f.control.Flush()
}
