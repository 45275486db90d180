package status

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/operator/api/v1alpha1"
)

// companionsOf returns the last known state of the companions.
func companionsOf(cluster *v1alpha1.ApiServerCluster, in Input) []v1alpha1.CompanionStatus {
	if in.Companions != nil {
		return *in.Companions
	}
	return cluster.Status.Companions
}

// companions is true when every companion has the desired number of available pods.
func companions(cluster *v1alpha1.ApiServerCluster, in Input) metav1.Condition {
	all := companionsOf(cluster, in)
	var problems []string
	for _, companion := range all {
		if companion.Message != "" {
			problems = append(problems, companion.Name+": "+companion.Message)
		}
	}
	if len(problems) > 0 {
		return condition(v1alpha1.CompanionsAvailable, false, v1alpha1.ReasonCompanionsNotAvailable, "%s",
			limited(strings.Join(problems, "; ")))
	}
	return condition(v1alpha1.CompanionsAvailable, true, v1alpha1.ReasonAllAvailable,
		"%d of %d companions are available", len(all), len(all))
}
