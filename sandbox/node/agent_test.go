package node

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"quorate.dev/sandbox/addresses"
	"quorate.dev/sandbox/endpoints"
	"quorate.dev/sandbox/names"
	"quorate.dev/sandbox/process"
)

const network addresses.Network = 77

// TestMain makes the test binary the program that Pods run. The first argument is the command.
func TestMain(m *testing.M) {
	if os.Getenv("NODE_TEST_CHILD") == "" {
		os.Exit(m.Run())
	}
	switch os.Args[1] {
	case "exit":
		for _, file := range os.Args[3:] { // files for the termination message
			if err := os.WriteFile(file, []byte("message"), 0o600); err != nil {
				panic(err)
			}
		}
		os.Exit(int(os.Args[2][0] - '0'))
	case "serve":
		serve(os.Args[2], os.Args[3:])
	}
}

// serve serves the content of a file, its arguments and its environment until SIGTERM.
func serve(address string, args []string) {
	terminate := make(chan os.Signal, 1)
	signal.Notify(terminate, syscall.SIGTERM)
	healthy := true
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		json.NewEncoder(w).Encode(map[string]any{"args": args, "environment": os.Environ()})
	})
	http.HandleFunc("/file", func(w http.ResponseWriter, r *http.Request) {
		http.ServeFile(w, r, r.URL.Query().Get("path"))
	})
	http.HandleFunc("/health", func(w http.ResponseWriter, r *http.Request) {
		if !healthy {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	http.HandleFunc("/say", func(_ http.ResponseWriter, r *http.Request) { fmt.Println(r.URL.Query().Get("text")) })
	http.HandleFunc("/break", func(http.ResponseWriter, *http.Request) { healthy = false })
	go func() { fmt.Println(http.ListenAndServe(address, nil)); os.Exit(1) }()
	<-terminate
}

// testAgent is an agent with a management API server.
type testAgent struct {
	*testing.T
	client    kubernetes.Interface
	directory string
	table     *endpoints.Table
	kubelet   Kubelet
	stop      func()
}

func start(t *testing.T) *testAgent {
	w := &testAgent{T: t, directory: t.TempDir()}
	w.client, w.kubelet = startServer(t)
	w.run()
	return w
}

// run starts an agent; testAgent.stop stops it.
func (w *testAgent) run() {
	w.table = endpoints.NewTable()
	spawner := process.NewSpawner()
	agent := New(Options{
		Client: w.client, Name: "sandbox", Directory: w.directory, Network: network, Executable: "/proc/self/exe",
		// Without GOCOVERDIR, a binary with coverage writes a warning to the log of the pod.
		Environment: []string{"NODE_TEST_CHILD=1", "GOCOVERDIR=" + w.TempDir()}, Table: w.table,
		Spawner: spawner, Clock: clock.RealClock{}, Kubelet: w.kubelet, Logger: testr.New(w.T),
	})
	// w.Context() ends before cleanups run, and the agent must end before the API server.
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.Context()))
	ended := make(chan error, 1)
	go func() { ended <- agent.Run(ctx) }()
	w.stop = func() {
		cancel()
		if err := <-ended; err != nil {
			w.Errorf("agent: %v", err)
		}
		spawner.Close()
		w.stop = func() {}
	}
	w.Cleanup(func() { w.stop() })
}

func (w *testAgent) await(what string, holds func() bool) {
	w.Helper()
	err := wait.PollUntilContextTimeout(w.Context(), 5*time.Millisecond, 30*time.Second, true, func(
		context.Context,
	) (bool, error) {
		return holds(), nil
	})
	if err != nil {
		pods, _ := w.client.CoreV1().Pods("default").List(w.Context(), metav1.ListOptions{})
		content, _ := json.MarshalIndent(pods.Items, "", " ")
		w.Fatalf("timed out waiting for: %s\n%s", what, content)
	}
}

func (w *testAgent) pod(name string) *corev1.Pod {
	pod, err := w.client.CoreV1().Pods("default").Get(w.Context(), name, metav1.GetOptions{})
	if err != nil {
		return &corev1.Pod{}
	}
	return pod
}

