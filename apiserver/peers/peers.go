// Package peers forwards requests for resources that this replica does not serve to a replica that serves them, for
// example during an upgrade. It mirrors kube-apiserver's UnknownVersionInteroperabilityProxy and interoperates with it:
// each replica of a cluster may be this server or a kube-apiserver.
//
// Each replica publishes its address in etcd. Peers finds the other replicas by their identity leases, and the
// resources that they serve by their discovery.
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

	"quorate.dev/panics"
)

// Options configure Peers.
type Options struct {
	// ID is the ID of this replica.
	ID     string
	Leases *Leases
	// Identities returns the holders of the identity leases by the ID of the replica. A holder is one process of a
	// replica.
	Identities func(context.Context) (map[string]string, error)
	// Transport connects to peers with the certificate of the front proxy.
	Transport http.RoundTripper
	// Serves reports whether this replica serves a resource.
	Serves func(schema.GroupVersionResource) bool

	Clock      clock.WithTicker
	Logger     logr.Logger
	Registerer prometheus.Registerer
}

// Peers are the other replicas of the cluster. Run must be running.
type Peers struct {
	options Options
	metrics *metrics
	// changed has an element if an identity lease may have changed.
	changed chan struct{}
	current atomic.Pointer[Set]

	// mu guards the fields below and the replacement of current.
	mu         sync.Mutex
	known      map[string]discovered
	exclusions exclusions
}

// discovered is a peer and the process of the peer whose discovery was read.
type discovered struct {
	holder string
	*Peer
}

// New returns Peers without any peer; Run discovers them.
func New(options Options) *Peers {
	return &Peers{
		options: options, metrics: newMetrics(options.Registerer), changed: make(chan struct{}, 1),
		known: map[string]discovered{}, exclusions: newExclusions(),
	}
}

// Current returns the resources that the other replicas serve, or nil if no peer is known. p may be nil.
func (p *Peers) Current() *Set {
	if p == nil {
		return nil
	}
	return p.current.Load()
}

// Changed makes Run read the identity leases again.
func (p *Peers) Changed() {
	select {
	case p.changed <- struct{}{}:
	// Run has not handled the previous change yet.
	default:
	}
}

// SetGroupVersions sets the group versions of a CustomResourceDefinition, or of the APIService of an extension API
// server, for which requests are not forwarded. source identifies the object among both kinds.
func (p *Peers) SetGroupVersions(source string, versions []schema.GroupVersion) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.exclusions.set(source, versions, p.options.Clock.Now()) {
		p.publish()
	}
}

// publish replaces the current set. The caller must hold the lock.
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

// Run keeps the current set up to date until ctx ends. It calls done after each attempt to read the discovery of new
// peers, for the first time when the initial peers have been tried.
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

// sync reads the discovery of peers that have started since the last call, and reports whether the discovery of all
// peers is known.
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

// discoverAll returns the peers that are not known. A peer is nil if its discovery cannot be read.
func (p *Peers) discoverAll(
	ctx context.Context, holders map[string]string, known map[string]discovered,
) map[string]*Peer {
	var mu sync.Mutex
	var group panics.Group
	all := map[string]*Peer{}
	for id := range holders {
		if _, ok := known[id]; ok {
			continue
		}
		group.Start(func() {
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

// describe returns the name of a resource for log lines.
func describe(resource schema.GroupVersionResource) string {
	return strings.Trim(resource.GroupVersion().String()+"/"+resource.Resource, "/")
}
