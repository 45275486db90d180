package autoregister

import (
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
)

// managedLabel marks APIServices managed by the server. It is kube-aggregator's AutoRegisterManagedLabel.
const managedLabel = "kube-aggregator.kubernetes.io/automanaged"

// Values of managedLabel.
const (
	onStart    = "onstart" // built-in APIs: synced once, at the start
	constantly = "true"    // custom resources: synced continuously
)

// action is the result of decide.
type action string

const (
	nothing action = "nothing"
	create  action = "create"
	update  action = "update"
	remove  action = "remove"
)

// history is the information of this replica about an APIService that decide depends on.
type history struct {
	atStart bool // it existed when this replica started
	synced  bool // this replica has synced it
}

// decide returns how to change an APIService to its desired state. current is nil if the APIService does not exist, and
// wanted is nil if it must not exist. decide mirrors kube-aggregator's checkAPIService.
func decide(current, wanted *apiregistration.APIService, past history) action {
	switch {
	case current == nil && wanted == nil, managed(wanted) == onStart && past.synced:
		return nothing
	case current == nil:
		return create
	case managed(current) == "", managed(current) == onStart && (!past.atStart || past.synced):
		return nothing
	case wanted == nil:
		return remove
	case equality.Semantic.DeepEqual(current.Spec, wanted.Spec):
		return nothing
	}
	return update
}

// IsManaged reports whether this server or kube-apiserver creates and deletes an APIService.
func IsManaged(service *apiregistration.APIService) bool { return managed(service) != "" }

// managed returns the value of managedLabel, or "" if the label is missing or invalid.
func managed(service *apiregistration.APIService) string {
	if service == nil {
		return ""
	}
	if how := service.Labels[managedLabel]; how == onStart || how == constantly {
		return how
	}
	return ""
}

// localCondition is the Available condition of local APIServices.
func localCondition(now metav1.Time) apiregistration.APIServiceCondition {
	condition := apiregistration.NewLocalAvailableAPIServiceCondition()
	condition.LastTransitionTime = now
	return condition
}

// hasLocalCondition reports whether an APIService of this server has localCondition. It returns true for APIServices of
// extension API servers, which autoregister does not manage.
func hasLocalCondition(service *apiregistration.APIService) bool {
	if service.Spec.Service != nil {
		return true
	}
	after := service.DeepCopy()
	apiregistration.SetAPIServiceCondition(after, localCondition(metav1.Time{}))
	return equality.Semantic.DeepEqual(service.Status, after.Status)
}
