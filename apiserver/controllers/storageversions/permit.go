package storageversions

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"

	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/resource"
)

// Recorder records the storage versions of this replica. The zero value has no resources and permits all writes.
type Recorder struct {
	// completed is set when the storage versions of all resources have been recorded, and never reset.
	completed atomic.Bool

	lock      sync.RWMutex
	resources []Resource
	// states has the state of each resource and alias. Aliases share the state of their resource.
	states map[schema.GroupResource]*state
}

// state is the progress of one resource. Recorder.lock guards it.
type state struct {
	recorded bool
	// err is the error of the last attempt.
	err error
}

// SetResources sets the resources to record. It must be called once, before requests are served and before Run.
func (r *Recorder) SetResources(resources []Resource) {
	r.lock.Lock()
	defer r.lock.Unlock()
	r.resources, r.states = resources, map[schema.GroupResource]*state{}
	for _, managed := range resources {
		shared := &state{}
		for _, alias := range managed.Aliases {
			r.states[alias] = shared
		}
	}
}

// PermitRequest returns an error for a request that writes a resource whose storage version has not been recorded. It
// applies the rules of kube-apiserver's filter WithStorageVersionPrecondition and returns the same error. Reads are
// always permitted. Writes that recording needs are permitted too: writes of StorageVersions, writes of Leases in
// kube-system, and the creation of namespaces by the server itself.
func (r *Recorder) PermitRequest(record *request.Record) error {
	info := &record.Info
	if r.completed.Load() || !info.IsResourceRequest {
		return nil
	}
	return r.permit(write{
		verb: info.Verb, resource: schema.GroupResource{Group: info.APIGroup, Resource: info.Resource},
		namespace: info.Namespace, fromServer: isServer(record.User),
	})
}

// PermitOwn does the same as PermitRequest for a write that this server makes without a request. In kube-apiserver,
// such writes are requests of the server's own user.
func (r *Recorder) PermitOwn(t resource.Target, verb string) error {
	return r.permit(write{verb: verb, resource: t.GroupResource(), namespace: t.Namespace, fromServer: true})
}

// isServer reports whether a user is the server itself.
func isServer(u user.Info) bool {
	return u != nil && u.GetName() == user.APIServerUser && slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup)
}

// write has the properties of a request that decide whether it must wait.
type write struct {
	verb       string
	resource   schema.GroupResource
	namespace  string
	fromServer bool
}

func (r *Recorder) permit(w write) error {
	if r.completed.Load() || isExempt(w) {
		return nil
	}
	r.lock.RLock()
	defer r.lock.RUnlock()
	s, managed := r.states[w.resource]
	if !managed || s.recorded {
		return nil
	}
	return apierrors.NewServiceUnavailable(fmt.Sprintf(
		"wait for storage version registration to complete for resource: %v, last seen error: %v", w.resource, s.err))
}

// isExempt reports whether a request is served while its resource is not recorded.
func isExempt(w write) bool {
	switch w.verb {
	case "get", "list", "watch":
		return true
	}
	switch w.resource {
	case schema.GroupResource{Group: "internal.apiserver.k8s.io", Resource: "storageversions"}:
		return true
	case schema.GroupResource{Resource: "namespaces"}:
		return w.verb == "create" && w.fromServer
	case schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}:
		return w.namespace == metav1.NamespaceSystem
	}
	return false
}

// setState stores the result of an attempt to record a resource.
func (r *Recorder) setState(of Resource, err error) {
	r.lock.Lock()
	defer r.lock.Unlock()
	s := r.states[of.GroupResource]
	s.recorded, s.err = s.recorded || err == nil, err
}
