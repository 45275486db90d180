package companions

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/observed"
	"quorate.dev/operator/pki"
	"quorate.dev/operator/reconcile/credentials"
	"quorate.dev/operator/reconcile/owned/ownedtest"
)

// fixture is a cluster with companions on a host that also plays the API of the cluster.
type fixture struct {
	*ownedtest.Host
	t           *testing.T
	credentials credentials.Set
	pods        []corev1.Pod
}

func newFixture(t *testing.T, changes ...func(*v1alpha1.ApiServerCluster)) *fixture {
	t.Helper()
	authority, err := pki.NewAuthority("demo", 365*24*time.Hour, ownedtest.Now())
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := authority.Issue(pki.Leaf{CommonName: "demo", Client: true, Lifetime: time.Hour}, ownedtest.Now())
	if err != nil {
		t.Fatal(err)
	}
	key, err := pki.NewServiceAccountKey()
	if err != nil {
		t.Fatal(err)
	}
	return &fixture{
		t: t, Host: ownedtest.NewHost(t, ownedtest.NewCluster(changes...)),
		credentials: credentials.Set{
			Bundles: map[string]pki.Bundle{desired.ClientDomain: {Signer: authority}},
			Trusted: authority.Certificate, ServerName: "demo.ns.svc",
			Leaves: map[string]pki.Pair{desired.AdminSecret: leaf, desired.ServingSecret: leaf}, Keys: pki.Keys{Signer: key},
		},
	}
}

// controllerManager is a change of a cluster: it runs a controller manager.
func controllerManager(c *v1alpha1.ApiServerCluster) {
	c.Spec.Companions.KubeControllerManager = &v1alpha1.Companion{Image: "controller-manager:1"}
}

// announced is a change of a cluster: its status lists the controller manager.
func announced(c *v1alpha1.ApiServerCluster) {
	c.Status.Companions = []v1alpha1.CompanionStatus{{Name: desired.ControllerManager}}
}

// start makes a replica ready.
func (f *fixture) start() {
	f.pods = []corev1.Pod{{
		ObjectMeta: metav1.ObjectMeta{Name: "demo-0"},
		Status: corev1.PodStatus{
			PodIP: "192.0.2.1", Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		},
	}}
}

// step executes Ensure and stores the statuses, as the end of a reconciliation does.
func (f *fixture) step() (Result, error) {
	steps := Steps{Objects: f.Objects, Connect: func(*rest.Config) (client.Client, error) { return f.Client, nil }}
	result, err := steps.Ensure(f.t.Context(), Input{
		State: &observed.State{Cluster: f.Cluster(), Pods: f.pods}, Credentials: f.credentials, Now: ownedtest.Now(),
		Service: &corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: "10.0.0.1"}}, Endpoint: "https://demo.ns.svc:6443",
	})
	if err == nil {
		ownedtest.Change(f.Host, "demo", &v1alpha1.ApiServerCluster{}, func(c *v1alpha1.ApiServerCluster) {
			c.Status.Companions = *result.Statuses
		})
	}
	return result, err
}

// message executes a step and returns the message about the controller manager.
func (f *fixture) message() string {
	f.t.Helper()
	result, err := f.step()
	f.Must(err)
	if len(*result.Statuses) == 0 {
		return "none"
	}
	return (*result.Statuses)[0].Message
}

// TestLifeOfACompanion follows a controller manager from its announcement to its removal.
func TestLifeOfACompanion(t *testing.T) {
	f := newFixture(t, controllerManager)
	expect := func(want string) {
		t.Helper()
		if got := f.message(); got != want {
			t.Errorf("message %q, want %q", got, want)
		}
	}
	expect("it is not created yet")
	if len(f.Names()) != 0 {
		t.Errorf("created before it is in the status: %v", f.Names())
	}
	expect("it is created once an API server is ready")
	f.start()
	expect("0 of 2 pods are available")
	if events := f.Events(); !slices.Equal(
		events, []string{"Normal SuccessfulCreate: Created Deployment demo-kube-controller-manager"},
	) {
		t.Errorf("events %q", events)
	}
	outdated := func() []string {
		t.Helper()
		names, err := Outdated(t.Context(), f.Reader, f.Cluster(), f.credentials.Companions())
		f.Must(err)
		return names
	}
	if got := outdated(); len(got) != 1 {
		t.Errorf("a Deployment that has not rolled out is current: %v", got)
	}
	f.crash("unknown flag: --x")
	expect("0 of 2 pods are available: quota exceeded: demo-kube-controller-manager-new: CrashLoopBackOff unknown flag: " +
		"--x")
	f.rollOut()
	expect("")
	if got := outdated(); len(got) != 0 {
		t.Errorf("outdated %v", got)
	}
	ownedtest.Change(f.Host, "demo", &v1alpha1.ApiServerCluster{}, func(c *v1alpha1.ApiServerCluster) {
		c.Spec.Companions.KubeControllerManager.Image = "controller-manager:2"
	})
	expect("")
	if events := f.Events(); len(events) != 1 || !strings.Contains(events[0], "SuccessfulUpdate") {
		t.Errorf("events %q", events)
	}
	ownedtest.Change(f.Host, "demo", &v1alpha1.ApiServerCluster{}, func(c *v1alpha1.ApiServerCluster) {
		c.Spec.Companions.KubeControllerManager = nil
	})
	ready := f.pods
	f.pods = nil
	expect("it is being removed") // the objects inside the cluster cannot be deleted
	f.pods = slices.Clone(ready)
	f.pods[0].Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		Sources: []corev1.VolumeProjection{{
			Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "demo-kubelet-client"}},
		}},
	}}}}
	expect("it is being removed") // a replica still mounts the certificate for kubelets
	f.pods = ready
	expect("none")
	if left := f.Names(); len(left) != 1 || left[0] != "Pod demo-kube-controller-manager-new" {
		t.Errorf("left %v", left)
	}
}

