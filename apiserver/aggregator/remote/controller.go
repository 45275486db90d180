package remote

import (
	"context"
	"errors"
	"maps"
	"reflect"
	"slices"
	"sync"

	"github.com/go-logr/logr"
	discoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/builtin/priority"
)

// Controller downloads documents of extension API servers and builds the Set. Each replica runs one. All methods are
// safe for concurrent use.
type Controller struct {
	decoder           decoder
	discovery, v2, v3 *poll
	// started is closed when the first APIService of an extension API server is observed. known is closed by Known.
	// completed is closed, with lock held, when pending becomes nil.
	started, known, completed chan struct{}
	// parsing is held while an OpenAPI version 2 document is parsed, because the decoded form of a document takes much
	// memory: at most one decoded document is in memory. parsing is never held together with lock.
	parsing sync.Mutex

	// lock guards the fields below, including the servers. It is not held during downloads, and acquired before
	// poll.mu.
	lock     sync.Mutex
	services map[string]*APIService
	servers  map[Server]*server
	// removed has the built-in group versions whose APIService was deleted.
	removed map[schema.GroupVersion]bool
	current *Set
	// changed is set if current is older than the other fields.
	changed bool
	// pending has the servers whose discovery has not been attempted since they became known. It is nil once all
	// servers that existed at the start have been attempted.
	pending sets.Set[Server]
}

// server has the APIServices and documents of one extension API server.
type server struct {
	services map[string]*APIService // by name

	// discovered has the group versions that the last successful download of discovery requested.
	discovered   sets.Set[schema.GroupVersion]
	discoveryTag string
	versions     map[schema.GroupVersion]discoveryv2.APIVersionDiscovery // last valid discovery, with its freshness

	// v2Requested has the group versions that the last successful download of the version 2 document was for.
	v2Requested sets.Set[schema.GroupVersion]
	v2          serverV2

	v3 serverV3
}

// errForget ends the downloads from a server that has no APIServices any more.
var errForget = errors.New("the server has no more APIServices")

// New returns a controller. Its Run methods download the documents.
func New(clock clock.WithTicker, logger logr.Logger) (*Controller, error) {
	decoder, err := newDecoder()
	if err != nil {
		return nil, err
	}
	c := &Controller{
		decoder: decoder, started: make(chan struct{}), known: make(chan struct{}), completed: make(chan struct{}),
		services: map[string]*APIService{}, servers: map[Server]*server{}, removed: map[schema.GroupVersion]bool{},
		pending: sets.Set[Server]{},
	}
	c.discovery = newPoll("discovery-manager", discoverySchedule, clock, logger.WithName("discovery"), c.syncDiscovery)
	c.v2 = newPoll("open_api_aggregation_controller", v2Schedule, clock, logger.WithName("openapi"), c.syncV2)
	c.v3 = newPoll("open_api_v3_aggregation_controller", v3Schedule, clock, logger.WithName("openapiv3"), c.syncV3)
	return c, nil
}

// Known tells the controller that Observe has been called for all APIServices that existed at the start. It must be
// called once.
func (c *Controller) Known() {
	close(c.known)
	c.lock.Lock()
	defer c.lock.Unlock()
	c.complete()
}

// Completed returns a channel that is closed when discovery has been requested from every extension API server that
// existed at the start. Group versions whose request failed are listed as stale.
func (c *Controller) Completed() <-chan struct{} { return c.completed }

// complete closes completed if all APIServices are known and nothing is pending. The caller holds c.lock.
func (c *Controller) complete() {
	select {
	case <-c.known:
	default:
		return
	}
	if c.pending != nil && len(c.pending) == 0 {
		c.pending = nil
		close(c.completed)
	}
}

// RunDiscovery downloads discovery documents until ctx ends.
func (c *Controller) RunDiscovery(ctx context.Context) {
	c.run(ctx, c.discovery)
}

// RunOpenAPIV2 downloads OpenAPI version 2 documents until ctx ends.
func (c *Controller) RunOpenAPIV2(ctx context.Context) { c.run(ctx, c.v2) }

// RunOpenAPIV3 downloads the indexes of OpenAPI version 3 documents until ctx ends.
func (c *Controller) RunOpenAPIV3(ctx context.Context) { c.run(ctx, c.v3) }

// run waits until all APIServices are known and at least one extension API server exists. Then it runs p until ctx
// ends.
func (c *Controller) run(ctx context.Context, p *poll) {
	for _, awaited := range []chan struct{}{c.known, c.started} {
		select {
		case <-awaited:
		case <-ctx.Done():
			p.shutDown()
			return
		}
	}
	p.run(ctx)
}

