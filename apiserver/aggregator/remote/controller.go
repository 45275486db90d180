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

// Controller downloads documents and builds the Set. Each replica runs one.
type Controller struct {
	decoder                   decoder
	discovery, v2, v3         *poll
	started, known, completed chan struct{} // completed is closed with lock held
	parsing                   sync.Mutex    // one OpenAPI version 2 document at a time, for its memory

	lock     sync.Mutex // guards the fields below; not held during downloads
	services map[string]*APIService
	servers  map[Server]*server
	// removed are deleted built-in APIServices.
	removed map[schema.GroupVersion]bool
	current *Set
	// changed is set if current is older than the fields above.
	changed bool
	// pending are servers whose discovery has not been attempted since they are known. It is nil when all existing
	// servers were attempted once.
	pending sets.Set[Server]
}

// server is what is known about one extension API server.
type server struct {
	services map[string]*APIService // by name

	discovered   sets.Set[schema.GroupVersion] // requested in the last successful download
	discoveryTag string
	versions     map[schema.GroupVersion]discoveryv2.APIVersionDiscovery // with freshness

	v2Requested sets.Set[schema.GroupVersion]
	v2          serverV2

	v3 serverV3
}

// errForget ends the downloads from a server without APIServices.
var errForget = errors.New("the server has no more APIServices")

// New returns a controller. Run runs it.
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

// Known marks all APIServices that existed at the start as observed. It must be called once.
func (c *Controller) Known() {
	close(c.known)
	c.lock.Lock()
	defer c.lock.Unlock()
	c.complete()
}

// Completed returns a channel that is closed when discovery was requested from every extension API server that existed
// at the start. Group versions whose request failed are listed as stale.
func (c *Controller) Completed() <-chan struct{} { return c.completed }

// complete closes completed if nothing is pending. The caller holds c.lock.
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

// run starts no goroutine before all APIServices are known and one of them is of an extension API server.
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

// Observe stores the state of an APIService; nil marks it as deleted. Each call for an extension API server, whether
// its state has changed or not, requests the documents again.
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

// observeLocal notices changes of APIServices of this server that documents depend on. The caller holds c.lock.
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

// deviation returns the priority of an APIService of this server, nil if documents are right without it: it has the
// default priority and its group version is served.
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

// attach adds an APIService to its server. The caller holds c.lock.
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

// detach removes an APIService from its server. The caller holds c.lock.
func (c *Controller) detach(name string, key Server) {
	c.changed = true
	s := c.servers[key]
	gv := s.services[name].GroupVersion
	delete(s.services, name)
	delete(s.versions, gv)
	delete(s.v2.versions, gv)
	// A download for a new APIService of the group version must not get a 304. Those in progress read the former sets.
	s.discovered, s.v2Requested = s.discovered.Difference(sets.New(gv)), s.v2Requested.Difference(sets.New(gv))
	if len(s.services) == 0 {
		delete(c.servers, key)
		c.pending.Delete(key)
		c.complete()
	}
}

// job is what a download needs to know about a server.
type job struct {
	backend Backend
	wanted  []schema.GroupVersion
	state   server // a shallow copy
}

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

// tag returns the entity tag for a conditional request, which needs the same group versions as the last one.
func (j job) tag(tag string, requested sets.Set[schema.GroupVersion]) string {
	if requested.HasAll(j.wanted...) {
		return tag
	}
	return ""
}
