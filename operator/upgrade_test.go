package operator

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/yaml"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/test/upstream"
)

var record = flag.Bool("record", false,
	"rewrite the objects of the previous release, which desired.TestPreviousRelease reads")

// previousClusters are specs from which the previous release creates pods.
func previousClusters() map[string]v1alpha1.ApiServerClusterSpec {
	return map[string]v1alpha1.ApiServerClusterSpec{
		"plain": {},
		"servers": {
			Replicas: ptr.To[int32](2), Etcd: v1alpha1.Etcd{Embedded: &v1alpha1.EmbeddedEtcd{Members: ptr.To[int32](1)}},
			ExtraArgs: map[string]string{"max-requests-inflight": "321", "etcd-snapshot-count": "5000"},
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")},
			},
		},
		"external": {
			Replicas: ptr.To[int32](1),
			Etcd:     v1alpha1.Etcd{External: &v1alpha1.ExternalEtcd{Endpoints: []string{"https://etcd.example.org:2379"}}},
		},
	}
}

// TestUpgradeRestartsNothing creates clusters with the operator of the previous release and continues with this one:
// no pod is replaced or restarted, and the clusters still follow their spec.
func TestUpgradeRestartsNothing(t *testing.T) {
	if os.Getenv("QUORATE_UPGRADE") == "" {
		t.Skip("builds the previous release; set QUORATE_UPGRADE=full (make upgrade). desired.TestPreviousRelease is the " +
			"short form")
	}
	previous, err := upstream.Previous(t.Context())
	if err != nil {
		t.Fatal(err) // without history, too: the long form must not pass without a previous release
	}
	defer func() { _ = os.RemoveAll(previous.Root) }()
	t.Logf("the previous release is %s", previous.Name)

	e := startServer(t, filepath.Join(previous.Root, "config/crd"), "default")
	e.install(filepath.Join(previous.Root, "manifests/install.yaml"))
	stop := e.operatePrevious(previous)
	for name, spec := range previousClusters() {
		if err := e.create(name, spec); err != nil {
			t.Fatal(err)
		}
	}
	e.await("plain", "bootstrap by the previous release", settled(3, 3))
	e.await("servers", "bootstrap by the previous release", settled(1, 2))
	e.await("external", "start by the previous release", func(c *v1alpha1.ApiServerCluster) bool {
		return c.Status.Ready == "1/1"
	})
	stop()
	before := e.instances()
	if *record {
		e.recordPrevious(previous)
	}

	e.upgrade()
	e.operate([]string{"--leader-elect=false"})
	for name := range previousClusters() {
		e.adopt(name)
	}
	if after := e.instances(); !maps.Equal(before, after) {
		t.Errorf("instances of the pods after the upgrade:\n%v\nbefore:\n%v", after, before)
	}
	e.change("plain", func(spec *v1alpha1.ApiServerClusterSpec) {
		spec.ExtraArgs = map[string]string{"max-requests-inflight": "322"}
	})
	e.await("plain", "roll out an argument after the upgrade", func(c *v1alpha1.ApiServerCluster) bool {
		for name := range e.instances() {
			if _, old := before[name]; old && strings.HasPrefix(name, "plain-") {
				return false
			}
		}
		return settled(3, 3)(c)
	})
}

// operatePrevious runs the operator of the previous release with its manifests, and with the present permissions of an
// administrator. The returned function stops it.
func (e *environment) operatePrevious(previous *upstream.Release) (stop func()) {
	command := exec.CommandContext(e.t.Context(), previous.Binary,
		append([]string{"operator"}, e.operatorArguments()...)...)
	command.Cancel = func() error { return command.Process.Signal(os.Interrupt) }
	var output strings.Builder
	command.Stdout, command.Stderr = &output, &output
	if err := command.Start(); err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() {
		if e.t.Failed() {
			e.t.Logf("the operator of the previous release:\n%s", output.String())
		}
	})
	return func() {
		if err := errors.Join(command.Process.Signal(os.Interrupt), command.Wait()); err != nil {
			e.t.Fatalf("the operator of the previous release: %v", err)
		}
	}
}

