package controlplane

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"testing"
	"time"

	coordination "k8s.io/api/coordination/v1"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
)

const (
	leases        = "kube-node-lease"
	leaseDuration = 40 * time.Second
	leaseRenewal  = 10 * time.Second
)

// node sends the requests of a kubelet: it registers, renews its lease, and reports the pods bound to it as running,
// succeeded or deleted.
type node struct {
	name   string
	client kubernetes.Interface
	pods   cache.SharedIndexInformer
	queue  workqueue.TypedRateLimitingInterface[string]
}

// startNode starts a node with the rights of its name.
func (c *cluster) startNode(t *testing.T, name string, taints ...core.Taint) {
	t.Helper()
	config, err := c.pki.As(c.config, "system:node:"+name, "system:nodes")
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	client := kubernetes.NewForConfigOrDie(config)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	t.Cleanup(cancel)
	n := &node{
		name: name, client: client,
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]()),
	}
	if err := n.register(ctx, taints); err != nil {
		t.Fatal(err)
	}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTweakListOptions(func(
		o *meta.ListOptions,
	) {
		o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", name).String()
	}))
	n.pods = factory.Core().V1().Pods().Informer()
	_, err = n.pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    n.enqueue,
		UpdateFunc: func(_, changed any) { n.enqueue(changed) },
	})
	if err != nil {
		t.Fatal(err)
	}
	factory.Start(ctx.Done())
	go wait.UntilWithContext(ctx, func(ctx context.Context) {
		if err := n.renew(ctx); err != nil && ctx.Err() == nil {
			t.Errorf("lease of %s: %v", name, err)
		}
	}, leaseRenewal)
	go n.work(ctx)
	t.Cleanup(n.queue.ShutDown)
}

func (n *node) register(ctx context.Context, taints []core.Taint) error {
	capacity := core.ResourceList{
		core.ResourceCPU: resource.MustParse("8"), core.ResourceMemory: resource.MustParse("16Gi"),
		core.ResourcePods: resource.MustParse("110"),
	}
	registered, err := n.client.CoreV1().Nodes().Create(ctx, &core.Node{
		ObjectMeta: meta.ObjectMeta{
			Name: n.name, Labels: map[string]string{core.LabelHostname: n.name, core.LabelOSStable: "linux"},
		},
		Spec: core.NodeSpec{Taints: taints},
	}, meta.CreateOptions{})
	if err != nil {
		return err
	}
	now := meta.Now()
	registered.Status = core.NodeStatus{
		Capacity: capacity, Allocatable: capacity,
		Conditions: []core.NodeCondition{{
			Type: core.NodeReady, Status: core.ConditionTrue, Reason: "KubeletReady",
			LastHeartbeatTime: now, LastTransitionTime: now,
		}},
		Addresses: []core.NodeAddress{
			{Type: core.NodeInternalIP, Address: "127.0.0.1"}, {Type: core.NodeHostName, Address: n.name},
		},
	}
	if _, err = n.client.CoreV1().Nodes().UpdateStatus(ctx, registered, meta.UpdateOptions{}); err != nil {
		return err
	}
	_, err = n.client.CoordinationV1().Leases(leases).Create(ctx, &coordination.Lease{
		ObjectMeta: meta.ObjectMeta{Name: n.name},
		Spec: coordination.LeaseSpec{
			HolderIdentity: &n.name, LeaseDurationSeconds: ptr.To(int32(leaseDuration.Seconds())),
			RenewTime: ptr.To(meta.NowMicro()),
		},
	}, meta.CreateOptions{})
	return err
}

func (n *node) renew(ctx context.Context) error {
	lease, err := n.client.CoordinationV1().Leases(leases).Get(ctx, n.name, meta.GetOptions{})
	if err != nil {
		return err
	}
	lease.Spec.RenewTime = ptr.To(meta.NowMicro())
	_, err = n.client.CoordinationV1().Leases(leases).Update(ctx, lease, meta.UpdateOptions{})
	return err
}

func (n *node) enqueue(pod any) {
	if key, err := cache.MetaNamespaceKeyFunc(pod); err == nil {
		n.queue.Add(key)
	}
}

// work processes the queue until it is shut down. Failures, such as conflicts, are retried.
func (n *node) work(ctx context.Context) {
	for {
		key, ended := n.queue.Get()
		if ended {
			return
		}
		if err := n.sync(ctx, key); err != nil && !apierrors.IsNotFound(err) {
			n.queue.AddRateLimited(key)
		} else {
			n.queue.Forget(key)
		}
		n.queue.Done(key)
	}
}

func (n *node) sync(ctx context.Context, key string) error {
	found, exists, err := n.pods.GetStore().GetByKey(key)
	if err != nil || !exists {
		return err
	}
	pod, ok := found.(*core.Pod)
	if !ok {
		return errors.New("not a pod")
	}
	pods := n.client.CoreV1().Pods(pod.Namespace)
	if pod.DeletionTimestamp != nil {
		return pods.Delete(ctx, pod.Name, meta.DeleteOptions{
			GracePeriodSeconds: ptr.To[int64](0), Preconditions: meta.NewUIDPreconditions(string(pod.UID)),
		})
	}
	if pod.Status.Phase != core.PodPending {
		return nil
	}
	running := pod.DeepCopy()
	running.Status = status(pod)
	_, err = pods.UpdateStatus(ctx, running, meta.UpdateOptions{})
	return err
}

// status returns the status of a running pod or, if its restart policy allows, of a succeeded one.
func status(pod *core.Pod) core.PodStatus {
	now := meta.Now()
	s := *pod.Status.DeepCopy()
	s.Phase, s.StartTime, s.HostIP = core.PodRunning, &now, "127.0.0.1"
	hash := fnv.New32()
	hash.Write([]byte(pod.UID))
	s.PodIP = fmt.Sprintf("10.88.%d.%d", hash.Sum32()>>8&0xff, hash.Sum32()&0xff)
	s.PodIPs = []core.PodIP{{IP: s.PodIP}}
	state, isReady, reason :=
		core.ContainerState{Running: &core.ContainerStateRunning{StartedAt: now}}, core.ConditionTrue, ""
	if pod.Spec.RestartPolicy != core.RestartPolicyAlways {
		s.Phase, isReady, reason = core.PodSucceeded, core.ConditionFalse, "PodCompleted"
		state = core.ContainerState{
			Terminated: &core.ContainerStateTerminated{Reason: "Completed", StartedAt: now, FinishedAt: now},
		}
	}
	for _, c := range pod.Spec.Containers {
		s.ContainerStatuses = append(s.ContainerStatuses, core.ContainerStatus{
			Name: c.Name, Image: c.Image, State: state, Ready: isReady == core.ConditionTrue, Started: ptr.To(true),
		})
	}
	for _, kind := range []core.PodConditionType{core.PodInitialized, core.ContainersReady, core.PodReady} {
		c := core.PodCondition{Type: kind, Status: isReady, Reason: reason, LastTransitionTime: now}
		if kind == core.PodInitialized {
			c.Status = core.ConditionTrue
		}
		s.Conditions = append(s.Conditions, c)
	}
	return s
}
