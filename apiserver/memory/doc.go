// Package memory keeps the process within the memory that its cgroup allows, and returns memory when the process is
// idle.
//
// Configure sets Go's soft memory limit (GOMEMLIMIT) to the limit of the cgroup minus a reserve, so that the garbage
// collector works harder before the kernel kills the process. The reserve is for memory that Go does not count: the
// mapped pages of the embedded etcd member's database file, the executable, and the kernel's buffers of connections.
//
// Pressure observes the heap. When the garbage collector can no longer keep the heap within the limit, requests are
// rejected: first the expensive ones, then all except a few kinds that filters.Chain exempts. Next decides about the
// level as a pure function.
//
// ReturnWhenIdle returns the memory of a load that is gone to the system. Returns decides as a pure function.
package memory
