package filters

import (
	"slices"

	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"

	"quorate.dev/apiserver/request"
)

// essential reports whether the cluster depends on a request: requests of nodes and of the control plane, and writes of
// leases, which are the heartbeats of nodes and of leaders. Part of each limit is reserved for essential requests, so
// that other clients cannot stop the cluster.
func essential(record *request.Record) bool {
	info := &record.Info
	if info.Resource == "leases" && info.APIGroup == "coordination.k8s.io" && !readOnly(record) {
		return true
	}
	switch record.User.GetName() {
	case user.KubeControllerManager, user.KubeScheduler:
		return true
	}
	return slices.ContainsFunc(record.User.GetGroups(), func(group string) bool {
		return group == user.NodesGroup || group == serviceaccount.ServiceAccountGroupPrefix+"kube-system"
	})
}

// readOnly reports whether a request counts against --max-requests-inflight, not --max-mutating-requests-inflight.
func readOnly(record *request.Record) bool {
	switch record.Info.Verb {
	case "get", "list", "watch":
		return true
	}
	return false
}

// privileged reports whether the user of a request is in system:masters, such as administrators and the server itself.
// Privileged requests are exempt from the limits.
func privileged(record *request.Record) bool {
	return slices.Contains(record.User.GetGroups(), user.SystemPrivilegedGroup)
}