func (w *testAgent) awaitReady(name string) *corev1.Pod {
	w.Helper()
	var pod *corev1.Pod
	w.await(name+" is ready", func() bool {
		pod = w.pod(name)
		return conditionOf(pod, corev1.PodReady) == corev1.ConditionTrue
	})
	return pod
}

func conditionOf(pod *corev1.Pod, kind corev1.PodConditionType) corev1.ConditionStatus {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == kind {
			return condition.Status
		}
	}
	return ""
}

func (w *testAgent) create(pod *corev1.Pod) {
	w.Helper()
	if _, err := w.client.CoreV1().Pods("default").Create(w.Context(), pod, metav1.CreateOptions{}); err != nil {
		w.Fatal(err)
	}
}

// get sends a request to the program of a Pod.
func (w *testAgent) get(pod *corev1.Pod, path string) string {
	w.Helper()
	response, err := http.Get("http://" + pod.Status.PodIP + ":8080" + path)
	if err != nil {
		w.Fatal(err)
	}
	defer response.Body.Close()
	var body strings.Builder
	if err := response.Write(&body); err != nil {
		w.Fatal(err)
	}
	return body.String()
}

func server(name string) *corev1.Pod {
	probe := &corev1.Probe{
		ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/health", Port: intstr.FromString("http")}},
		PeriodSeconds: 1, FailureThreshold: 1,
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "server"}},
		Spec: corev1.PodSpec{
			Hostname: name, Subdomain: "servers",
			AutomountServiceAccountToken: ptr.To(false),
			Volumes: []corev1.Volume{
				{
					Name: "config", VolumeSource: corev1.VolumeSource{
						ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "config"}},
					},
				},
				{
					Name: "data", VolumeSource: corev1.VolumeSource{
						PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
					},
				},
			},
			Containers: []corev1.Container{{
				Name: "server", Image: "quorate", Args: []string{"serve", "$(POD_IP):8080", "/etc/config/key", "--data=/data"},
				Env: []corev1.EnvVar{{
					Name: "POD_IP", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.podIP"}},
				}},
				Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}},
				VolumeMounts: []corev1.VolumeMount{
					{Name: "config", MountPath: "/etc/config"}, {Name: "data", MountPath: "/data"},
				},
				ReadinessProbe: probe, LivenessProbe: probe,
			}},
		},
	}
}

func (w *testAgent) createDependencies() {
	w.Helper()
	core := w.client.CoreV1()
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }
	_, err := core.ConfigMaps("default").Create(w.Context(),
		&corev1.ConfigMap{ObjectMeta: meta("config"), Data: map[string]string{"key": "first"}}, metav1.CreateOptions{})
	if err != nil {
		w.Fatal(err)
	}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: meta("data"), Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources: corev1.VolumeResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
		},
	}}
	if _, err := core.PersistentVolumeClaims("default").Create(w.Context(), claim, metav1.CreateOptions{}); err != nil {
		w.Fatal(err)
	}
	service := &corev1.Service{ObjectMeta: meta("servers"), Spec: corev1.ServiceSpec{
		ClusterIP: "None", Selector: map[string]string{"app": "server"},
		Ports: []corev1.ServicePort{{Name: "http", Port: 8080}},
	}}
	if _, err := core.Services("default").Create(w.Context(), service, metav1.CreateOptions{}); err != nil {
		w.Fatal(err)
	}
}

