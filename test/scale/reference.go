package main

import (
	"context"
	"strconv"
	"strings"
	"sync/atomic"

	"quorate.dev/test/scale/hollow"
	"quorate.dev/test/scale/wire"
)

// reference counts the events of the first observer by node. While controllers change objects, the number of changes is
// not known; a node must then receive as many events as the observer has received for it.
type reference struct {
	cluster     *cluster
	pods, nodes []atomic.Int64
}

func newReference(c *cluster) *reference {
	return &reference{c, make([]atomic.Int64, c.options.nodes), make([]atomic.Int64, c.options.nodes)}
}

// noticePod returns the function that receives the events of pods of an observer; it is nil unless the observer is the
// first one.
func (c *cluster) noticePod(observer int) func(*hollow.Event) {
	if observer > 0 {
		return nil
	}
	return func(e *hollow.Event) {
		name, err := wire.Field(e.Object, 2, 10)
		if node, ok := nodeIndex(string(name)); ok && err == nil {
			c.reference.pods[node].Add(1)
		}
	}
}

// noticeNode returns the function that receives the events of Nodes of an observer, in the same way.
func (c *cluster) noticeNode(observer int) func(*hollow.Event) {
	if observer > 0 {
		return nil
	}
	return func(e *hollow.Event) {
		if node, ok := nodeIndex(string(e.Meta.Name)); ok {
			c.reference.nodes[node].Add(1)
		}
	}
}

// nodeIndex returns the index in the name of a node.
func nodeIndex(name string) (int, bool) {
	digits, ok := strings.CutPrefix(name, "node-")
	index, err := strconv.Atoi(digits)
	return index, ok && err == nil
}

// during runs do, and then waits until all watches have received the same events as the first observer. It returns the
// number of events that are missing.
func (r *reference) during(ctx context.Context, do func(context.Context) error) (missing int64, err error) {
	if err := r.cluster.churn.begin(ctx); err != nil {
		return 0, err
	}
	for i := range r.pods {
		r.pods[i].Store(0)
		r.nodes[i].Store(0)
	}
	if err := do(ctx); err != nil {
		return 0, err
	}
	err = settle(ctx, r.missing)
	return r.missing(), err
}

// missing returns the number of events that the first observer has received, but not the other watches.
func (r *reference) missing() (missing int64) {
	first := r.cluster.observers[0]
	slices := first.slices.Received()
	for i, node := range r.cluster.nodes {
		missing += node.Pods.Missing(r.pods[i].Load()) + node.Own.Missing(r.nodes[i].Load()) + node.Slices.Missing(slices)
	}
	for _, other := range r.cluster.observers[1:] {
		missing += other.pods.Missing(first.pods.Received()) + other.nodes.Missing(first.nodes.Received()) +
			other.slices.Missing(slices)
	}
	return missing
}
