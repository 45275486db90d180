package endtoend

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// outcome is the way in which a request has finally failed: client-go has not retried it, or has stopped retrying.
type outcome string

// Outcomes of failed requests.
const (
	interrupted outcome = "connection closed while the request was in flight"
	unreachable outcome = "no connection"
	timedOut    outcome = "no response within the timeout"
	rejected    outcome = "error response"
)

// attempt is a request of a client, with the retries of client-go.
type attempt struct {
	begin time.Time

	mu    sync.Mutex
	tries []string
	last  error // error of the last try
}

type attemptKey struct{}

// newAttempt returns a context with which attemptRecorder records the tries of a request.
func newAttempt(ctx context.Context) (context.Context, *attempt) {
	a := &attempt{begin: time.Now()}
	return context.WithValue(ctx, attemptKey{}, a), a
}

// record adds a try.
func (a *attempt) record(begin time.Time, response *http.Response, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	took := time.Since(begin).Round(time.Millisecond)
	if a.last = err; err != nil {
		a.tries = append(a.tries, fmt.Sprintf("%v after %s", err, took))
		return
	}
	a.tries = append(a.tries,
		fmt.Sprintf("%d Retry-After=%q after %s", response.StatusCode, response.Header.Get("Retry-After"), took))
}

// outcome classifies how the last try ended.
func (a *attempt) outcome() outcome {
	a.mu.Lock()
	defer a.mu.Unlock()
	last := a.last
	var dial *net.OpError
	switch {
	case last == nil: // a response, or the timeout while client-go waited for Retry-After
		return rejected
	case errors.Is(last, syscall.ECONNREFUSED), errors.As(last, &dial) && dial.Op == "dial":
		return unreachable
	case errors.Is(last, context.DeadlineExceeded), utilnet.IsTimeout(last):
		return timedOut
	case utilnet.IsConnectionReset(last), utilnet.IsProbableEOF(last), utilnet.IsHTTP2ConnectionLost(last):
		return interrupted
	}
	return rejected
}

func (a *attempt) String() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return fmt.Sprintf("begin %s, tries: %s", a.begin.Format("15:04:05.000"), strings.Join(a.tries, "; "))
}

// attemptRecorder records the tries of requests whose context has an attempt.
type attemptRecorder struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (r attemptRecorder) RoundTrip(request *http.Request) (*http.Response, error) {
	a, ok := request.Context().Value(attemptKey{}).(*attempt)
	if !ok {
		return r.RoundTripper.RoundTrip(request)
	}
	begin := time.Now()
	response, err := r.RoundTripper.RoundTrip(request)
	a.record(begin, response, err)
	return response, err
}

// WrappedRoundTripper implements utilnet.RoundTripperWrapper, so that idle connections can be closed.
func (r attemptRecorder) WrappedRoundTripper() http.RoundTripper { return r.RoundTripper }

// CloseIdleConnections closes the idle connections of the transport.
func (r attemptRecorder) CloseIdleConnections() { utilnet.CloseIdleConnectionsFor(r.RoundTripper) }

// clientOf returns a client with its own connection.
func clientOf(t *testing.T, config *rest.Config) kubernetes.Interface {
	t.Helper()
	return must(kubernetes.NewForConfig(ownConnection(config)))(t)
}

// ownConnection returns a configuration whose clients share no connection with others.
func ownConnection(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	if f, ok := config.Transport.(*follower); ok {
		config.Transport = &follower{file: f.file}
	} else {
		config.Dial = (&net.Dialer{Timeout: requestTimeout}).DialContext
	}
	config.Wrap(func(transport http.RoundTripper) http.RoundTripper { return attemptRecorder{transport} })
	return config
}

// loaded returns the present content of the kubeconfig that a configuration reads.
func loaded(config *rest.Config) (*rest.Config, error) {
	f, ok := config.Transport.(*follower)
	if !ok {
		return config, nil
	}
	return clientcmd.BuildConfigFromFlags("", f.file)
}
