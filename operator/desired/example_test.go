package desired_test

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
)

// ExamplePod shows the pod of a member that joins an existing cluster.
func ExamplePod() {
	cluster := &v1alpha1.ApiServerCluster{ObjectMeta: metav1.ObjectMeta{Name: "demo", Namespace: "default"}}
	pod, err := desired.Pod(cluster, "quorate:0.1.0", desired.Replica{
		Name: "demo-1", Member: true,
		InitialCluster: desired.InitialCluster{PeerURLs: map[string]string{
			"demo-0": desired.PeerURL(cluster, "demo-0"),
			"demo-1": desired.PeerURL(cluster, "demo-1"),
		}},
	}, "certificate-hash")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(pod.Name, pod.Spec.Hostname+"."+pod.Spec.Subdomain)
	for _, arg := range pod.Spec.Containers[0].Args {
		if strings.HasPrefix(arg, "--etcd-initial-cluster") {
			fmt.Println(arg)
		}
	}
	// Output:
	// demo-1 demo-1.demo-members
	// --etcd-initial-cluster=demo-0=https://demo-0.demo-members.default.svc:2380,demo-1=https://demo-1.demo-members.default.svc:2380
	// --etcd-initial-cluster-state=existing
	// --etcd-initial-cluster-token=default-demo-
}

// ExampleHashesOf shows that a changed flag of the API server restarts all replicas, and a changed flag of etcd only
// members.
func ExampleHashesOf() {
	cluster := &v1alpha1.ApiServerCluster{ObjectMeta: metav1.ObjectMeta{Name: "demo", Namespace: "default"}}
	before := desired.HashesOf(cluster, "quorate:0.1.0", desired.Configuration{})
	cluster.Spec.ExtraArgs = map[string]string{"etcd-snapshot-count": "20000"}
	after := desired.HashesOf(cluster, "quorate:0.1.0", desired.Configuration{})
	fmt.Println("server:", before.Server == after.Server)
	fmt.Println("etcd:", before.Etcd == after.Etcd)
	// Output:
	// server: true
	// etcd: false
}