// Observe stores the state of an APIService; nil marks it as deleted. Each call for an extension API server requests
// the documents again, whether the state has changed or not. Observe does not wait for the downloads.
func (c *Controller) Observe(name string, service *APIService) {
	c.lock.Lock()
	defer c.lock.Unlock()
	before := c.services[name]
	if before.isRemote() && (!service.isRemote() || service.Server != before.Server) {
		c.detach(name, before.Server)
	}
	if service == nil {
		delete(c.services, name)
	} else {
		c.services[name] = service
	}
	c.observeLocal(before, service)
	if !service.isRemote() {
		return
	}
	if !before.isRemote() || before.Server != service.Server || before.Priority != service.Priority {
		c.changed = true
	}
	c.attach(name, service)
	c.discovery.changed(service.Server, service.Available)
	c.v2.changed(service.Server, service.Available)
	c.v3.changed(service.Server, service.Available)
	select {
	case <-c.started:
	default:
		close(c.started)
	}
}

// observeLocal sets changed if the state of an APIService of this server has changed in a way that documents depend
// on. The caller holds c.lock.
func (c *Controller) observeLocal(before, after *APIService) {
	switch {
	case after != nil:
		if c.removed[after.GroupVersion] {
			delete(c.removed, after.GroupVersion)
			c.changed = true
		}
		if !reflect.DeepEqual(deviation(before), deviation(after)) {
			c.changed = true
		}
	case before != nil:
		if _, builtIn := priority.BuiltIn(before.GroupVersion); builtIn {
			c.removed[before.GroupVersion] = true
			c.changed = true
		}
		if deviation(before) != nil {
			c.changed = true
		}
	}
}

// deviation returns the priority of an APIService of this server if documents depend on it. It returns nil if the
// APIService has the default priority and this server manages it.
func deviation(service *APIService) *priority.Priority {
	if service == nil || service.isRemote() {
		return nil
	}
	standard, builtIn := priority.BuiltIn(service.GroupVersion)
	if !builtIn {
		standard = priority.Custom
	}
	if service.Managed && service.Priority == standard {
		return nil
	}
	return &service.Priority
}

// attach adds an APIService to its server, and creates the server if necessary. The caller holds c.lock.
func (c *Controller) attach(name string, service *APIService) {
	s := c.servers[service.Server]
	if s == nil {
		s = &server{services: map[string]*APIService{}, versions: map[schema.GroupVersion]discoveryv2.APIVersionDiscovery{}}
		c.servers[service.Server] = s
		if c.pending != nil {
			c.pending.Insert(service.Server)
		}
	}
	s.services[name] = service
}

// detach removes an APIService from its server, and the server with its last APIService. The caller holds c.lock.
func (c *Controller) detach(name string, key Server) {
	c.changed = true
	s := c.servers[key]
	gv := s.services[name].GroupVersion
	delete(s.services, name)
	delete(s.versions, gv)
	delete(s.v2.versions, gv)
	// The next download for an APIService of the group version must not get a 304. Downloads in progress read the
	// former sets, which do not change.
	s.discovered, s.v2Requested = s.discovered.Difference(sets.New(gv)), s.v2Requested.Difference(sets.New(gv))
	if len(s.services) == 0 {
		delete(c.servers, key)
		c.pending.Delete(key)
		c.complete()
	}
}

// job has the data about a server that a download needs.
type job struct {
	backend Backend
	wanted  []schema.GroupVersion
	state   server // a shallow copy, whose maps must not be read without the lock; sets are replaced, never changed
}

// job returns the data for a download. The error is errForget if the server has no APIServices. Requests use the
// Backend of an available APIService if there is one.
func (c *Controller) job(key Server) (job, error) {
	c.lock.Lock()
	defer c.lock.Unlock()
	s := c.servers[key]
	if s == nil {
		return job{}, errForget
	}
	j := job{state: *s}
	available := false
	for _, name := range slices.Sorted(maps.Keys(s.services)) {
		service := s.services[name]
		j.wanted = append(j.wanted, service.GroupVersion)
		if j.backend == nil || !available && service.Available {
			j.backend, available = service.Backend, service.Available
		}
	}
	return j, nil
}

// tag returns the entity tag for a conditional request. tag and requested are from the last successful download: if it
// did not request all group versions that are wanted now, the result is "", so that the response cannot be a 304.
func (j job) tag(tag string, requested sets.Set[schema.GroupVersion]) string {
	if requested.HasAll(j.wanted...) {
		return tag
	}
	return ""
}
