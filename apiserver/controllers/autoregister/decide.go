package autoregister

import (
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
)

// managedLabel says of an APIService that the server makes it, and how it keeps it.
const managedLabel = "kube-aggregator.kubernetes.io/automanaged"

// The values of managedLabel.
const (
	onStart    = "onstart" // brought in step once, at the start: of built-in APIs
	constantly = "true"    // of custom resources
)

// action is what is to be done about an APIService.
type action string

const (
	nothing action = "nothing"
	create  action = "create"
	update  action = "update"
	remove  action = "remove"
)

// history is what this replica remembers of an APIService.
type history struct {
	atStart bool // it was there when this replica began
	synced  bool // it has been in step once
}

// decide compares an APIService as it is with how it should be, both nil for none.
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

// managed tells how the server keeps an APIService, "" for not at all.
func managed(service *apiregistration.APIService) string {
	if service == nil {
		return ""
	}
	if how := service.Labels[managedLabel]; how == onStart || how == constantly {
		return how
	}
	return ""
}

// localCondition is the condition of all that this server itself serves.
func localCondition(now metav1.Time) apiregistration.APIServiceCondition {
	condition := apiregistration.NewLocalAvailableAPIServiceCondition()
	condition.LastTransitionTime = now
	return condition
}

// settled tells whether an APIService has the condition that it should have, if it stands for what is served here.
func settled(service *apiregistration.APIService) bool {
	if service.Spec.Service != nil {
		return true
	}
	after := service.DeepCopy()
	apiregistration.SetAPIServiceCondition(after, localCondition(metav1.Time{}))
	return equality.Semantic.DeepEqual(service.Status, after.Status)
}
