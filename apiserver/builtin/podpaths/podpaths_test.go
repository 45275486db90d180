package podpaths

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	podutil "k8s.io/kubernetes/pkg/api/pod"
	core "k8s.io/kubernetes/pkg/apis/core"
)

func podWith(volumes ...core.Volume) *core.Pod {
	return &core.Pod{Spec: core.PodSpec{Volumes: volumes}}
}

// projected returns a volume with a source for each path, and one that is empty.
func projected(paths []string) core.Volume {
	sources := []core.VolumeProjection{{}}
	for _, path := range paths {
		sources = append(sources, core.VolumeProjection{
			Secret: &core.SecretProjection{Items: []core.KeyToPath{{Key: "k", Path: path}}},
		})
	}
	return core.Volume{
		Name: "projected", VolumeSource: core.VolumeSource{Projected: &core.ProjectedVolumeSource{Sources: sources}},
	}
}

// secret returns a volume with an item for each path.
func secret(paths []string) core.Volume {
	volume := &core.SecretVolumeSource{SecretName: "s"}
	for _, path := range paths {
		volume.Items = append(volume.Items, core.KeyToPath{Key: "k", Path: path})
	}
	return core.Volume{Name: "secret", VolumeSource: core.VolumeSource{Secret: volume}}
}

func warnings(t testing.TB, pod *core.Pod) []string {
	t.Helper()
	return podutil.GetWarningsForPod(t.Context(), pod, nil)
}

// TestConcurrentReaders needs the race detector: Bounded does not write to an object that others read.
func TestConcurrentReaders(t *testing.T) {
	pod := podWith(projected([]string{"a", "b"}), secret([]string{"a"}))
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() { Bounded(pod) })
	}
	readers.Wait()
}

// TestWarningsStay compares the warnings about a bounded pod with those about the pod. The paths are numerous, and few
// overlap.
func TestWarningsStay(t *testing.T) {
	paths := make([]string, 0, 3000)
	for i := range 3000 {
		paths = append(paths, fmt.Sprintf("directory-%d/file", i))
	}
	paths[100], paths[2000], paths[2500], paths[2600] = "directory-7", "directory-9/file/", "directory-11/file", ""
	pod := podWith(projected(paths), secret(paths), secret([]string{"a", "a/b"}))
	bounded := Bounded(pod).(*core.Pod)
	if left := len(bounded.Spec.Volumes[1].Secret.Items); left > 10 {
		t.Errorf("%d paths are left", left)
	}
	if len(pod.Spec.Volumes[1].Secret.Items) != len(paths) || len(pod.Spec.Volumes[0].Projected.Sources) != len(paths)+1 {
		t.Error("the pod has changed")
	}
	want, got := warnings(t, pod), warnings(t, bounded)
	if len(want) != 8 || !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestOverlapping compares the result for random paths with a comparison of all pairs.
func TestOverlapping(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		paths := make([]string, random.IntN(12))
		for i := range paths {
			for range random.IntN(5) {
				paths[i] += []string{"a", "b", "a/", "/", "-", "."}[random.IntN(6)]
			}
		}
		got := overlapping(paths)
		for i, path := range paths {
			a := strings.TrimRight(path, "/") + "/"
			want := a != "/" && slices.IndexFunc(slices.Delete(slices.Clone(paths), i, i+1), func(other string) bool {
				b := strings.TrimRight(other, "/") + "/"
				return b != "/" && (strings.HasPrefix(a, b) || strings.HasPrefix(b, a))
			}) >= 0
			if got[i] != want {
				t.Fatalf("%q in %q: got %v, want %v", path, paths, got[i], want)
			}
		}
	}
}

// TestSmallPodsStay checks that usual pods are not copied, and that numerous overlapping paths are dropped.
func TestSmallPodsStay(t *testing.T) {
	if pod := podWith(secret([]string{"a", "a"})); Bounded(pod) != pod {
		t.Error("a small pod was copied")
	}
	nested := make([]string, 3000)
	for i := range nested {
		nested[i] = strings.Repeat("a/", i/2+1)
	}
	items := Bounded(podWith(secret(nested))).(*core.Pod).Spec.Volumes[0].Secret.Items
	if len(items) == 0 || len(items) > 200 {
		t.Errorf("%d overlapping paths are left", len(items))
	}
}
