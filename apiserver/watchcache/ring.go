package watchcache

import (
	"sort"
	"time"
)

const (
	// minEvents is how many events are kept however old they are, as kube-apiserver keeps them: also when the store has
	// been compacted, watches may begin there.
	minEvents = 100
	// minCapacity is the least length of a ring that is not empty, a power of two.
	minCapacity = 128
	// maxEvents is how many are kept at most, however young.
	maxEvents = 100_000
	// freshness is how long events are kept if there is room: a client that reconnects within it misses nothing.
	freshness = 75 * time.Second
	// recordOverhead is about what a kept event takes beside the object, in bytes.
	recordOverhead = 256
)

// record is what the ring keeps of an event.
type record struct {
	kind     Type
	entry    *Entry
	previous *Entry
	received int64 // Unix time in nanoseconds
	encodings
}

func (r *record) event() Event {
	return Event{Type: r.kind, Entry: r.entry, Previous: r.previous, Revision: r.entry.revision, shared: r}
}

func (r *record) size() int64 { return int64(len(r.entry.stored)) + recordOverhead }

// firstSequence leaves room for events from before the first.
const firstSequence = 1 << 40

// ring holds the latest events of one collection. Sequence numbers count events; those from first up to, excluding,
// end are held.
type ring struct {
	maxBytes   int64
	records    []*record // a power of two long; the event with sequence number n is at n modulo its length
	first, end uint64
	bytes      int64
	dropped    int64 // bytes of all events that have been popped
	floor      int64 // all events after this revision are held
}

func (r *ring) at(sequence uint64) *record { return r.records[sequence&uint64(len(r.records)-1)] }

// push adds an event and returns its sequence number. Trim makes room before.
func (r *ring) push(added *record) uint64 {
	if int(r.end-r.first) == len(r.records) {
		r.resize(max(minCapacity, 2*len(r.records)))
	}
	sequence := r.end
	r.records[sequence&uint64(len(r.records)-1)] = added
	r.end++
	r.bytes += added.size()
	return sequence
}

// unshift adds an event before all others.
func (r *ring) unshift(added *record) {
	if int(r.end-r.first) == len(r.records) {
		r.resize(max(minCapacity, 2*len(r.records)))
	}
	r.first--
	r.records[r.first&uint64(len(r.records)-1)] = added
	r.bytes += added.size()
}

// outdated tells whether the oldest event should go.
func (r *ring) outdated(now int64) bool {
	held := r.end - r.first
	if held == 0 {
		return false
	}
	old := now-r.at(r.first).received > int64(freshness)
	return held >= maxEvents || r.bytes > r.maxBytes || (old && held > minEvents)
}

// pop drops the oldest event and returns it.
func (r *ring) pop() *record {
	oldest := r.at(r.first)
	r.records[r.first&uint64(len(r.records)-1)] = nil
	r.first++
	r.bytes -= oldest.size()
	r.dropped += oldest.size()
	r.floor = max(r.floor, oldest.entry.revision)
	return oldest
}

// shrink gives memory back after a burst.
func (r *ring) shrink() {
	if held := int(r.end - r.first); len(r.records) > minCapacity && held < len(r.records)/4 {
		r.resize(len(r.records) / 2)
	}
}

func (r *ring) resize(length int) {
	records := make([]*record, length)
	for n := r.first; n < r.end; n++ {
		records[n&uint64(length-1)] = r.at(n)
	}
	r.records = records
}

// after returns the sequence number of the first event after a revision.
func (r *ring) after(revision int64) uint64 {
	held := int(r.end - r.first)
	return r.first + uint64(sort.Search(held, func(i int) bool {
		return r.at(r.first+uint64(i)).entry.revision > revision
	}))
}
