package membership_test

import (
	"fmt"

	"quorate.dev/operator/membership"
)

// A cluster of one voter is scaled to three: the plan continues from applied intents until etcd has to be observed
// again.
func ExamplePlan() {
	observation := membership.Observation{
		Cluster: "demo", Replicas: 3, Voters: 3, HasQuorum: true,
		Intent:  membership.Intent{Bootstrapped: true, NextOrdinal: 1},
		Members: []membership.Member{{ID: 1, Name: "demo-0", Started: true, Healthy: true, Leader: true}},
		Pods:    []membership.Pod{{Name: "demo-0", Member: true, Ready: true}},
		Claims:  []membership.Claim{{Name: "demo-0"}},
	}
	for certain := true; certain; {
		action := membership.Plan(observation)
		fmt.Println(action.Describe())
		observation, certain = observation.Apply(action)
	}
	// Output:
	// Adding member demo-1: etcd has 1 of 3 voters
	// Added learner demo-1; waiting for it to catch up
}
