package network

import (
	"cmp"
	"container/heap"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// queueLength is the maximum number of packets that wait for a host. Further packets are dropped.
const queueLength = 8192

// Switch connects network namespaces and forwards their packets. The rules of paths select the packets that it drops,
// delays, duplicates and reorders.
type Switch struct {
	*rules
	hosts   map[int]*Host // host of each node
	nodes   map[[4]byte]int
	queues  map[int]*queue
	running sync.WaitGroup
	once    sync.Once // guards Close

	mu     sync.Mutex
	random *rand.Rand
	// opened holds the time at which each connection was opened, and reset the time of the last Reset of each pair of
	// nodes. Both are guarded by mu, like random.
	opened map[flow]time.Time
	reset  map[pair]time.Time
}

// NewSwitch returns a network of the given nodes, whose numbers are below 200, each in its own namespace. The seed
// determines the random choices of packets.
func NewSwitch(seed uint64, nodes ...int) (*Switch, error) {
	s := &Switch{
		rules: newRules(), random: rand.New(rand.NewPCG(seed, 2)), hosts: map[int]*Host{}, nodes: map[[4]byte]int{},
		queues: map[int]*queue{}, opened: map[flow]time.Time{}, reset: map[pair]time.Time{},
	}
	for _, node := range nodes {
		address := [4]byte{10, 99, 0, byte(50 + node)}
		host, err := newHost(address)
		if err != nil {
			s.Close()
			return nil, err
		}
		s.hosts[node], s.nodes[address], s.queues[node] = host, node, newQueue()
	}
	for node := range s.hosts {
		s.running.Go(func() { s.receive(node) })
		s.running.Go(func() { s.queues[node].deliver(s.hosts[node]) })
	}
	return s, nil
}

// Host returns the namespace of a node.
func (s *Switch) Host(node int) *Host { return s.hosts[node] }

// Dial opens a connection from a node to an address.
func (s *Switch) Dial(ctx context.Context, from, _ int, address string) (net.Conn, error) {
	return s.hosts[from].Dial(ctx, address)
}

// Close removes the namespaces. No process may be in them.
func (s *Switch) Close() {
	s.once.Do(func() {
		for node, host := range s.hosts {
			host.close()
			s.queues[node].close()
		}
	})
	s.running.Wait()
}

// Reset resets the connections between two nodes when their next packets arrive, like a router that has lost its state.
func (s *Switch) Reset(a, b int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reset[pair{min(a, b), max(a, b)}] = time.Now()
}

// receive forwards the packets that a node sends, until its device is closed.
func (s *Switch) receive(from int) {
	for {
		buffer := make(packet, packetSize)
		length, err := s.hosts[from].packets.Read(buffer)
		if err != nil {
			return
		}
		p := buffer[:length]
		if !p.isValid() {
			continue // such as IPv6
		}
		if to, ok := s.nodes[p.target()]; ok {
			s.forward(from, to, p)
		}
	}
}

// forward queues a packet for its target, subject to the rule of the path.
func (s *Switch) forward(from, to int, p packet) {
	rule, _ := s.rule(from, to)
	if rule.Cut || s.happens(rule.Lose) {
		return
	}
	if s.mustReset(from, to, p) {
		forTarget, forSource := p.resets()
		s.queues[to].add(forTarget, time.Now())
		s.queues[from].add(forSource, time.Now())
		return
	}
	copies := 1
	if s.happens(rule.Duplicate) {
		copies = 2
	}
	for range copies {
		due := time.Now().Add(rule.Delay)
		if s.happens(rule.Reorder) {
			due = due.Add(s.below(rule.Lag))
		}
		s.queues[to].add(p, due)
	}
}

// happens returns true with the given probability.
func (s *Switch) happens(probability float64) bool {
	if probability == 0 {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.random.Float64() < probability
}

func (s *Switch) below(limit time.Duration) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Duration(s.random.Int64N(int64(limit) + 1))
}

// mustReset reports whether the connection of a packet was opened before the last Reset of its two nodes. It records
// the time of a packet that opens a connection.
func (s *Switch) mustReset(from, to int, p packet) bool {
	if p.segment() == nil || p.isReset() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.opens() {
		s.opened[p.flow()] = time.Now()
	}
	return s.opened[p.flow()].Before(s.reset[pair{min(from, to), max(from, to)}])
}

// queue holds the packets for one host, ordered by the time at which they are due, and then by arrival.
type queue struct {
	mu      sync.Mutex
	waiting packets
	arrived int
	wake    chan struct{} // receives a value when a packet was added, which may be due first
	ended   chan struct{}
}

func newQueue() *queue { return &queue{wake: make(chan struct{}, 1), ended: make(chan struct{})} }

func (q *queue) close() { close(q.ended) }

func (q *queue) add(p packet, due time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) >= queueLength {
		return
	}
	q.arrived++
	heap.Push(&q.waiting, queued{p, due, q.arrived})
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// deliver writes packets to the device of a host when they are due, until the queue is closed.
func (q *queue) deliver(host *Host) {
	for {
		p, left := q.next()
		if p != nil {
			_, _ = host.packets.Write(p) // like a network, drop packets for a device without a reader
			continue
		}
		var due <-chan time.Time
		if left > 0 {
			due = time.After(left)
		}
		select {
		case <-due:
		case <-q.wake:
		case <-q.ended:
			return
		}
	}
}

// next removes and returns a packet that is due. Without one, it returns the time until the first packet is due, or 0
// if the queue is empty.
func (q *queue) next() (packet, time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) == 0 {
		return nil, 0
	}
	if left := time.Until(q.waiting[0].due); left > 0 {
		return nil, left
	}
	return heap.Pop(&q.waiting).(queued).packet, 0
}

// queued is a packet in a queue.
type queued struct {
	packet
	due    time.Time
	number int
}

// packets implements heap.Interface for a queue.
type packets []queued

func (p packets) Len() int { return len(p) }

func (p packets) Less(i, j int) bool {
	return cmp.Or(p[i].due.Compare(p[j].due), cmp.Compare(p[i].number, p[j].number)) < 0
}

func (p packets) Swap(i, j int) { p[i], p[j] = p[j], p[i] }
func (p *packets) Push(x any)   { *p = append(*p, x.(queued)) }

func (p *packets) Pop() any {
	last := (*p)[len(*p)-1]
	*p = (*p)[:len(*p)-1]
	return last
}

// Usable returns the reason why a Switch cannot be created, or nil.
func Usable() error {
	s, err := NewSwitch(0, 0)
	if err != nil {
		return fmt.Errorf("no network namespaces: %w", err)
	}
	s.Close()
	return nil
}
