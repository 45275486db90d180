// Package flowcontrol implements API priority and fairness: it decides which requests are executed, which wait in a
// queue, and which are rejected, according to the FlowSchemas and PriorityLevelConfigurations of the cluster.
//
// Upstream's controller (k8s.io/apiserver/pkg/util/flowcontrol) digests the configuration: it divides the seats among
// the priority levels, lets the levels borrow seats from each other, sets the condition Dangling of FlowSchemas and
// serves the debug endpoints. It creates a queue set for each priority level through a factory. Here the factory
// creates the queue sets of this package, which have the same algorithm (fair queuing for server requests, shuffle
// sharding) and make the same decisions as upstream's fairqueuing/queueset. Upstream's own handling of requests costs
// several times as much (docs/fairness.md has the figures), because it holds the lock of the whole configuration
// while it matches, scans all queues at every step and looks up about twenty metrics by their labels.
//
// # Data structures
//
//   - Controller: upstream's controller, the queue sets by name of their priority level, and the current table.
//   - table: the Flows of one version of the configuration in the order of their precedence. Immutable. A Flow is a
//     FlowSchema with its priority level, queue set and metrics.
//   - queueSet: the seats and queues of one priority level. A queue has its waiting requests in a list, with the
//     sums of their seats and work.
//   - Request: a request from Start to Finish, or until it is rejected.
//
// # Life of a request
//
// Match finds the Flow. Start estimates the seats and the work of the request, deals a hand of queues from the hash
// of the flow, and chooses the queue in it with the least waiting work. The request is rejected if that queue is full
// and no seat is free; else it is added to the queue, and the queue set dispatches while seats are free. Wait waits
// until the request is dispatched, or rejects it after its time limit. Finish ends the execution and releases the
// seats, or releases them later if the estimate has an additional latency, and the queue set dispatches again. A
// priority level without queues executes or rejects a request immediately; an exempt one never rejects.
//
// A request that does not wait acquires the lock of its priority level twice, and needs no goroutine, timer or
// context.
//
// # Life of a priority level
//
// Upstream's controller calls the factory for a new level, and BeginConfigChange and Complete of its queueSet when
// its configuration or its number of seats changes. Complete calls Controller.configured, which increases the
// generation; the next call of Match builds a new table. When the level is deleted, the next table has no Flow for
// it, and its queueSet is marked as undesired. Requests that it has already drain. The last one makes upstream's
// controller digest the configuration again, and remove the level.
//
// # Virtual time
//
// R, the virtual time of a queue set (currentR), is the amount of work in seat-seconds that has been allocated to
// each busy queue since the start. It advances in real time by the number of seats that requests use or wait for, at
// most the seats of the priority level, divided by the number of busy queues. A queue's nextDispatchR is the virtual
// time at which its oldest request would be dispatched if all busy queues were served at the same time and at the
// same rate. The queue whose oldest request would finish first is served next. A request is assumed to execute for
// estimatedService; when it finishes, nextDispatchR is corrected by the actual duration.
//
// # Invariants
//
//   - A table and its Flows are immutable, except for a Flow's metrics, which its first request looks up.
//   - A request is in at most one list: the waiting requests of its queue, or the executing requests of its queue
//     set.
//   - waiting, seatsWaiting and busy of a queue set are the sums over its queues, requested also includes the seats
//     that requests of these queues use. running and seatsInUse include, in addition to these queues, requests
//     without a queue and of queues that have been removed.
//   - While the lock of a queue set is free, nextDispatchR of a queue is not less than arrivalR of its oldest
//     waiting request (bound).
//   - The virtual time is advanced (lock) before any change of the numbers that it depends on.
//
// # Locks and blocking
//
// Controller.mu is acquired before queueSet.mu. The lock of upstream's controller is acquired before both, because it
// calls the factory under its lock; the path of a request does not acquire it. Only Wait waits for other requests.
// Match lists the configuration from the informers once after each change, under Controller.mu.
//
// # Cost
//
// Match examines the rules of the FlowSchemas in order. Start takes O(h) for a hand of h queues, and O(1) if the
// level has no queues. Dispatching a waiting request takes O(q) for q queues, or O(1) if the arriving request is the
// only one that waits. Everything else is O(1); upstream sums up all queues whenever it advances the virtual time.
package flowcontrol
