package probe

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/clock"
)

func TestMachine(t *testing.T) {
	timing := Timing{Period: 10 * time.Second, SuccessThreshold: 1, FailureThreshold: 2}
	type observation struct {
		at   time.Duration
		ok   bool
		want Result
	}
	tests := map[string][]observation{
		"eager failures count once a period": {
			{time.Second, false, Unknown}, {2 * time.Second, false, Unknown}, {10 * time.Second, false, Unknown},
			{11 * time.Second, false, Unknown}, {20 * time.Second, false, Failure},
		},
		"success at once": {{time.Millisecond, true, Success}},
		"two failures in a row after success": {
			{0, true, Success}, {10 * time.Second, false, Success}, {20 * time.Second, false, Failure},
			{30 * time.Second, true, Success},
		},
		"a success resets the count of failures": {
			{0, true, Success}, {10 * time.Second, false, Success}, {20 * time.Second, true, Success},
			{30 * time.Second, false, Success},
		},
	}
	for name, observations := range tests {
		start := time.Unix(0, 0)
		machine := NewMachine(timing, start)
		for i, o := range observations {
			if got := machine.Observe(o.ok, start.Add(o.at)); got != o.want {
				t.Errorf("%s: observation %d: result %d, want %d", name, i, got, o.want)
			}
		}
	}
}

func TestMachineIntervalAndSuccessThreshold(t *testing.T) {
	machine := NewMachine(Timing{Period: 10 * time.Second, SuccessThreshold: 2, FailureThreshold: 3}, time.Unix(0, 0))
	if got := machine.Interval(); got != InitialPeriod {
		t.Errorf("interval before the first success: %s", got)
	}
	if got := machine.Observe(true, time.Unix(0, 0)); got != Unknown {
		t.Errorf("result after one of two successes: %d", got)
	}
	if got := machine.Interval(); got != 10*time.Second {
		t.Errorf("interval after a success: %s", got)
	}
	if got := machine.Observe(true, time.Unix(10, 0)); got != Success {
		t.Errorf("result after two successes: %d", got)
	}
}

func handlerFor(
	t *testing.T, server *httptest.Server, scheme corev1.URIScheme, path string,
) (corev1.ProbeHandler, *corev1.Container, string) {
	host, port, _ := net.SplitHostPort(server.Listener.Addr().String())
	number, _ := strconv.Atoi(port)
	container := &corev1.Container{Ports: []corev1.ContainerPort{{Name: "https", ContainerPort: int32(number)}}}
	return corev1.ProbeHandler{
		HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromString("https"), Scheme: scheme},
	}, container, host
}

func TestCheck(t *testing.T) {
	answer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status, _ := strconv.Atoi(r.URL.Path[1:])
		w.WriteHeader(status)
	})
	plain, secure := httptest.NewServer(answer), httptest.NewTLSServer(answer)
	defer plain.Close()
	defer secure.Close()
	checker := NewChecker()
	for path, want := range map[string]bool{"/200": true, "/302": true, "/404": false, "/500": false} {
		handler, container, host := handlerFor(t, plain, corev1.URISchemeHTTP, path)
		if err := checker.Check(t.Context(), handler, container, host); (err == nil) != want {
			t.Errorf("http %s: %v", path, err)
		}
		handler, container, host = handlerFor(t, secure, corev1.URISchemeHTTPS, path)
		if err := checker.Check(t.Context(), handler, container, host); (err == nil) != want {
			t.Errorf("https %s: %v", path, err)
		}
	}
	handler, container, host := handlerFor(t, plain, "", "/200")
	socket := corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: handler.HTTPGet.Port}}
	if err := checker.Check(t.Context(), socket, container, host); err != nil {
		t.Errorf("tcp: %v", err)
	}
	plain.Close()
	if err := checker.Check(t.Context(), socket, container, host); err == nil {
		t.Error("tcp: a port without a listener passed the check")
	}
	if err := checker.Check(t.Context(), corev1.ProbeHandler{Exec: &corev1.ExecAction{}}, container, host); err == nil {
		t.Error("exec: an unsupported probe passed")
	}
}

func TestRunSendsChanges(t *testing.T) {
	var healthy atomic.Bool
	var checks atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if checks.Add(1) == 3 {
			healthy.Store(true)
		}
		if !healthy.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer server.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	results := make(chan Update)
	handler, container, host := handlerFor(t, server, corev1.URISchemeHTTP, "/")
	probe := &corev1.Probe{ProbeHandler: handler, PeriodSeconds: 1, FailureThreshold: 1}
	go NewChecker().Run(ctx, clock.RealClock{}, Target{Kind: Readiness, Container: container, PodIP: host}, probe, results)
	if got := <-results; got.Result != Success || got.Err != nil {
		t.Errorf("first result %+v", got)
	}
	healthy.Store(false)
	if got := <-results; got.Result != Failure || got.Err == nil {
		t.Errorf("second result %+v", got)
	}
}