func TestPodLifecycle(t *testing.T) {
	w := start(t)
	pod := server("one")
	pod.Spec.Volumes = pod.Spec.Volumes[:1]
	pod.Spec.Containers[0].VolumeMounts = pod.Spec.Containers[0].VolumeMounts[:1]
	pod.Name = "waiting"
	w.create(pod)
	w.create(server("one"))
	w.await("the missing volume is reported", func() bool {
		events, _ := w.client.CoreV1().Events("default").List(t.Context(),
			metav1.ListOptions{FieldSelector: "reason=FailedMount"})
		return len(events.Items) > 0
	})
	w.createDependencies()
	w.awaitReady("waiting")
	if err := w.client.CoreV1().Pods("default").Delete(t.Context(), "waiting", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	pod = w.awaitReady("one")

	t.Run("status", func(t *testing.T) {
		status := pod.Status
		if status.Phase != corev1.PodRunning || !network.Pods().Contains(parse(status.PodIP)) || status.StartTime == nil {
			t.Errorf("got %+v", status)
		}
		if c := status.ContainerStatuses[0]; !c.Ready || !*c.Started || c.State.Running == nil ||
			!strings.HasPrefix(c.ContainerID, "process://") {
			t.Errorf("got %+v", c)
		}
	})
	t.Run("arguments are of this machine", func(t *testing.T) {
		answer := w.get(pod, "/")
		folder := filepath.Join(w.directory, "pods", string(pod.UID), "volumes", "config", "key")
		if !strings.Contains(answer, `"`+folder+`"`) ||
			!strings.Contains(answer, "--data="+filepath.Join(w.directory, "volumes")) {
			t.Errorf("got %s", answer)
		}
	})
	t.Run("configmap changes arrive", func(t *testing.T) {
		patch := []byte(`{"data":{"key":"second"}}`)
		if _, err := w.client.CoreV1().ConfigMaps("default").Patch(
			t.Context(), "config", "application/merge-patch+json", patch, metav1.PatchOptions{},
		); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(w.directory, "pods", string(pod.UID), "volumes", "config", "key")
		w.await("the file changes", func() bool { content, _ := os.ReadFile(file); return string(content) == "second" })
	})
	t.Run("names and slices", func(t *testing.T) {
		w.await("the name resolves", func() bool {
			answer := names.Resolve(w.table, "one.servers.default.svc")
			return len(answer.Addresses) == 1 && answer.Addresses[0].String() == pod.Status.PodIP
		})
		w.await("there is a slice", func() bool {
			slices, _ := w.client.DiscoveryV1().EndpointSlices("default").List(t.Context(), metav1.ListOptions{
				LabelSelector: "kubernetes.io/service-name=servers",
			})
			return len(slices.Items) == 1 && len(slices.Items[0].Endpoints) == 1 &&
				*slices.Items[0].Endpoints[0].Conditions.Ready
		})
	})
	t.Run("a load balancer has an address", func(t *testing.T) {
		service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "balanced"}, Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, Selector: map[string]string{"app": "server"},
			Ports: []corev1.ServicePort{{Port: 8080}},
		}}
		if _, err := w.client.CoreV1().Services("default").Create(t.Context(), service, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.await("the address is there", func() bool {
			service, _ := w.client.CoreV1().Services("default").Get(t.Context(), "balanced", metav1.GetOptions{})
			ingress := service.Status.LoadBalancer.Ingress
			return len(ingress) == 1 && ingress[0].IP == service.Spec.ClusterIP
		})
	})
	t.Run("failed liveness restarts", func(t *testing.T) {
		w.get(pod, "/break")
		w.await("the container runs again", func() bool {
			status := w.pod("one").Status.ContainerStatuses[0]
			return status.RestartCount == 1 && status.Ready && status.LastTerminationState.Terminated != nil
		})
	})
	t.Run("a killed process restarts", func(t *testing.T) {
		var id int
		fmt.Sscanf(w.pod("one").Status.ContainerStatuses[0].ContainerID, "process://%d", &id)
		syscall.Kill(id, syscall.SIGKILL)
		w.await("the container runs again", func() bool {
			status := w.pod("one").Status.ContainerStatuses[0]
			return status.RestartCount == 2 && status.Ready && status.LastTerminationState.Terminated.ExitCode == 137
		})
	})
	t.Run("another agent resumes", func(t *testing.T) {
		w.stop()
		w.run()
		w.await("the container runs again", func() bool {
			status := w.pod("one").Status.ContainerStatuses[0]
			return status.RestartCount == 3 && status.Ready
		})
		if again := w.pod("one").Status.PodIP; again != pod.Status.PodIP {
			t.Errorf("the address was %s and is %s", pod.Status.PodIP, again)
		}
	})
	t.Run("deletion", func(t *testing.T) { w.deletion(pod) })
}

