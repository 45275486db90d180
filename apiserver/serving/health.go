package serving

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"
)

// Endpoint is a set of health endpoints, which | combines.
type Endpoint int

const (
	Healthz Endpoint = 1 << iota
	Livez
	Readyz

	AllEndpoints = Healthz | Livez | Readyz
)

// Check is a named health check.
type Check struct {
	// Name identifies the check in the response and in its path. It may contain slashes.
	Name string
	// Group is a name that excludes all checks of the group when it is in the parameter exclude. It is usually empty.
	Group string
	Run   func(context.Context) error
	// StartUp is set for checks that do not fail /livez during the grace period after the start.
	StartUp bool
	// Advisory is set for checks that do not fail the endpoint. They are reported only while they fail, together with
	// their error, which every client that may read the endpoint can read.
	Advisory bool
}

// Health serves /healthz, /livez and /readyz, and each check at its own path below these.
type Health struct {
	clock   clock.PassiveClock
	logger  logr.Logger
	started time.Time
	grace   time.Duration
	results *prometheus.GaugeVec
	counts  *prometheus.CounterVec

	mu       sync.RWMutex
	checks   []registeredCheck
	shutdown bool
}

type registeredCheck struct {
	Check
	at Endpoint
}

// NewHealth returns a Health with the check ping and, on /readyz, the check shutdown. grace is the time after the start
// in which StartUp checks do not fail /livez.
func NewHealth(grace time.Duration, c clock.PassiveClock, logger logr.Logger) *Health {
	h := &Health{
		clock: c, logger: logger, started: c.Now(), grace: grace,
		results: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "kubernetes_healthcheck", Help: "[STABLE] This metric " +
			"records the result of a single healthcheck."}, []string{"name", "type"}),
		counts: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kubernetes_healthchecks_total",
			Help: "[STABLE] This metric records the results of all healthcheck."}, []string{"name", "type", "status"}),
	}
	h.Add(AllEndpoints, Check{Name: "ping", Run: func(context.Context) error { return nil }})
	return h
}

// Add adds a check to the endpoints. Checks run in the order in which they are added.
func (h *Health) Add(at Endpoint, check Check) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.checks = append(h.checks, registeredCheck{Check: check, at: at})
}

// ShutDown makes the check shutdown fail, and thereby /readyz.
func (h *Health) ShutDown() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.shutdown = true
}

func (h *Health) checkShutdown(context.Context) error {
	h.mu.RLock()
	defer h.mu.RUnlock()
	if h.shutdown {
		return errors.New("process is shutting down")
	}
	return nil
}

// Paths returns the paths of all checks, such as /healthz/ping.
func (h *Health) Paths() []string {
	var paths []string
	for _, endpoint := range []string{"healthz", "livez", "readyz"} {
		for _, check := range h.checksOf(endpoint) {
			paths = append(paths, "/"+endpoint+"/"+check.Name)
		}
	}
	return paths
}

// ServeHTTP implements http.Handler.
func (h *Health) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	endpoint, name, single := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	checks := h.checksOf(endpoint)
	if checks == nil {
		http.NotFound(w, r)
		return
	}
	if single && name != "" {
		h.serveOne(w, r, endpoint, name, checks)
		return
	}
	h.serveAll(w, r, endpoint, checks)
}

// Passes reports whether all checks of an endpoint, such as "readyz", pass.
func (h *Health) Passes(ctx context.Context, endpoint string) bool {
	for _, check := range h.checksOf(endpoint) {
		if h.run(ctx, endpoint, check) != nil && !check.Advisory {
			return false
		}
	}
	return true
}

