package handlers

import (
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

// Selectors are limited, because each is matched against every object of a list and every event of a watch.
// kube-apiserver's only limit is the size of the request header, 1 MiB: 110,000 requirements take more than 1 ms for
// each object. 1,000 requirements, or 10,000 values, take about 30 µs; both are far more than Kubernetes' controllers
// and tools use.
const (
	maxRequirements   = 1000
	maxSelectorValues = 10_000
)

// checkLabelSelector rejects a selector that is too expensive to match.
func checkLabelSelector(selector labels.Selector) error {
	requirements, _ := selector.Requirements()
	values := 0
	for i := range requirements {
		values += len(requirements[i].ValuesUnsorted())
	}
	return checkSize("labelSelector", len(requirements), values)
}

// checkFieldSelector rejects a selector that is too expensive to match. A requirement of a field selector has only one
// value.
func checkFieldSelector(selector fields.Selector) error {
	return checkSize("fieldSelector", len(selector.Requirements()), 0)
}

func checkSize(parameter string, requirements, values int) error {
	switch {
	case requirements > maxRequirements:
		return apierrors.NewBadRequest(fmt.Sprintf(
			"%s has %d requirements, must have at most %d", parameter, requirements, maxRequirements))
	case values > maxSelectorValues:
		return apierrors.NewBadRequest(fmt.Sprintf(
			"%s has %d values, must have at most %d", parameter, values, maxSelectorValues))
	}
	return nil
}
