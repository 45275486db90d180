// Package workload contains clients that use API servers while faults happen, and checks that a correct server can have
// produced the responses to these clients.
//
// Each Workload has its own objects and sends its requests through all servers. Its check relies only on facts that
// hold in spite of any fault: a response to a write is an acknowledgement; a request without a response, or with a
// response that leaves its effect open, may take effect at any later time; a read without a resourceVersion returns
// everything that had been acknowledged when the read began. Only times of this process are compared with each other.
package workload

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"quorate.dev/test/history/check"
)

// Workload is a group of clients, and the check of their observations.
type Workload interface {
	// Start creates the objects that the clients need and starts the clients, which send requests until ctx ends.
	Start(ctx context.Context) error
	// Stop waits until the clients have ended. The context of Start must have ended.
	Stop()
	// Check reads the stored objects through all servers, which have recovered, and returns the observations that no
	// correct server can produce. For effects that may be delayed, such as the deletion of a namespace, it waits until ctx
	// ends.
	Check(ctx context.Context) []error
	// Observed returns the number of observations that the check has examined.
	Observed() int
}

// Flags returns the flags that the workloads require of the servers.
func Flags() []string {
	return []string{
		"--controllers=namespace", "--event-ttl=" + eventTTL.String(), "--service-cluster-ip-range=" + serviceRange,
	}
}

// Names returns the names of all workloads, in the order of New.
func Names() []string {
	return []string{
		"custom objects", "events", "election", "namespaces", "applies", "quota", "services", "finalizers", "appends",
	}
}

// New returns all workloads by name. Each configuration is for a client of one server.
func New(configurations []*rest.Config, seed uint64) (map[string]Workload, error) {
	site := &site{configurations: configurations, seed: seed}
	for _, configuration := range configurations {
		configuration = rest.CopyConfig(configuration)
		configuration.QPS, configuration.ContentType, configuration.AcceptContentTypes =
			-1, "application/json", "application/json"
		configuration.Wrap(withoutRetries)
		client, err := kubernetes.NewForConfig(configuration)
		if err != nil {
			return nil, err
		}
		site.clients = append(site.clients, client)
	}
	return map[string]Workload{
		"custom objects": &customObjects{site: site},
		"events":         &events{crew: crew{site: site}},
		"election":       &election{crew: crew{site: site}},
		"namespaces":     &namespaces{crew: crew{site: site}},
		"applies":        &applies{crew: crew{site: site}},
		"quota":          &quota{crew: crew{site: site}},
		"services":       &services{crew: crew{site: site}},
		"finalizers":     &finalizers{crew: crew{site: site}},
		"appends":        &appends{crew: crew{site: site}},
	}, nil
}

// once is a transport whose responses do not request a retry. client-go repeats a request, even a write, if a response
// with a server error has the header Retry-After. The first attempt could then take effect after the second one, and
// after later requests.
type once struct{ http.RoundTripper }

func withoutRetries(next http.RoundTripper) http.RoundTripper { return once{next} }

// RoundTrip implements http.RoundTripper.
func (o once) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := o.RoundTripper.RoundTrip(request)
	if err == nil {
		response.Header.Del("Retry-After")
	}
	return response, err
}

// site holds the clients that a workload's requests are sent through, one for each server.
type site struct {
	configurations []*rest.Config
	clients        []kubernetes.Interface // one client for each server
	seed           uint64
}

const (
	requestTimeout = 3 * time.Second
	longestPause   = 100 * time.Millisecond // maximum pause of a client between two requests
)

// crew is embedded in each workload: its clients, and the faults that they have noticed.
type crew struct {
	*site
	running sync.WaitGroup

	mu       sync.Mutex
	faults   []error
	observed int
}

func (c *crew) Stop() { c.running.Wait() }

func (c *crew) Observed() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.observed
}

// observe counts an observation. If err is not nil, the observation is a fault.
func (c *crew) observe(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.observed++
	if err != nil {
		c.faults = append(c.faults, err)
	}
}

// found returns the faults that the clients have noticed.
func (c *crew) found() []error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]error{}, c.faults...)
}

// client is one client of a workload. Its random choices follow from the seed and its ID.
type client struct {
	*site
	id     int
	random *rand.Rand
}

// work starts a client that calls act repeatedly until ctx ends. A call that has begun is completed.
func (c *crew) work(ctx context.Context, id int, act func(context.Context, *client)) {
	worker := &client{site: c.site, id: id, random: rand.New(rand.NewPCG(c.seed, uint64(id)))}
	c.running.Go(func() {
		for worker.pause(ctx) {
			act(context.WithoutCancel(ctx), worker)
		}
	})
}

func (c *client) pause(ctx context.Context) bool {
	return check.Pause(ctx, time.Duration(c.random.Int64N(int64(longestPause))))
}

// any returns the client of a random server.
func (c *client) any() kubernetes.Interface { return c.clients[c.random.IntN(len(c.clients))] }

// limit returns a context with the timeout of one request.
func limit(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, requestTimeout)
}

// request sends one request with a bounded duration.
func request[T any](ctx context.Context, do func(context.Context) (T, error)) (T, error) {
	ctx, cancel := limit(ctx)
	defer cancel()
	return do(ctx)
}

// isRefused reports whether an error implies that a write had no effect and will have none.
func isRefused(err error) bool {
	return apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) ||
		apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsTooManyRequests(err) ||
		apierrors.IsBadRequest(err)
}

// eventually calls a function until it returns nil or ctx ends.
func eventually(ctx context.Context, try func(context.Context) error) error {
	for {
		limited, cancel := limit(ctx)
		err := try(limited)
		cancel()
		if err == nil {
			return nil
		}
		if !check.Pause(ctx, longestPause) {
			return err
		}
	}
}

// everyServer calls read with each server, and repeats the call until it returns nil or ctx ends. It returns the last
// error of each server whose calls did not succeed.
func (s *site) everyServer(
	ctx context.Context, read func(context.Context, kubernetes.Interface) error,
) (faults []error) {
	for i, server := range s.clients {
		if err := eventually(ctx, func(ctx context.Context) error { return read(ctx, server) }); err != nil {
			faults = append(faults, fmt.Errorf("server %d: %w", i, err))
		}
	}
	return faults
}

// stage is the progress of an object, which only grows. tried is the highest stage that a request may have reached,
// known the highest stage that was acknowledged or read.
type stage struct{ tried, known int }

// begin returns the lowest stage that a read which begins now may show.
func (s *stage) begin() int { return s.known }

// end returns an error if a read has shown a stage below atLeast, the result of begin before the read, or above tried.
// Otherwise the stage that was read becomes known.
func (s *stage) end(atLeast, got int) error {
	if got < atLeast {
		return fmt.Errorf("was at stage %d, and is back at %d", atLeast, got)
	}
	if got > s.tried {
		return fmt.Errorf("is at stage %d, and no client has tried more than %d", got, s.tried)
	}
	s.known = max(s.known, got)
	return nil
}
