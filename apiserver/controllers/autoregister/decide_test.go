package autoregister

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
)

// service returns an APIService with a value of managedLabel, "" for none, and a priority; nil for "none".
func service(how string, place int32) *apiregistration.APIService {
	if how == "none" {
		return nil
	}
	s := &apiregistration.APIService{Spec: apiregistration.APIServiceSpec{VersionPriority: place}}
	if how != "" {
		s.Labels = map[string]string{managedLabel: how}
	}
	return s
}

func TestDecide(t *testing.T) {
	fresh, synced := history{}, history{synced: true}
	before, both := history{atStart: true}, history{atStart: true, synced: true}
	for _, c := range []struct {
		about           string
		current, wanted string
		past            history
		want            action
	}{
		{"absent, not desired", "none", "none", fresh, nothing},
		{"built in, first start", "none", onStart, fresh, create},
		{"built in, deleted by a user", "none", onStart, synced, nothing},
		{"built in, different at the start", onStart, onStart, before, update},
		{"built in, edited by a user later", onStart, onStart, both, nothing},
		{"built in, just created by another replica", onStart, onStart, fresh, nothing},
		{"of a removed API", onStart, "none", before, remove},
		{"of an API that only another replica serves", onStart, "none", synced, nothing},
		{"unmanaged in place of a built-in one", "", onStart, before, nothing},
		{"invalid label", "no", onStart, before, nothing},
		{"unmanaged", "", "none", before, nothing},
		{"custom, new", "none", constantly, fresh, create},
		{"custom, deleted by a user", "none", constantly, synced, create},
		{"custom, edited by a user", constantly, constantly, synced, update},
		{"custom, definition deleted", constantly, "none", synced, remove},
		{"custom, definition deleted while no replica ran", constantly, "none", before, remove},
		{"unmanaged in place of a custom one", "", constantly, synced, nothing},
	} {
		if got := decide(service(c.current, 1), service(c.wanted, 2), c.past); got != c.want {
			t.Errorf("%s: %s, want %s", c.about, got, c.want)
		}
	}
	if got := decide(service(constantly, 2), service(constantly, 2), before); got != nothing {
		t.Errorf("equal: %s", got)
	}
}

func TestHasLocalCondition(t *testing.T) {
	local := localCondition(metav1.Time{})
	condition := func(
		status apiregistration.ConditionStatus, reason, message string,
	) []apiregistration.APIServiceCondition {
		return []apiregistration.APIServiceCondition{{
			Type: apiregistration.Available, Status: status, Reason: reason, Message: message,
		}}
	}
	for _, c := range []struct {
		about      string
		remote     bool
		conditions []apiregistration.APIServiceCondition
		want       bool
	}{
		{"no condition", false, nil, false},
		{"as it should be", false, condition("True", local.Reason, local.Message), true},
		{"not available", false, condition("False", local.Reason, local.Message), false},
		{"another reason", false, condition("True", "Passed", local.Message), false},
		{"of another server", true, nil, true},
	} {
		s := &apiregistration.APIService{Status: apiregistration.APIServiceStatus{Conditions: c.conditions}}
		if c.remote {
			s.Spec.Service = &apiregistration.ServiceReference{Name: "other"}
		}
		if got := hasLocalCondition(s); got != c.want {
			t.Errorf("%s: %t", c.about, got)
		}
	}
}
