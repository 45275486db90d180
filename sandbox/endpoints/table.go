package endpoints

import (
	"net/netip"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Entry is a Service with its endpoints. An Entry in a Table is immutable.
type Entry struct {
	Service   *corev1.Service
	Endpoints []Endpoint
}

// ClusterIP returns the cluster IP of the Service, and false for a headless Service.
func (e Entry) ClusterIP() (netip.Addr, bool) {
	address, err := netip.ParseAddr(e.Service.Spec.ClusterIP)
	return address, err == nil
}

// Table contains all Services with their endpoints, for the DNS server and the proxy. It is safe for concurrent use.
type Table struct {
	mu          sync.RWMutex
	entries     map[types.NamespacedName]Entry
	subscribers []chan struct{}
}

// NewTable returns an empty table.
func NewTable() *Table { return &Table{} }

// Update replaces all entries and notifies the subscribers.
func (t *Table) Update(services []*corev1.Service, pods []*corev1.Pod) {
	entries := make(map[types.NamespacedName]Entry, len(services))
	for _, service := range services {
		key := types.NamespacedName{Namespace: service.Namespace, Name: service.Name}
		entries[key] = Entry{Service: service, Endpoints: Of(service, pods)}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.entries = entries
	for _, subscriber := range t.subscribers {
		select {
		case subscriber <- struct{}{}:
		default: // a notification is pending
		}
	}
}

// Subscribe returns a channel that receives a value after changes of the table. One value may represent several
// changes.
func (t *Table) Subscribe() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	subscriber := make(chan struct{}, 1)
	t.subscribers = append(t.subscribers, subscriber)
	return subscriber
}

// Get returns the entry of a Service.
func (t *Table) Get(namespace, name string) (Entry, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	entry, ok := t.entries[types.NamespacedName{Namespace: namespace, Name: name}]
	return entry, ok
}

// Entries returns all entries, sorted by namespace and name.
func (t *Table) Entries() []Entry {
	t.mu.RLock()
	defer t.mu.RUnlock()
	result := make([]Entry, 0, len(t.entries))
	for _, entry := range t.entries {
		result = append(result, entry)
	}
	slices.SortFunc(result, func(a, b Entry) int {
		return compare(a.Service, b.Service)
	})
	return result
}