// upgrade applies the present CRDs and manifests over those of the previous release.
func (e *environment) upgrade() {
	e.t.Helper()
	if _, err := envtest.InstallCRDs(
		e.admin, envtest.CRDInstallOptions{Paths: []string{"../config/crd"}, ErrorIfPathMissing: true},
	); err != nil {
		e.t.Fatal(err)
	}
	for _, object := range documents(e.t, "../manifests/install.yaml") {
		if strings.HasPrefix(object.GetKind(), "CustomResource") || object.GetKind() == "Namespace" {
			continue
		}
		current := object.DeepCopy()
		err := e.client.Get(e.t.Context(), client.ObjectKeyFromObject(object), current)
		if err == nil {
			object.SetResourceVersion(current.GetResourceVersion())
			err = e.client.Update(e.t.Context(), object)
		} else if apierrors.IsNotFound(err) {
			err = e.client.Create(e.t.Context(), object)
		}
		if err != nil {
			e.t.Fatalf("%s %s: %v", object.GetKind(), object.GetName(), err)
		}
	}
}

// adopt waits until the present operator has reconciled a cluster twice: it has set and removed the condition Paused.
func (e *environment) adopt(name string) {
	e.t.Helper()
	for _, until := range []string{time.Now().Add(time.Hour).UTC().Format(time.RFC3339), ""} {
		value := `"` + until + `"`
		if until == "" {
			value = "null"
		}
		patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, v1alpha1.PausedUntilAnnotation, value)
		if err := e.client.Patch(
			e.t.Context(), e.get(name), client.RawPatch(types.MergePatchType, []byte(patch)),
		); err != nil {
			e.t.Fatal(err)
		}
		e.await(name, "observe the pause", func(c *v1alpha1.ApiServerCluster) bool {
			paused := slices.ContainsFunc(c.Status.Conditions, func(c metav1.Condition) bool { return c.Reason == "Paused" })
			return paused == (until != "")
		})
	}
	if name != "external" {
		e.await(name, "adoption", func(c *v1alpha1.ApiServerCluster) bool {
			return settled(int(c.Status.Voters), int(c.Status.Replicas))(c)
		})
	}
}

// instances returns the pods by name and UID, with the restarts of their containers.
func (e *environment) instances() map[string]string {
	all := map[string]string{}
	for _, pod := range e.pods() {
		restarts := 0
		for _, c := range pod.Status.ContainerStatuses {
			restarts += int(c.RestartCount)
		}
		all[pod.Name+" "+string(pod.UID)] = fmt.Sprint(restarts)
	}
	return all
}

// recordPrevious writes the clusters and pods of the previous release for desired.TestPreviousRelease.
func (e *environment) recordPrevious(previous *upstream.Release) {
	var text strings.Builder
	fmt.Fprintf(&text, "# Objects of the previous release, %s, recorded by `make upgrade RECORD=1`.\n", previous.Name)
	for _, name := range slices.Sorted(maps.Keys(previousClusters())) {
		cluster := e.get(name)
		cluster.TypeMeta = metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "ApiServerCluster"}
		cluster.ManagedFields, cluster.Finalizers, cluster.Status.Conditions = nil, nil, nil
		objects := []any{cluster}
		for _, pod := range e.pods() {
			if pod.Labels[desired.ClusterLabel] == name {
				pod.ManagedFields, pod.OwnerReferences = nil, nil
				objects = append(objects, map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": pod.ObjectMeta})
			}
		}
		for _, object := range objects {
			encoded, err := yaml.Marshal(object)
			if err != nil {
				e.t.Fatal(err)
			}
			fmt.Fprintf(&text, "---\n%s", encoded)
		}
	}
	if err := os.WriteFile("desired/testdata/previous-release.yaml", []byte(text.String()), 0o644); err != nil {
		e.t.Fatal(err)
	}
}
