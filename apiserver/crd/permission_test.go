package crd

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apitypes "k8s.io/apimachinery/pkg/types"

	"quorate.dev/apiserver/resource"
)

// TestPermission decides on stored definitions whether an object may be created. The object was validated with the
// schema of the definition with the UID "first".
func TestPermission(t *testing.T) {
	t.Parallel()
	type conditions []apiextensions.CustomResourceDefinitionConditionType
	for name, test := range map[string]struct {
		uid        apitypes.UID
		deleted    bool
		conditions conditions // conditions that are True
		want       error
	}{
		"established":        {"first", false, conditions{apiextensions.Established}, nil},
		"not established":    {"first", false, nil, resource.ErrNotServed},
		"another definition": {"second", false, conditions{apiextensions.Established}, resource.ErrNotServed},
		"deleted":            {"first", true, conditions{apiextensions.Established}, resource.ErrTerminating},
		"terminating": {
			"first", false, conditions{apiextensions.Established, apiextensions.Terminating}, resource.ErrTerminating,
		},
	} {
		stored := &apiextensions.CustomResourceDefinition{
			ObjectMeta: metav1.ObjectMeta{Name: "widgets.example.com", UID: test.uid, ResourceVersion: "42"},
		}
		if test.deleted {
			stored.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
		}
		for _, kind := range test.conditions {
			condition := apiextensions.CustomResourceDefinitionCondition{Type: kind, Status: apiextensions.ConditionTrue}
			apiextensions.SetCRDCondition(stored, condition)
		}
		revision, err := (&permission{name: stored.Name, uid: "first"}).Check(stored)
		if !errors.Is(err, test.want) || err == nil && revision != 42 {
			t.Errorf("%s: got revision %d, %v; want %v", name, revision, err, test.want)
		}
	}
	if _, err := (&permission{}).Check(&corev1.Pod{}); err == nil {
		t.Error("a Pod permits custom resources")
	}
}