// crash creates a pod of the controller manager whose container exits with a message, and a Deployment that cannot
// create another one.
func (f *fixture) crash(message string) {
	f.CreateAll(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "demo-kube-controller-manager-new",
			Labels: desired.CompanionSelector(f.Cluster(), desired.ControllerManager),
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: desired.ControllerManager}}},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
			Name: desired.ControllerManager, State: corev1.ContainerState{
				Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"},
			},
			LastTerminationState: corev1.ContainerState{
				Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Message: message},
			},
		}}},
	})
	ownedtest.Change(f.Host, "demo-kube-controller-manager", &appsv1.Deployment{}, func(d *appsv1.Deployment) {
		d.Status.Conditions = []appsv1.DeploymentCondition{{
			Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue, Message: "quota exceeded",
		}}
	})
}

// rollOut reports all pods of the controller manager available.
func (f *fixture) rollOut() {
	ownedtest.Change(f.Host, "demo-kube-controller-manager", &appsv1.Deployment{}, func(d *appsv1.Deployment) {
		d.Status = appsv1.DeploymentStatus{
			ObservedGeneration: d.Generation, Replicas: 2, UpdatedReplicas: 2, AvailableReplicas: 2,
		}
	})
}

// TestNextLook checks that the pods of an unavailable companion, which are not watched, are read again for a while.
func TestNextLook(t *testing.T) {
	cluster, now := ownedtest.NewCluster(), ownedtest.Now()
	if at := nextLook(cluster, now); !at.Equal(now.Add(companionInterval)) {
		t.Errorf("without a condition: %s", at)
	}
	cluster.Status.Conditions = []metav1.Condition{{
		Type: v1alpha1.CompanionsAvailable, LastTransitionTime: metav1.NewTime(now.Add(-companionPeriod)),
	}}
	if at := nextLook(cluster, now); !at.IsZero() {
		t.Errorf("after a while: %s", at)
	}
}

// TestUnreachableCluster checks that a companion keeps its status with the error if the cluster cannot be reached.
func TestUnreachableCluster(t *testing.T) {
	f := newFixture(t, controllerManager, announced)
	f.start()
	steps := Steps{
		Objects: f.Objects, Connect: func(*rest.Config) (client.Client, error) { return nil, ownedtest.ErrUnavailable },
	}
	in := Input{State: &observed.State{Cluster: f.Cluster(), Pods: f.pods}, Credentials: f.credentials}
	result, err := steps.Ensure(t.Context(), in)
	if !errors.Is(err, ownedtest.ErrUnavailable) ||
		!strings.Contains((*result.Statuses)[0].Message, ownedtest.ErrUnavailable.Error()) {
		t.Errorf("%+v, %v", result, err)
	}
	in.State.Cluster.Spec.Companions.KubeControllerManager = nil
	if _, err := steps.Ensure(t.Context(), in); !errors.Is(err, ownedtest.ErrUnavailable) {
		t.Errorf("removal: %v", err)
	}
}

// TestFailedRequests lets each request fail with which companions are created, and with which they are removed.
func TestFailedRequests(t *testing.T) {
	var f *fixture
	step := func(*ownedtest.Host) error {
		_, err := f.step()
		return err
	}
	ownedtest.FailEach(t, func(t *testing.T) *ownedtest.Host {
		f = newFixture(t, controllerManager, announced)
		f.start()
		return f.Host
	}, step)
	ownedtest.FailEach(t, func(t *testing.T) *ownedtest.Host {
		f = newFixture(t, controllerManager, announced)
		f.start()
		f.Must(step(f.Host))
		ownedtest.Change(f.Host, "demo", &v1alpha1.ApiServerCluster{}, func(c *v1alpha1.ApiServerCluster) {
			c.Spec.Companions.KubeControllerManager = nil
		})
		return f.Host
	}, step)
	f.Refuse = func(string) error { return ownedtest.ErrUnavailable }
	if _, err := Outdated(
		t.Context(), f.Reader, ownedtest.NewCluster(controllerManager), f.credentials.Companions(),
	); !errors.Is(err, ownedtest.ErrUnavailable) {
		t.Errorf("an unreadable Deployment: %v", err)
	}
}
