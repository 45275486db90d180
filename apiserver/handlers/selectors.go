package handlers

import (
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

// What a selector may have. kube-apiserver takes any number, up to the megabyte that a request's head may have: 110,000
// requirements then take more than a millisecond for each object, and for each event of a watch. A thousand take some 30
// microseconds, as do ten thousand values, and are many times what Kubernetes' own controllers and tools ask for.
const (
	maxRequirements   = 1000
	maxSelectorValues = 10_000
)

// checkLabelSelector refuses a selector that takes too long for each object.
func checkLabelSelector(selector labels.Selector) error {
	requirements, _ := selector.Requirements()
	values := 0
	for i := range requirements {
		values += len(requirements[i].ValuesUnsorted())
	}
	return checkSize("labelSelector", len(requirements), values)
}

// checkFieldSelector refuses a selector that takes too long for each object. Each of its requirements has one value.
func checkFieldSelector(selector fields.Selector) error {
	return checkSize("fieldSelector", len(selector.Requirements()), 0)
}

func checkSize(parameter string, requirements, values int) error {
	switch {
	case requirements > maxRequirements:
		return apierrors.NewBadRequest(fmt.Sprintf("%s has %d requirements, must have at most %d", parameter, requirements, maxRequirements))
	case values > maxSelectorValues:
		return apierrors.NewBadRequest(fmt.Sprintf("%s has %d values, must have at most %d", parameter, values, maxSelectorValues))
	}
	return nil
}
