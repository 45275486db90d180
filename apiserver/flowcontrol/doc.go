// Package flowcontrol is API priority and fairness: it decides which requests are executed, which wait in a queue, and
// which are rejected, by the FlowSchemas and PriorityLevelConfigurations of the cluster.
//
// Upstream's controller (k8s.io/apiserver/pkg/util/flowcontrol) digests the configuration: it divides the seats between
// the priority levels, lets them borrow from each other, sets the condition Dangling of FlowSchemas and serves the debug
// endpoints. It creates a queue set for each priority level by a factory, which is the seam: the queue sets are this
// package's, with the same algorithm (fair queuing for server requests, shuffle sharding) and the same decisions.
//
// # Path of a request
//
// Match finds the FlowSchema. Start estimates the seats and takes them, or queues the request, or rejects it. Wait waits
// in the queue. Finish releases the seats. A request that need not wait takes two locks of its priority level and no
// goroutine, timer or context; upstream's controller costs several times as much (docs/fairness.md has the figures),
// because it holds the lock of the whole configuration while it matches, scans all queues at every step and looks up
// about twenty metrics by their labels.
//
// # Invariants
//
//   - A table of flows is immutable. It is rebuilt by the first request after the controller has digested a change.
//   - A request is in at most one list: the waiting requests of its queue, or the executing requests of its set.
//   - The sums of a queue set equal those over its queues.
//
// Lock order: Controller.mu before queueSet.mu. The lock of upstream's controller is taken before both; it is not taken on
// the path of a request.
package flowcontrol
