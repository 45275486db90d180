// Package podpaths limits the time in which upstream looks for overlapping paths in the volumes of pods. To return
// warnings, upstream compares each path of a volume with all earlier ones: a secret with 35,000 items takes half a
// minute of CPU.
package podpaths

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/apis/apps"
	"k8s.io/kubernetes/pkg/apis/batch"
	core "k8s.io/kubernetes/pkg/apis/core"
)

// maxWork is the maximum product of the number of paths in a volume and their total length in bytes for which upstream
// may compare all paths.
const maxWork = 20_000_000

// Bounded returns an object for which upstream returns the same warnings as for the given pod or owner of pods. If a
// volume has very many paths, the result is a copy without the paths that overlap with no other path. If very many
// paths overlap, the copy has only the first of these, and the later ones cause no warnings.
func Bounded(object runtime.Object) runtime.Object {
	spec := specOf(object)
	if spec == nil || !slices.ContainsFunc(spec.Volumes, func(v core.Volume) bool { return choose(pathsOf(v)) != nil }) {
		return object
	}
	bounded := object.DeepCopyObject()
	volumes := specOf(bounded).Volumes
	for i := range volumes {
		if kept := choose(pathsOf(volumes[i])); kept != nil {
			(&filter{kept: kept}).volume(&volumes[i])
		}
	}
	return bounded
}

// specOf returns the spec of the pods of an object, nil for other kinds.
func specOf(object runtime.Object) *core.PodSpec {
	switch object := object.(type) {
	case *core.Pod:
		return &object.Spec
	case *core.PodTemplate:
		return &object.Template.Spec
	case *core.ReplicationController:
		if object.Spec.Template != nil {
			return &object.Spec.Template.Spec
		}
	case *apps.ReplicaSet:
		return &object.Spec.Template.Spec
	case *apps.Deployment:
		return &object.Spec.Template.Spec
	case *apps.DaemonSet:
		return &object.Spec.Template.Spec
	case *apps.StatefulSet:
		return &object.Spec.Template.Spec
	case *batch.Job:
		return &object.Spec.Template.Spec
	case *batch.CronJob:
		return &object.Spec.JobTemplate.Spec.Template.Spec
	}
	return nil
}

// pathsOf returns all paths in a volume, in the order in which filter visits them.
func pathsOf(volume core.Volume) []string {
	collector := &filter{}
	collector.volume(&volume)
	return collector.paths
}

// choose returns for each path whether it is kept for the comparison; nil means that all paths are kept.
func choose(paths []string) []bool {
	total := 0
	for _, path := range paths {
		total += len(path)
	}
	if len(paths)*total <= maxWork {
		return nil
	}
	kept, count, size := overlapping(paths), 0, 0
	for i, path := range paths {
		if kept[i] = kept[i] && (count+1)*(size+len(path)) <= maxWork/10; kept[i] {
			count, size = count+1, size+len(path)
		}
	}
	return kept
}

// overlapping returns for each path whether it is equal to, inside or above another path.
func overlapping(paths []string) []bool {
	directories, order := make([]string, len(paths)), make([]int, 0, len(paths))
	for i, path := range paths {
		if path = strings.TrimRight(path, "/"); path != "" { // upstream does not compare empty paths
			directories[i] = path + "/"
			order = append(order, i)
		}
	}
	slices.SortFunc(order, func(i, j int) int { return strings.Compare(directories[i], directories[j]) })
	found := make([]bool, len(paths))
	var above []int // the previous path and the paths that contain it
	for _, i := range order {
		for len(above) > 0 && !strings.HasPrefix(directories[i], directories[above[len(above)-1]]) {
			above = above[:len(above)-1]
		}
		if len(above) > 0 {
			found[i], found[above[len(above)-1]] = true, true
		}
		above = append(above, i)
	}
	return found
}
