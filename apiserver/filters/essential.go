package filters

import (
	"slices"

	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"

	"quorate.dev/apiserver/request"
)

// essential reports whether a cluster depends on a request: those of nodes and of the control plane, and writes of
// leases, by which both show that they are alive. Part of what the limits allow is kept for them, so that other
// clients, however many or slow, do not stop the cluster. Priority and fairness will take its place.
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

// readOnly reports whether a request counts as one that only reads.
func readOnly(record *request.Record) bool {
	switch record.Info.Verb {
	case "get", "list", "watch":
		return true
	}
	return false
}

// privileged reports whether a request is an administrator's or the server's own: those are always answered.
func privileged(record *request.Record) bool {
	return slices.Contains(record.User.GetGroups(), user.SystemPrivilegedGroup)
}
