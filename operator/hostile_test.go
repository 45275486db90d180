package operator

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/test/invariants"
	"quorate.dev/test/upstream"
)

// longestName is the longest valid name of a cluster: names of its Services, pods and labels are derived from it.
const longestName = "a2345678901234567890123456789012345678901234z"

// TestHostileNamespace runs two operators without leader election, with real etcd members, in a namespace with a quota
// and limits, whose pods, claims and Secrets are deleted at random. At the end the namespace is deleted.
func TestHostileNamespace(t *testing.T) {
	upstream.NeedsTime(t)
	e := startServer(t, "../config/crd", "hostile", "--controllers=namespace,resourcequota")
	e.install("../manifests/install.yaml")
	quota := e.limit()
	for range 2 {
		e.operate([]string{"--leader-elect=false"})
	}
	if err := e.create(longestName, v1alpha1.ApiServerClusterSpec{}); err != nil {
		t.Fatal(err)
	}
	e.await(longestName, "quota exceeded", func(c *v1alpha1.ApiServerCluster) bool {
		degraded := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.Degraded)
		return degraded != nil && degraded.Status == metav1.ConditionTrue &&
			strings.Contains(degraded.Message, "exceeded quota: small")
	})
	if err := e.client.Delete(t.Context(), quota); err != nil {
		t.Fatal(err)
	}
	e.await(longestName, "bootstrap once the quota is gone", settled(3, 3))

	rounds := 4
	if n, err := strconv.Atoi(os.Getenv("QUORATE_HOSTILE")); err == nil {
		rounds = n
	}
	random := rand.New(rand.NewSource(1))
	var history []invariants.Step
	acknowledged := int64(0)
	for range rounds {
		action := e.disturb(random)
		t.Log(action)
		acknowledged = max(acknowledged, e.put())
		e.await(longestName, "recovery after "+action, e.intact())
		history = append(history, invariants.Step{Action: action, After: e.observe(acknowledged)})
	}
	if err := errors.Join(invariants.Check(history)...); err != nil {
		t.Error(err)
	}
	e.deleteNamespace()
}

// limit creates a quota that no pod fits in, and limits that change pods when they are created.
func (e *environment) limit() *corev1.ResourceQuota {
	quota := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: "small"}, Spec: corev1.ResourceQuotaSpec{
			Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")},
		},
	}
	limits := &corev1.LimitRange{
		ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: "limits"}, Spec: corev1.LimitRangeSpec{
			Limits: []corev1.LimitRangeItem{{
				Type: corev1.LimitTypeContainer, Default: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")},
			}},
		},
	}
	for _, object := range []client.Object{quota, limits} {
		if err := e.client.Create(e.t.Context(), object); err != nil {
			e.t.Fatal(err)
		}
	}
	e.until("the quota is counted", func() bool {
		if err := e.client.Get(e.t.Context(), client.ObjectKeyFromObject(quota), quota); err != nil {
			e.t.Fatal(err)
		}
		return quota.Status.Hard != nil
	})
	return quota
}

// disturb deletes a member's pod, its claim or both, in any order, or a Secret.
func (e *environment) disturb(random *rand.Rand) string {
	members := e.get(longestName).Status.Members
	name := members[random.Intn(len(members))].Name
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: name}}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: name}}
	suffixes := []string{
		desired.ServingSecret, desired.ClientDomain, desired.PeerDomain, desired.EtcdClientDomain,
		desired.EtcdServerSecret, "etcd-peer",
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: longestName + "-" + suffixes[random.Intn(len(suffixes))]},
	}
	orders := [][]client.Object{{claim, pod}, {pod}, {pod, claim}, {claim}, {secret}, {secret, pod}}
	var names []string
	for _, object := range orders[random.Intn(len(orders))] {
		names = append(names, fmt.Sprintf("%T %s", object, object.GetName()))
		if err := e.client.Delete(e.t.Context(), object); client.IgnoreNotFound(err) != nil {
			e.t.Fatal(err)
		}
	}
	return "deletion of " + strings.Join(names, " and ")
}

// intact is like settled, but accepts clusters whose certificates are being replaced.
func (e *environment) intact() func(*v1alpha1.ApiServerCluster) bool {
	return func(c *v1alpha1.ApiServerCluster) bool {
		for _, member := range c.Status.Members {
			claim := &corev1.PersistentVolumeClaim{}
			if e.client.Get(e.t.Context(), client.ObjectKey{Namespace: e.namespace, Name: member.Name}, claim) != nil {
				return false
			}
		}
		return settled(3, 3)(c)
	}
}

// members returns the running members.
func (e *environment) members() map[string]*embed.Etcd {
	e.node.mutex.Lock()
	defer e.node.mutex.Unlock()
	running := map[string]*embed.Etcd{}
	for name, pod := range e.node.pods {
		if pod.member != nil && strings.HasPrefix(name, longestName) {
			running[name] = pod.member
		}
	}
	return running
}

// put writes through any member and returns the revision, or 0 if no member acknowledges the write.
func (e *environment) put() int64 {
	for _, member := range e.members() {
		ctx, cancel := context.WithTimeout(e.t.Context(), 2*time.Second)
		response, err := v3client.New(member.Server).Put(ctx, "/hostile", "value")
		cancel()
		if err == nil {
			return response.Header.Revision
		}
	}
	return 0
}

// observe returns the state of the cluster.
func (e *environment) observe(acknowledged int64) invariants.State {
	s := invariants.State{Voters: map[string]invariants.Voter{}, Acknowledged: acknowledged, Readable: -1}
	for name, member := range e.members() {
		ctx, cancel := context.WithTimeout(e.t.Context(), 10*time.Second)
		response, err := v3client.New(member.Server).Get(ctx, "/hostile")
		cancel()
		if err == nil && len(response.Kvs) > 0 {
			s.Readable = max(s.Readable, response.Kvs[0].ModRevision)
		} else if err == nil {
			s.Readable = max(s.Readable, 0)
		}
		s.Voters[name] = invariants.Voter{Healthy: true, Claim: true}
	}
	return s
}

// deleteNamespace deletes the namespace with everything in it.
func (e *environment) deleteNamespace() {
	e.t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: e.namespace}}
	if err := e.client.Delete(
		e.t.Context(), namespace, client.PropagationPolicy(metav1.DeletePropagationBackground),
	); err != nil {
		e.t.Fatal(err)
	}
	e.until("the end of the namespace", func() bool {
		err := e.client.Get(e.t.Context(), client.ObjectKeyFromObject(namespace), namespace)
		return apierrors.IsNotFound(err)
	})
}