func (h *Health) checksOf(endpoint string) []Check {
	at, ok := map[string]Endpoint{"healthz": Healthz, "livez": Livez, "readyz": Readyz}[endpoint]
	if !ok {
		return nil
	}
	h.mu.RLock()
	defer h.mu.RUnlock()
	var checks []Check
	for _, check := range h.checks {
		if check.at&at != 0 {
			checks = append(checks, check.Check)
		}
	}
	// kube-apiserver also runs the check shutdown last.
	if at == Readyz {
		checks = append(checks, Check{Name: "shutdown", Run: h.checkShutdown})
	}
	return checks
}

func (h *Health) serveOne(w http.ResponseWriter, r *http.Request, endpoint, name string, checks []Check) {
	index := slices.IndexFunc(checks, func(c Check) bool { return c.Name == name })
	if index < 0 {
		http.NotFound(w, r)
		return
	}
	if err := h.run(r.Context(), endpoint, checks[index]); err != nil {
		http.Error(w, fmt.Sprintf("internal server error: %v", err), http.StatusInternalServerError)
		return
	}
	_, _ = fmt.Fprint(w, "ok")
}

// serveAll runs the checks that are not excluded. Their errors are only logged, because anonymous clients may read the
// response; the errors of advisory checks are part of the response.
func (h *Health) serveAll(w http.ResponseWriter, r *http.Request, endpoint string, checks []Check) {
	excluded := exclusionsOf(r)
	var report strings.Builder
	failed := 0
	for _, check := range checks {
		switch {
		case excluded.takes(check.Name):
			fmt.Fprintf(&report, "[+]%s excluded: ok\n", check.Name)
		case check.Group != "" && excluded.takes(check.Group):
			fmt.Fprintf(&report, "[+]%s excluded with %s: ok\n", check.Name, check.Group)
		default:
			err := h.run(r.Context(), endpoint, check)
			if check.Advisory {
				if err != nil {
					fmt.Fprintf(&report, "[!]%s warning: %v\n", check.Name, err)
				}
				continue
			}
			if err != nil {
				h.logger.V(2).Info("Health check failed", "endpoint", endpoint, "check", check.Name, "error", err.Error())
				fmt.Fprintf(&report, "[-]%s failed: reason withheld\n", check.Name)
				failed++
				continue
			}
			fmt.Fprintf(&report, "[+]%s ok\n", check.Name)
		}
	}
	if unknown := excluded.unknown(); unknown != "" {
		fmt.Fprintf(&report, "warn: some health checks cannot be excluded: no matches for %s\n", unknown)
	}
	if failed > 0 {
		http.Error(w, report.String()+endpoint+" check failed", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if _, verbose := r.URL.Query()["verbose"]; !verbose {
		_, _ = fmt.Fprint(w, "ok")
		return
	}
	_, _ = fmt.Fprintf(w, "%s%s check passed\n", report.String(), endpoint)
}

// run runs one check and records the result in the metrics.
func (h *Health) run(ctx context.Context, endpoint string, check Check) error {
	err := check.Run(ctx)
	if err != nil && endpoint == "livez" && check.StartUp && h.clock.Since(h.started) < h.grace {
		err = nil
	}
	result, status := 1.0, "success"
	if err != nil {
		result, status = 0, "error"
	}
	h.results.WithLabelValues(check.Name, endpoint).Set(result)
	h.counts.WithLabelValues(check.Name, endpoint, status).Inc()
	return err
}

// exclusions has the names in the parameter exclude; the value is set when a check or group has the name.
type exclusions map[string]bool

func exclusionsOf(r *http.Request) exclusions {
	names := exclusions{}
	for _, name := range r.URL.Query()["exclude"] {
		names[name] = false
	}
	return names
}

func (e exclusions) takes(name string) bool {
	if _, ok := e[name]; !ok {
		return false
	}
	e[name] = true
	return true
}

// unknown returns the names that no check or group has, quoted, sorted and separated by commas.
func (e exclusions) unknown() string {
	var names []string
	for name, known := range e {
		if !known {
			names = append(names, fmt.Sprintf("%q", name))
		}
	}
	slices.Sort(names)
	return strings.Join(names, ",")
}
