package main

import (
	"fmt"
	"strings"
	"time"

	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	rbac "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"quorate.dev/test/measure/samples"
	"quorate.dev/test/scale/wire"
)

// Paths of resources.
const (
	namespacesPath = "/api/v1/namespaces"
	nodesPath      = "/api/v1/nodes"
	podsPath       = "/api/v1/pods"
	servicesPath   = "/api/v1/services"
	slicesPath     = "/apis/discovery.k8s.io/v1/endpointslices"
	rolesPath      = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
	bindingsPath   = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
)

const (
	podsNamespace     = "hollow"
	endpointsOfSlice  = 20
	imagesOfNode      = 20
	slowUser          = "slow-reader"
	mergePatch        = "application/merge-patch+json"
	inPodsNamespace   = namespacesPath + "/" + podsNamespace
	slicesInNamespace = "/apis/discovery.k8s.io/v1/namespaces/" + podsNamespace + "/endpointslices"
)

// create returns a request that creates an object.
func create(path string, object runtime.Object) wire.Request {
	return wire.Request{
		Method: "POST", Path: path, Accept: wire.Protobuf, ContentType: wire.Protobuf, Body: samples.Protobuf(object),
	}
}

// prerequisites returns requests for the namespace of the pods, and for permissions: kubelets and kube-proxies of a
// real cluster are different users, and agents on nodes list all pods.
func prerequisites() []wire.Request {
	role := &rbac.ClusterRole{
		TypeMeta:   meta.TypeMeta{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "ClusterRole"},
		ObjectMeta: meta.ObjectMeta{Name: "hollow"},
		Rules: []rbac.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list", "watch"}},
			{
				APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"},
				Verbs: []string{"list", "watch"},
			},
		},
	}
	binding := &rbac.ClusterRoleBinding{
		TypeMeta:   meta.TypeMeta{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "ClusterRoleBinding"},
		ObjectMeta: meta.ObjectMeta{Name: "hollow"},
		Subjects: []rbac.Subject{
			{APIGroup: "rbac.authorization.k8s.io", Kind: "Group", Name: "system:nodes"},
			{APIGroup: "rbac.authorization.k8s.io", Kind: "User", Name: slowUser},
		},
		RoleRef: rbac.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "ClusterRole", Name: "hollow"},
	}
	namespace := &core.Namespace{
		TypeMeta: meta.TypeMeta{APIVersion: "v1", Kind: "Namespace"}, ObjectMeta: meta.ObjectMeta{Name: podsNamespace},
	}
	return []wire.Request{create(namespacesPath, namespace), create(rolesPath, role), create(bindingsPath, binding)}
}

func nodeName(i int) string { return fmt.Sprintf("node-%05d", i) }

// createNode returns the registration of a node by its kubelet.
func createNode(i int) wire.Request {
	return create(nodesPath, &core.Node{
		TypeMeta: meta.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: meta.ObjectMeta{Name: nodeName(i), Labels: map[string]string{
			"kubernetes.io/hostname": nodeName(i), "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
			"topology.kubernetes.io/zone": fmt.Sprint("zone-", i%3),
		}},
		Status: nodeStatus(i, meta.Now()),
	})
}

// nodeStatus returns the status of a node that is ready and has images.
func nodeStatus(i int, now meta.Time) core.NodeStatus {
	resources := core.ResourceList{
		core.ResourceCPU: resource.MustParse("32"), core.ResourceMemory: resource.MustParse("128Gi"),
		core.ResourcePods: resource.MustParse("110"), core.ResourceEphemeralStorage: resource.MustParse("500Gi"),
	}
	status := core.NodeStatus{
		Capacity: resources, Allocatable: resources,
		Addresses: []core.NodeAddress{
			{Type: core.NodeInternalIP, Address: address(i)}, {Type: core.NodeHostName, Address: nodeName(i)},
		},
		NodeInfo: core.NodeSystemInfo{
			MachineID: fmt.Sprintf("%032x", i), SystemUUID: fmt.Sprintf("%032x", i), KernelVersion: "6.12.0",
			OSImage: "Linux", ContainerRuntimeVersion: "containerd://2.2.0", KubeletVersion: "v1.37.2",
			OperatingSystem: "linux", Architecture: "amd64",
		},
		Conditions: []core.NodeCondition{
			condition(core.NodeMemoryPressure, core.ConditionFalse, now),
			condition(core.NodeDiskPressure, core.ConditionFalse, now),
			condition(core.NodePIDPressure, core.ConditionFalse, now),
			condition(core.NodeReady, core.ConditionTrue, now),
		},
	}
	for image := range imagesOfNode {
		name := fmt.Sprintf("registry.example.com/shop/image-%d@sha256:%s", image, strings.Repeat("3f", 32))
		status.Images = append(status.Images, core.ContainerImage{Names: []string{name}, SizeBytes: 100 << 20})
	}
	return status
}

func condition(kind core.NodeConditionType, status core.ConditionStatus, now meta.Time) core.NodeCondition {
	return core.NodeCondition{
		Type: kind, Status: status, Reason: "Kubelet", LastHeartbeatTime: now, LastTransitionTime: now,
	}
}

func address(i int) string { return fmt.Sprintf("10.%d.%d.%d", 128+i>>16&0x7f, i>>8&0xff, i&0xff) }

// createPod returns a request for a pod that is bound to a node. It has no owner, which would not exist.
func createPod(name string, node int, now time.Time) wire.Request {
	pod := samples.Pod(name, node, nodeName(node))
	pod.OwnerReferences = nil
	pod.Annotations[wire.Sent] = fmt.Sprint(now.UnixNano())
	return create(inPodsNamespace+"/pods", pod)
}

func serviceName(i int) string { return fmt.Sprintf("service-%05d", i) }

// createService returns a request for a Service without a selector, so that no controller changes its EndpointSlice.
func createService(i int) wire.Request {
	return create(inPodsNamespace+"/services", &core.Service{
		TypeMeta:   meta.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: meta.ObjectMeta{Name: serviceName(i), Labels: map[string]string{"app": serviceName(i)}},
		Spec:       core.ServiceSpec{Ports: []core.ServicePort{{Name: "http", Port: 80}}},
	})
}

func createSlice(i int) wire.Request {
	ready, name, port := true, "http", int32(8080)
	slice := &discovery.EndpointSlice{
		TypeMeta: meta.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: meta.ObjectMeta{Name: serviceName(i), Labels: map[string]string{
			discovery.LabelServiceName: serviceName(i), discovery.LabelManagedBy: "test-scale",
		}},
		AddressType: discovery.AddressTypeIPv4,
		Ports:       []discovery.EndpointPort{{Name: &name, Port: &port}},
	}
	for endpoint := range endpointsOfSlice {
		slice.Endpoints = append(slice.Endpoints, discovery.Endpoint{
			Addresses:  []string{fmt.Sprintf("10.1.%d.%d", i%250, endpoint+1)},
			Conditions: discovery.EndpointConditions{Ready: &ready},
		})
	}
	return create(slicesInNamespace, slice)
}

// changeSlice returns a request that changes an EndpointSlice.
func changeSlice(i int, now time.Time) wire.Request {
	return wire.Request{
		Method: "PATCH", Path: slicesInNamespace + "/" + serviceName(i), Accept: wire.Protobuf, ContentType: mergePatch,
		Body: fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"%d"}},"endpoints":[{"addresses":["10.2.%d.%d"],`+
			`"conditions":{"ready":true}}]}`, wire.Sent, now.UnixNano(), now.Second(), 1+now.Nanosecond()%200),
	}
}
