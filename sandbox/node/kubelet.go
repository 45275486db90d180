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
	"golang.org/x/net/netutil"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"quorate.dev/sandbox/logs"
)

// Kubelet is the configuration of the kubelet API.
type Kubelet struct {
	// TLS contains the serving certificate, and the certificate authority of clients.
	TLS *tls.Config
	// Client is the common name of the API server's client certificate. No other client is authorized.
	Client string
}

// listen listens on a free port, because a kubelet of the machine may use the default port on all addresses. The API
// server reads the port from the status of the Node.
func (a *Agent) listen() (net.Listener, error) {
	listener, err := net.Listen("tcp", netip.AddrPortFrom(a.options.Network.Node(), 0).String())
	if err != nil {
		return nil, fmt.Errorf("listen for the kubelet API: %w", err)
	}
	return listener, nil
}

// maxConnections bounds the connections of the kubelet API. Other users of the machine can connect, and could otherwise
// use all file descriptors of the process. Further connections wait.
const maxConnections = 256

// serveKubelet serves the logs endpoint of the kubelet API until ctx is done. The API has no other endpoint.
func (a *Agent) serveKubelet(ctx context.Context, listener net.Listener) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", a.containerLogs)
	server := &http.Server{
		Handler: requireCommonName(a.options.Kubelet.Client, mux), TLSConfig: a.options.Kubelet.TLS,
		// ReadHeaderTimeout also bounds the TLS handshake of a client that sends no request.
		ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 30 * time.Second,
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    slog.NewLogLogger(logr.ToSlogHandler(a.log), slog.LevelInfo),
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.ServeTLS(
		netutil.LimitListener(listener, maxConnections), "", "",
	); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the kubelet API: %w", err)
	}
	return nil
}

// requireCommonName rejects requests of clients whose certificate does not have the common name client.
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
	if status == nil ||
		(status.State.Waiting != nil && status.RestartCount == 0 && status.LastTerminationState.Terminated == nil) {
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

// sendLog responds with a log. A client that follows the log receives everything written after the response header.
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

// writeError responds with an error, whose message the API server forwards to its client.
func writeError(w http.ResponseWriter, code int, message string) {
	w.Header().Set("Content-Type", "text/plain")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, message)
}

// runs reports whether a container of a Pod runs, so that it may still write output.
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

// logOptions returns the options in the query of a request for logs.
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

// flushed is a response that is flushed after every write.
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
