package desired

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	kjson "sigs.k8s.io/json"
)

// decodePod decodes a pod, or a patch of one, strictly: field names are case-sensitive, and unknown and duplicate
// fields are errors.
func decodePod(raw []byte) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	strict, err := kjson.UnmarshalStrict(raw, pod)
	if err != nil {
		return nil, err
	}
	return pod, errors.Join(strict...)
}

// checkProtected compares a patched pod with the pod before the patch, and returns an error that lists the operator's
// fields that differ. It examines the result, so it does not depend on how the patch expresses a change.
func checkProtected(before, after *corev1.Pod) error {
	errs := []error{checkProtectedMetadata(before, after)}
	from, to, err := fieldsOf(&before.Spec, &after.Spec)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(deniedFields)) {
		if !equality.Semantic.DeepEqual(from[name], to[name]) {
			errs = append(errs, fmt.Errorf("spec.%s %s", name, deniedFields[name]))
		}
	}
	for _, volume := range before.Spec.Volumes {
		i := slices.IndexFunc(after.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == volume.Name })
		if i < 0 || !equality.Semantic.DeepEqual(after.Spec.Volumes[i], volume) {
			errs = append(errs, fmt.Errorf("spec.volumes[%s] %s", volume.Name, setByOperator))
		}
	}
	i := slices.IndexFunc(after.Spec.Containers, func(c corev1.Container) bool { return c.Name == ServerContainer })
	if i < 0 {
		return fmt.Errorf("spec.containers[%s] %s", ServerContainer, setByOperator)
	}
	return errors.Join(append(errs, checkProtectedContainer(&before.Spec.Containers[0], &after.Spec.Containers[i]))...)
}

func checkProtectedMetadata(before, after *corev1.Pod) error {
	original, patched := before.ObjectMeta.DeepCopy(), after.ObjectMeta.DeepCopy()
	for _, entries := range []struct{ original, patched map[string]string }{
		{original.Labels, patched.Labels}, {original.Annotations, patched.Annotations},
	} {
		for key, value := range entries.original {
			if entries.patched[key] != value {
				return fmt.Errorf("metadata: %s %s", key, setByOperator)
			}
		}
	}
	original.Labels, original.Annotations, patched.Labels, patched.Annotations = nil, nil, nil, nil
	if !equality.Semantic.DeepEqual(original, patched) {
		return fmt.Errorf("metadata, except for labels and annotations, %s", setByOperator)
	}
	return nil
}

// checkProtectedContainer compares the API server's container before and after a patch. A patch may add variables and
// mounts.
func checkProtectedContainer(before, after *corev1.Container) error {
	from, to, err := fieldsOf(before, after)
	if err != nil {
		return err
	}
	var errs []error
	names := slices.Concat(slices.Collect(maps.Keys(from)), slices.Collect(maps.Keys(to)))
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if !slices.Contains(containerFields, name) && !equality.Semantic.DeepEqual(from[name], to[name]) {
			errs = append(errs, fmt.Errorf("spec.containers[%s].%s %s", ServerContainer, name, setByOperator))
		}
	}
	for _, variable := range before.Env {
		if !slices.ContainsFunc(after.Env, func(v corev1.EnvVar) bool { return equality.Semantic.DeepEqual(v, variable) }) {
			errs = append(errs, fmt.Errorf("spec.containers[%s].env[%s] %s", ServerContainer, variable.Name, setByOperator))
		}
	}
	for _, mount := range after.VolumeMounts {
		if !containsMount(before.VolumeMounts, mount) && overlapsOperatorDirectory(mount.MountPath) {
			errs = append(errs,
				fmt.Errorf("spec.containers[%s].volumeMounts[%s]: the directory %s", ServerContainer,
					mount.MountPath, setByOperator))
		}
	}
	for _, mount := range before.VolumeMounts {
		if !containsMount(after.VolumeMounts, mount) {
			errs = append(errs,
				fmt.Errorf("spec.containers[%s].volumeMounts[%s] %s", ServerContainer, mount.MountPath, setByOperator))
		}
	}
	return errors.Join(errs...)
}

// containsMount reports whether mounts has a mount that is equal to the given one in all fields.
func containsMount(mounts []corev1.VolumeMount, mount corev1.VolumeMount) bool {
	return slices.ContainsFunc(mounts, func(m corev1.VolumeMount) bool { return equality.Semantic.DeepEqual(m, mount) })
}

// fieldsOf returns two objects as JSON objects.
func fieldsOf(before, after any) (from, to object, err error) {
	if from, err = runtime.DefaultUnstructuredConverter.ToUnstructured(before); err != nil {
		return nil, nil, err
	}
	to, err = runtime.DefaultUnstructuredConverter.ToUnstructured(after)
	return from, to, err
}
