// Package memory keeps the process within the memory that its cgroup allows.
//
// Configure sets Go's soft memory limit (GOMEMLIMIT) to the limit of the cgroup minus a reserve, so that the garbage collector
// works harder before the kernel kills the process. The reserve is for memory that Go does not count: the pages of the
// database file that the embedded etcd member maps, the executable, and the kernel's buffers of connections.
//
// Pressure observes the heap. When the collector can no longer keep it within the limit, requests are rejected: first
// costly ones, then all that the cluster does not depend on. Next is the decision, as a pure function.
package memory
