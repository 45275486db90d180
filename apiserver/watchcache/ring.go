package watchcache

import (
	"sort"
	"time"
)

const (
	// minEvents is the number of events that are kept regardless of their age, like defaultLowerBoundCapacity of
	// kube-apiserver's watchCache: watches can start at them even after etcd was compacted.
	minEvents = 100
	// minCapacity is the minimum length of a ring that is not empty. It must be a power of two.
	minCapacity = 128
	// maxEvents bounds the number of events kept; kube-apiserver's defaultUpperBoundCapacity is 102,400.
	maxEvents = 100_000
	// freshness is the age up to which events are kept within the other limits, for clients that reconnect. It is
	// kube-apiserver's DefaultEventFreshDuration.
	freshness = 75 * time.Second
	// recordOverhead is the approximate memory that an event takes in addition to the stored object, in bytes.
	recordOverhead = 256
)

// record is an event in the ring. Its embedded encodings are the frames that watchers share.
type record struct {
	kind     Type
	entry    *Entry
	previous *Entry
	received int64 // time of the event's arrival in Unix nanoseconds
	encodings
}

func (r *record) event() Event {
	return Event{Type: r.kind, Entry: r.entry, Previous: r.previous, Revision: r.entry.revision, shared: r}
}

func (r *record) size() int64 { return int64(len(r.entry.stored)) + recordOverhead }

// firstSequence is the sequence number of the first event. It leaves smaller ones for events that prepend adds before
// it.
const firstSequence = 1 << 40

// ring holds the latest events of one collection in the order of their dispatch. Watchers refer to events by sequence
// number. It is a circular buffer that grows and shrinks by powers of two. Guarded by Cache.mu.
type ring struct {
	maxBytes int64 // limit of bytes, beyond which trim drops the oldest events
	// records has the event with sequence number n at index n modulo its length. Invariant: the length is 0 or a
	// power of two, and at least end - first.
	records []*record
	// first and end delimit the sequence numbers of the events held; end is excluded. Invariant: first <= end.
	first, end uint64
	bytes      int64 // Invariant: the sum of size() over the events held.
	dropped    int64 // sum of size() over all events that were ever popped; never decreases
	// floor is the least revision that a watch can start after. Invariant: the ring holds all events after floor, in
	// the order of their revisions. Events up to floor may be held too, for watchers that have a position already:
	// the events that reconcile derives have revisions up to floor and may skip states that an object had in between.
	floor int64
}

// at returns the event with a sequence number, which must be at least first and less than end.
func (r *ring) at(sequence uint64) *record { return r.records[sequence&uint64(len(r.records)-1)] }

// push appends an event and returns its sequence number. It takes amortized constant time.
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

// unshift adds an event before all others. The caller lowers floor once it has added all of them.
func (r *ring) unshift(added *record) {
	if int(r.end-r.first) == len(r.records) {
		r.resize(max(minCapacity, 2*len(r.records)))
	}
	r.first--
	r.records[r.first&uint64(len(r.records)-1)] = added
	r.bytes += added.size()
}

// outdated reports whether the ring exceeds a limit, so that its oldest event must be dropped.
func (r *ring) outdated(now int64) bool {
	held := r.end - r.first
	if held == 0 {
		return false
	}
	old := now-r.at(r.first).received > int64(freshness)
	return held >= maxEvents || r.bytes > r.maxBytes || (old && held > minEvents)
}

// pop removes and returns the oldest event. The caller releases its encodings.
func (r *ring) pop() *record {
	oldest := r.at(r.first)
	r.records[r.first&uint64(len(r.records)-1)] = nil
	r.first++
	r.bytes -= oldest.size()
	r.dropped += oldest.size()
	r.floor = max(r.floor, oldest.entry.revision)
	return oldest
}

// shrink halves the buffer of a ring that is less than a quarter full, so that memory is freed after a burst.
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

// after returns the sequence number of the first event after a revision, which must be at least floor: up to floor,
// the events need not be in order of revision. It takes O(log n).
func (r *ring) after(revision int64) uint64 {
	held := int(r.end - r.first)
	return r.first + uint64(sort.Search(held, func(i int) bool {
		return r.at(r.first+uint64(i)).entry.revision > revision
	}))
}