func (w *testAgent) deletion(pod *corev1.Pod) {
	core := w.client.CoreV1()
	if err := core.PersistentVolumeClaims("default").Delete(w.Context(), "data", metav1.DeleteOptions{}); err != nil {
		w.Fatal(err)
	}
	if claim, err := core.PersistentVolumeClaims("default").Get(w.Context(), "data", metav1.GetOptions{}); err != nil ||
		claim.Status.Phase != corev1.ClaimBound {
		w.Errorf("a claim in use has no finalizer: %+v, %v", claim, err)
	}
	if err := core.Pods("default").Delete(w.Context(), pod.Name, metav1.DeleteOptions{}); err != nil {
		w.Fatal(err)
	}
	w.await("the pod, its claim and its folders are gone", func() bool {
		_, podErr := core.Pods("default").Get(w.Context(), pod.Name, metav1.GetOptions{})
		_, claimErr := core.PersistentVolumeClaims("default").Get(w.Context(), "data", metav1.GetOptions{})
		list, err := core.PersistentVolumes().List(w.Context(), metav1.ListOptions{})
		left, _ := filepath.Glob(filepath.Join(w.directory, "[pv]o*", "*"))
		return apierrors.IsNotFound(podErr) && apierrors.IsNotFound(claimErr) && err == nil &&
			len(list.Items) == 0 && len(left) == 0
	})
}

// TestRetainedVolumeKeepsItsData deletes the claim of a volume whose reclaim policy a user has changed to Retain, and
// then the volume. Both leave the folder with the data to the user.
func TestRetainedVolumeKeepsItsData(t *testing.T) {
	w := start(t)
	core := w.client.CoreV1()
	w.createDependencies()
	var volume *corev1.PersistentVolume
	phase := func(want corev1.PersistentVolumePhase) func() bool {
		return func() bool {
			list, err := core.PersistentVolumes().List(t.Context(), metav1.ListOptions{})
			if err != nil || len(list.Items) != 1 {
				return false
			}
			volume = &list.Items[0]
			return volume.Status.Phase == want
		}
	}
	w.await("the volume is bound", phase(corev1.VolumeBound))
	file := filepath.Join(volume.Spec.HostPath.Path, "file")
	if err := os.WriteFile(file, []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	retain := []byte(`{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}`)
	if _, err := core.PersistentVolumes().Patch(
		t.Context(), volume.Name, types.MergePatchType, retain, metav1.PatchOptions{},
	); err != nil {
		t.Fatal(err)
	}
	if err := core.PersistentVolumeClaims("default").Delete(t.Context(), "data", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.await("the volume is released", phase(corev1.VolumeReleased))
	if err := core.PersistentVolumes().Delete(t.Context(), volume.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.await("the volume is gone", func() bool {
		_, err := core.PersistentVolumes().Get(t.Context(), volume.Name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	if data, err := os.ReadFile(file); err != nil || string(data) != "data" {
		t.Errorf("the file has %q, error %v", data, err)
	}
}

func TestPodsThatTerminate(t *testing.T) {
	w := start(t)
	tests := map[string]struct {
		policy corev1.RestartPolicy
		code   string
		phase  corev1.PodPhase
	}{
		"success": {corev1.RestartPolicyOnFailure, "0", corev1.PodSucceeded},
		"failure": {corev1.RestartPolicyNever, "3", corev1.PodFailed},
	}
	for name, test := range tests {
		w.create(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PodSpec{
				RestartPolicy: test.policy, AutomountServiceAccountToken: ptr.To(false),
				InitContainers: []corev1.Container{{Name: "first", Image: "quorate", Args: []string{"exit", "0"}}},
				Containers: []corev1.Container{{
					Name: "main", Image: "quorate", Args: []string{"exit", test.code, corev1.TerminationMessagePathDefault},
				}},
			},
		})
	}
	for name, test := range tests {
		w.await(name+" is over", func() bool { return w.pod(name).Status.Phase == test.phase })
		pod := w.pod(name)
		ended := pod.Status.ContainerStatuses[0].State.Terminated
		if conditionOf(pod, corev1.PodInitialized) != corev1.ConditionTrue || ended == nil || ended.Message != "message" {
			t.Errorf("%s: %+v", name, pod.Status)
		}
	}
}
