package status

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/operator/api/v1alpha1"
)

// apiServicesOf returns the last known state of the APIServices that the operator manages.
func apiServicesOf(cluster *v1alpha1.ApiServerCluster, in Input) []v1alpha1.APIServiceStatus {
	if in.APIServices != nil {
		return *in.APIServices
	}
	return cluster.Status.APIServices
}

// apiServices is true when all APIServices that the operator manages are available.
func apiServices(cluster *v1alpha1.ApiServerCluster, in Input) metav1.Condition {
	all := apiServicesOf(cluster, in)
	var problems []string
	reason := ""
	for _, service := range all {
		if service.Available == metav1.ConditionTrue {
			continue
		}
		if reason == "" {
			reason = service.Reason
		}
		problems = append(problems, strings.TrimSuffix(service.Name+": "+service.Message, ": "))
	}
	if len(problems) > 0 {
		return condition(v1alpha1.APIServicesAvailable, false, reason, "%d of %d APIServices are not available: %s",
			len(problems), len(all), limited(strings.Join(problems, "; ")))
	}
	return condition(v1alpha1.APIServicesAvailable, true, v1alpha1.ReasonAllAvailable,
		"%d of %d APIServices are available", len(all), len(all))
}

// limited truncates a message that lists an unlimited number of problems.
func limited(message string) string {
	const limit = 4000
	if len(message) > limit {
		return strings.ToValidUTF8(message[:limit], "") + "..."
	}
	return message
}
