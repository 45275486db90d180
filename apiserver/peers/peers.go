// Package peers passes requests for resources that this replica does not serve on to a replica that does, such as during
// an upgrade. It mirrors the behaviour of kube-apiserver's UnknownVersionInteroperabilityProxy, with which it works
// together: the replicas of a cluster may be of either kind.
//
// Each replica publishes its address in etcd. Peers learns from the identity leases which replicas there are, and from
// their discovery what they serve.
package peers

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"
)

// Options configure Peers.
type Options struct {
	ID     string // of this replica
	Leases *Leases
	// Identities returns the holders of the identity leases by ID. A holder is one process of a replica.
	Identities func(context.Context) (map[string]string, error)
	// Transport connects to peers with the front proxy's certificate.
	Transport http.RoundTripper
	// Serves reports whether this replica serves a resource.
	Serves func(schema.GroupVersionResource) bool

	Clock      clock.WithTicker
	Logger     logr.Logger
	Registerer prometheus.Registerer
}

// Peers are the other replicas. Run must be called.
type Peers struct {
	options Options
	metrics *metrics
	changed chan struct{} // has an element if an identity lease may have changed
	current atomic.Pointer[Set]

	mu         sync.Mutex // guards the fields below and the replacement of current
	known      map[string]discovered
	exclusions exclusions
}

// discovered is what a process of a replica serves.
type discovered struct {
	holder string
	*Peer
}

// New returns Peers that know of no other replica.
func New(options Options) *Peers {
	return &Peers{
		options: options, metrics: newMetrics(options.Registerer), changed: make(chan struct{}, 1),
		known: map[string]discovered{}, exclusions: newExclusions(),
	}
}

// Current returns what the other replicas serve, nil if there is none that serves something else. p may be nil.
func (p *Peers) Current() *Set {
	if p == nil {
		return nil
	}
	return p.current.Load()
}

// Changed makes Run read the identity leases.
func (p *Peers) Changed() {
	select {
	case p.changed <- struct{}{}:
	default: // not read yet
	}
}

// SetGroupVersions sets the group versions of a CustomResourceDefinition or of the APIService of an extension API server.
// The source is unique among both. Requests for them are not passed on.
func (p *Peers) SetGroupVersions(source string, versions []schema.GroupVersion) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.exclusions.set(source, versions, p.options.Clock.Now()) {
		p.publish()
	}
}

// publish replaces the current set. The caller holds the lock.
func (p *Peers) publish() {
	if len(p.known) == 0 {
		p.current.Store(nil)
		return
	}
	set := &Set{}
	for _, id := range slices.Sorted(maps.Keys(p.known)) {
		set.Peers = append(set.Peers, p.known[id].without(p.exclusions.has))
	}
	p.current.Store(set)
}

// Run keeps the set up to date until ctx ends. It calls done after the first attempt to read the discovery of all peers.
func (p *Peers) Run(ctx context.Context, done func()) error {
	const first, most = 250 * time.Millisecond, 30 * time.Second
	newBackoff := func() wait.Backoff { return wait.Backoff{Duration: first, Factor: 2, Steps: 100, Cap: most} }
	backoff := newBackoff()
	expiry := p.options.Clock.NewTicker(time.Minute)
	defer expiry.Stop()
	for {
		var retry <-chan time.Time
		if p.sync(ctx) {
			backoff = newBackoff()
		} else {
			retry = p.options.Clock.After(backoff.Step())
		}
		done()
		for waiting := true; waiting; {
			select {
			case <-ctx.Done():
				return nil
			case <-p.changed:
				waiting = false
			case <-retry:
				waiting = false
			case now := <-expiry.C():
				p.expire(now)
			}
		}
	}
}

func (p *Peers) expire(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.exclusions.expire(now) {
		p.publish()
	}
}

// sync reads the discovery of peers that have started since the last call, and reports whether it knows that of all.
func (p *Peers) sync(ctx context.Context) bool {
	holders, err := p.options.Identities(ctx)
	if err != nil {
		p.metrics.syncErrors.WithLabelValues(errorLeases).Inc()
		p.options.Logger.Error(err, "Failed to list the identities of peers")
		return false
	}
	delete(holders, p.options.ID)
	p.mu.Lock()
	next := map[string]discovered{}
	for id, of := range p.known {
		if of.holder == holders[id] {
			next[id] = of
		}
	}
	p.mu.Unlock()
	changed, complete := len(next) != len(p.known), true
	for id, found := range p.discoverAll(ctx, holders, next) {
		if found == nil {
			complete = false
			continue
		}
		next[id], changed = discovered{holders[id], found}, true
	}
	if changed {
		p.mu.Lock()
		p.known = next
		p.publish()
		p.mu.Unlock()
	}
	return complete
}

// discoverAll returns the peers that are not known, nil for those whose discovery cannot be read.
func (p *Peers) discoverAll(ctx context.Context, holders map[string]string, known map[string]discovered) map[string]*Peer {
	var mu sync.Mutex
	var group sync.WaitGroup
	all := map[string]*Peer{}
	for id := range holders {
		if _, ok := known[id]; ok {
			continue
		}
		group.Go(func() {
			found, err := p.discover(ctx, id)
			if err != nil && ctx.Err() == nil {
				p.options.Logger.Error(err, "Failed to read the discovery of a peer", "peer", id)
			}
			mu.Lock()
			all[id] = found
			mu.Unlock()
		})
	}
	group.Wait()
	return all
}

// describe names a resource in log lines.
func describe(resource schema.GroupVersionResource) string {
	return strings.Trim(resource.GroupVersion().String()+"/"+resource.Resource, "/")
}
