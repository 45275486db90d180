package reconcile

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/etcd"
	"quorate.dev/operator/observed"
)

// bootstrapped returns the state of a cluster with the voter demo-0 and the learner demo-1, which has not started.
func bootstrapped() *observed.State {
	object := &v1alpha1.ApiServerCluster{ObjectMeta: metav1.ObjectMeta{Name: "demo", Namespace: "ns"}}
	object.Status.Membership = &v1alpha1.Membership{Bootstrapped: true, NextOrdinal: 2, JoiningMember: "demo-1"}
	return &observed.State{Cluster: object, Image: "quorate:1", Members: []etcd.Member{
		{ID: 1, Name: "demo-0", PeerURL: "https://a:2380", Started: true, Healthy: true, Leader: true},
		{ID: 2, Name: "demo-1", PeerURL: "https://b:2380", Learner: true},
	}}
}
