package node

import (
	"bufio"
	"context"
	"os"
	"runtime"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// register creates the Node unless it exists, and updates its status.
func (a *Agent) register(ctx context.Context) error {
	nodes := a.options.Client.CoreV1().Nodes()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: a.options.Name, Labels: map[string]string{
		corev1.LabelHostname: a.options.Name, corev1.LabelOSStable: runtime.GOOS, corev1.LabelArchStable: runtime.GOARCH,
		corev1.LabelTopologyZone: "sandbox",
	}}}
	current, err := nodes.Create(ctx, node, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		current, err = nodes.Get(ctx, a.options.Name, metav1.GetOptions{})
	}
	if err != nil {
		return err
	}
	current.Status = a.nodeStatus(metav1.NewTime(a.options.Clock.Now()))
	_, err = nodes.UpdateStatus(ctx, current, metav1.UpdateOptions{})
	return err
}

func (a *Agent) nodeStatus(now metav1.Time) corev1.NodeStatus {
	capacity := corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewQuantity(int64(runtime.NumCPU()), resource.DecimalSI),
		corev1.ResourceMemory: memory(),
		corev1.ResourcePods:   resource.MustParse("110"),
	}
	return corev1.NodeStatus{
		Capacity: capacity, Allocatable: capacity,
		Conditions: []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "SandboxReady",
			Message: "The sandbox runs Pods as local processes", LastHeartbeatTime: now, LastTransitionTime: now,
		}},
		Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: a.options.Network.Node().String()},
			{Type: corev1.NodeHostName, Address: a.options.Name},
		},
		DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: int32(a.port)}},
		NodeInfo: corev1.NodeSystemInfo{
			OperatingSystem: runtime.GOOS, Architecture: runtime.GOARCH, ContainerRuntimeVersion: "process://1",
		},
	}
}

// memory returns the memory of the machine, or zero if the size is unknown.
func memory() resource.Quantity {
	file, err := os.Open("/proc/meminfo")
	if err != nil {
		return resource.Quantity{}
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), "MemTotal:"); ok {
			size := strings.TrimSuffix(strings.TrimSpace(value), " kB")
			if quantity, err := resource.ParseQuantity(size + "Ki"); err == nil {
				return quantity
			}
		}
	}
	return resource.Quantity{}
}
