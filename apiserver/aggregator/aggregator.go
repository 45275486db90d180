package aggregator

import (
	"cmp"
	"context"
	"net"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
)

// Options configure an Aggregator.
type Options struct {
	Resolver webhook.ServiceResolver
	// Certificate is the front-proxy client certificate; nil for none.
	Certificate *Certificate
	// Dial connects to backends; nil means a net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// RejectRedirects replaces redirects of backends by 502 (--aggregator-reject-forwarding-redirect).
	RejectRedirects bool
	// MaxRequestsInFlight bounds the requests to each backend that are not long-running; 0: no limit.
	MaxRequestsInFlight int
	Logger              logr.Logger
}

// Aggregator has the current Table.
type Aggregator struct {
	options Options
	pools   *pools
	current atomic.Pointer[Table]

	mu       sync.Mutex // guards the fields below and the replacement of the table
	services map[string]*APIService
	known    bool
}

// New returns an aggregator without APIServices.
func New(options Options) *Aggregator {
	a := &Aggregator{
		options: options, services: map[string]*APIService{},
		pools: &pools{options: options, byKey: map[poolKey]*connections{}},
	}
	a.current.Store(newTable(nil))
	if options.Certificate != nil {
		options.Certificate.changed = a.pools.reopen
	}
	return a
}

// Table returns the current table, never nil.
func (a *Aggregator) Table() *Table { return a.current.Load() }

// Set stores the state of an APIService; any other object marks it as deleted. The current table has the state when Set
// returns, except before Known.
func (a *Aggregator) Set(name string, object runtime.Object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	before := a.services[name]
	if service, ok := object.(*apiregistration.APIService); ok {
		a.services[name] = a.convert(service)
	} else {
		delete(a.services, name)
	}
	// After convert, so that connections are kept if their key has not changed.
	if before != nil && before.Backend != nil {
		a.pools.release(before.Backend.key)
	}
	if a.known {
		a.replace()
	}
}

// Known publishes all APIServices that existed at the start. Until then the table is empty.
func (a *Aggregator) Known() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.known {
		a.known = true
		a.replace()
	}
}

// replace publishes the table of a.services. The caller holds a.mu.
func (a *Aggregator) replace() {
	services := make([]*APIService, 0, len(a.services))
	for _, s := range a.services {
		services = append(services, s)
	}
	slices.SortFunc(services, func(x, y *APIService) int { return cmp.Compare(x.Name, y.Name) })
	close(a.current.Swap(newTable(services)).replaced)
}

func (a *Aggregator) convert(service *apiregistration.APIService) *APIService {
	converted := &APIService{
		Name: service.Name, Group: service.Spec.Group, Version: service.Spec.Version,
		GroupPriority: service.Spec.GroupPriorityMinimum, VersionPriority: service.Spec.VersionPriority,
		ResourceVersion: service.ResourceVersion,
	}
	if service.Spec.Service != nil {
		converted.Backend = a.backend(service)
	}
	return converted
}
