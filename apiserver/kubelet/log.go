package kubelet

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/go-logr/logr"
	genericrest "k8s.io/apiserver/pkg/registry/generic/rest"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/registry/core/pod"
	"k8s.io/streaming/pkg/httpstream/wsstream"
	"k8s.io/utils/ptr"

	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/resource"
)

// PodLog serves pods/log.
func (k *Kubelets) PodLog() *resource.Connect {
	return &resource.Connect{
		Methods: []string{http.MethodGet}, Reads: true, Options: optionsOf[api.PodLogOptions](), Handler: k.log,
	}
}

func (k *Kubelets) log(ctx context.Context, call resource.Call) (http.Handler, error) {
	options, ok := call.Body.(*api.PodLogOptions)
	if !ok {
		return nil, wrongOptions(call.Body)
	}
	k.metrics.logs.WithLabelValues(verification(options.InsecureSkipTLSVerifyBackend)).Inc()
	splits := utilfeature.DefaultFeatureGate.Enabled(features.PodLogsQuerySplitStreams)
	if splits && options.Stream == nil {
		options.Stream = ptr.To(api.LogStreamAll)
	}
	if errs := validation.ValidatePodLogOptions(options, splits); len(errs) > 0 {
		return nil, request.Invalid(api.Kind("PodLogOptions"), call.Name, errs)
	}
	location, transport, err := pod.LogLocation(ctx, k.getter(pods, call.Namespace), k.nodes, call.Name, options)
	if err != nil {
		return nil, err
	}
	return &logReader{
		location: location, client: http.Client{Transport: transport, CheckRedirect: genericrest.PreventRedirects},
		pod: call.Name, follow: options.Follow, metrics: k.metrics,
	}, nil
}

func verification(skipped bool) string {
	if skipped {
		return "skip_tls_allowed"
	}
	return "enforce_tls"
}

// logReader copies the response of a kubelet to the client.
type logReader struct {
	// location is nil if the container has not started.
	location *url.URL
	client   http.Client
	pod      string
	// follow is set if each chunk must be flushed.
	follow  bool
	metrics *metrics
}

func (l *logReader) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if l.location == nil {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	source, err := l.open(r.Context())
	if err != nil {
		request.WriteError(w, r, err)
		return
	}
	defer source.Close()
	if wsstream.IsWebSocketRequest(r) {
		if err := wsstream.NewReader(source, true, wsstream.NewDefaultReaderProtocols()).Copy(w, r); err != nil {
			logr.FromContextOrDiscard(r.Context()).V(2).Info("Streaming over WebSocket ended", "error", err.Error())
		}
		return
	}
	w.Header().Set("Content-Type", "text/plain")
	w.WriteHeader(http.StatusOK)
	control := http.NewResponseController(w)
	_ = control.Flush()
	if !l.follow {
		// An error means that one side has closed the connection.
		_, _ = io.Copy(w, source)
		return
	}
	_, _ = io.Copy(flushed{w, control}, source)
}

// open sends the request to the kubelet. The request is cancelled when ctx ends, so that the kubelet stops reading an
// abandoned log.
func (l *logReader) open(ctx context.Context) (io.ReadCloser, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, l.location.String(), nil)
	if err != nil {
		return nil, err
	}
	response, err := l.client.Do(r)
	if err != nil {
		if strings.Contains(err.Error(), "x509:") {
			l.metrics.logFailures.Inc()
		}
		return nil, err
	}
	checker := genericrest.NewGenericHttpResponseChecker(api.Resource("pods/log"), l.pod)
	if err := checker.Check(response); err != nil {
		_ = response.Body.Close()
		return nil, err
	}
	return response.Body, nil
}

// flushed flushes after each write.
type flushed struct {
	w       io.Writer
	control *http.ResponseController
}

func (f flushed) Write(p []byte) (int, error) {
	n, err := f.w.Write(p)
	if err != nil {
		return n, err
	}
	return n, f.control.Flush()
}
