package members

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/etcd"
	"quorate.dev/operator/membership"
	"quorate.dev/operator/observed"
	"quorate.dev/operator/reconcile/owned/ownedtest"
)

// TestLostResponseToDefragmentation loses the response to the status patch. The operator has to send the request to
// etcd afterwards, and must not take the earlier result for the result of that request.
func TestLostResponseToDefragmentation(t *testing.T) {
	lost := errors.New("connection lost")
	host := ownedtest.NewHost(t, ownedtest.NewCluster())
	objects := host.Objects
	objects.Client = interceptor.NewClient(host.API, interceptor.Funcs{SubResourcePatch: func(
		ctx context.Context, w client.Client, name string, o client.Object, p client.Patch,
		options ...client.SubResourcePatchOption,
	) error {
		return errors.Join(w.SubResource(name).Patch(ctx, o, p, options...), lost)
	}})
	pool := etcd.NewPool()
	pool.Defragment("ns/demo", etcd.Endpoint{Name: "demo-0"}, 1, "0", etcd.Credentials{}) // fails immediately
	err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, time.Minute, true, func(
		context.Context,
	) (bool, error) {
		return pool.Defragmentation("ns/demo").Finished, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	read := func() *executor {
		t.Helper()
		return Steps{Objects: objects, Pool: pool}.newExecutor(Input{
			Observation: Observation{State: &observed.State{Cluster: host.Cluster()}}, Now: now,
		})
	}
	start := membership.Action{Kind: membership.StartDefragmentation, Name: "demo-0", ID: 1}
	if err := read().writeDefragmentation(t.Context(), start); !errors.Is(err, lost) {
		t.Fatal(err)
	}
	if next := read().defragmentation(); next.Member != "demo-0" || next.Finished || next.Running {
		t.Errorf("%+v", next)
	}
}

// TestPodsOfHeldUpgrade checks that members get the former image while an upgrade is held.
func TestPodsOfHeldUpgrade(t *testing.T) {
	host := ownedtest.NewHost(t)
	state := bootstrapped()
	state.Cluster.UID = "demo"
	x := Steps{Objects: host.Objects}.newExecutor(Input{Observation: Observation{State: state}, Now: now})
	x.formerImage = "quorate:0"
	if err := x.createPod(t.Context(), membership.Action{Kind: membership.CreatePod, Name: "demo-1"}); err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{}
	host.Read("demo-1", pod)
	for _, c := range pod.Spec.Containers {
		if c.Name == desired.ServerContainer && c.Image != "quorate:0" {
			t.Errorf("the pod is created with image %s", c.Image)
		}
	}
}

// TestHeldUpgradeTakesNoAction checks that neither the rollout nor the restart of unready pods gives the new image to
// the last member with the former one, which is unreachable.
func TestHeldUpgradeTakesNoAction(t *testing.T) {
	h := ownedtest.NewHost(t, ownedtest.NewCluster(ownedtest.Bootstrapped, func(c *v1alpha1.ApiServerCluster) {
		c.Status.Membership.NextOrdinal = 3
		c.Status.Upgrade = &v1alpha1.UpgradeStatus{Image: "quorate:2", FormerImage: "quorate:1", BackupName: "b"}
		c.Spec.Maintenance.UpgradeBackup.Destination = &v1alpha1.BackupDestination{}
	}), &v1alpha1.ApiServerBackup{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "b"}, Spec: v1alpha1.ApiServerBackupSpec{ClusterName: "demo"},
	})
	state := &observed.State{Image: "quorate:2", Cluster: h.Cluster()}
	for i, image := range []string{"quorate:2", "quorate:1", "quorate:1"} {
		name := fmt.Sprintf("demo-%d", i)
		pod := corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{desired.RoleLabel: desired.RoleMember}},
		}
		pod.Spec.Containers = []corev1.Container{{Name: desired.ServerContainer, Image: image}}
		state.Pods = append(state.Pods, pod)
		state.Members = append(state.Members, etcd.Member{
			ID: uint64(i + 1), Name: name, Started: true, Healthy: i < 2, Leader: i == 0,
			Version: []string{"3.7.3", "3.6.4", ""}[i],
		})
		state.Claims = append(state.Claims, corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	steps := Steps{Objects: h.Objects, Pool: etcd.NewPool(), Clock: clocktesting.NewFakeClock(now)}
	result, err := steps.TakeActions(t.Context(), Input{Observation: Observation{State: state, At: now}, Now: now})
	h.Must(err)
	if a := result.Action; a.Kind != membership.Wait || !strings.HasPrefix(a.Reason, "Waiting for backup") {
		t.Errorf("%s %s: %s", a.Kind, a.Name, a.Reason)
	}
}
