package desired

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"quorate.dev/apiserver/config"
)

// ServerContainer is the name of the API server's container in the pod of a replica.
const ServerContainer = "apiserver"

// DamagedDataExitCode is the exit code of an API server whose embedded member cannot start because its data is damaged.
const DamagedDataExitCode = config.DamagedDataExitCode

// LostDataExitCode is the exit code of an API server whose embedded member must not start, because its data directory
// lacks the data that the member has voted with.
const LostDataExitCode = config.LostDataExitCode

// LostWritesExitCode is the exit code of an API server whose embedded member has acknowledged writes that the other
// members lack.
const LostWritesExitCode = config.LostWritesExitCode

// deniedFields maps the fields of the pod's spec that spec.patches cannot set to the reason.
var deniedFields = map[string]string{
	"hostname": setByOperator, "subdomain": setByOperator, "restartPolicy": setByOperator, "hostNetwork": setByOperator,
	"terminationGracePeriodSeconds": "follows from extraArgs", "securityContext": setByOperator, "nodeName": setByOperator,
	"setHostnameAsFQDN": setByOperator, "hostnameOverride": setByOperator, "hostUsers": setByOperator,
	"ephemeralContainers": "cannot be part of a new pod", "activeDeadlineSeconds": "would stop the API server",
	"nodeSelector": "is spec.scheduling.nodeSelector", "tolerations": "is spec.scheduling.tolerations",
	"affinity": "is spec.scheduling.affinity", "topologySpreadConstraints": "is spec.scheduling.topologySpreadConstraints",
	"priorityClassName": "is spec.scheduling.priorityClassName", "imagePullSecrets": "is spec.imagePullSecrets",
}

// containerFields are the fields of the API server's container that spec.patches can set.
var containerFields = []string{"name", "env", "envFrom", "volumeMounts"}

// operatorDirectories are the directories that mounts in spec.patches must not hide.
var operatorDirectories = []string{certificateDirectory, ConfigurationDirectory, dataDirectory, recordDirectory,
	auditLogDirectory, "/tmp"}

// patched returns a pod to which the patch in spec.patches is applied. It fails if the patch changes a field that the
// operator sets.
func patched(pod *corev1.Pod, patch *runtime.RawExtension) (*corev1.Pod, error) {
	if patch == nil || len(patch.Raw) == 0 {
		return pod, nil
	}
	if err := checkPatch(patch.Raw); err != nil {
		return nil, fmt.Errorf("spec.patches.pod: %w", err)
	}
	before, err := json.Marshal(pod)
	if err != nil {
		return nil, fmt.Errorf("encode pod: %w", err)
	}
	after, err := strategicpatch.StrategicMergePatch(before, patch.Raw, &corev1.Pod{})
	if err != nil {
		return nil, fmt.Errorf("spec.patches.pod: %w", err)
	}
	result, err := decodePod(after)
	if err != nil {
		return nil, fmt.Errorf("spec.patches.pod: %w", err)
	}
	if err := checkProtected(pod, result); err != nil {
		return nil, fmt.Errorf("spec.patches.pod: %w", err)
	}
	// The strategic merge puts the containers of the patch first.
	slices.SortStableFunc(result.Spec.Containers, func(a, b corev1.Container) int {
		switch {
		case a.Name == ServerContainer:
			return -1
		case b.Name == ServerContainer:
			return 1
		}
		return 0
	})
	return result, nil
}

// object is a decoded JSON object.
type object = map[string]any

// checkPatch returns an error that lists the fields in a patch that the operator sets, or that a pod does not have.
func checkPatch(raw []byte) error {
	var patch object
	if err := json.Unmarshal(raw, &patch); err != nil {
		return err
	}
	errs := []error{checkDirectives("", patch)}
	for _, name := range slices.Sorted(maps.Keys(patch)) {
		content, ok := patch[name].(object)
		switch {
		case name != "metadata" && name != "spec":
			errs = append(errs, fmt.Errorf("%s cannot be patched, only metadata and spec", name))
		case !ok:
			errs = append(errs, fmt.Errorf("%s must be an object", name))
		case name == "metadata":
			errs = append(errs, checkMetadata(content)...)
		default:
			errs = append(errs, checkSpec(content)...)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	_, err := decodePod(raw)
	return err
}

// checkDirectives rejects directives of strategic merge patches and null, because they could remove fields that the
// operator depends on.
func checkDirectives(at string, value any) error {
	switch value := value.(type) {
	case nil:
		return fmt.Errorf("%s must not be null", at)
	case object:
		for _, name := range slices.Sorted(maps.Keys(value)) {
			field := strings.TrimPrefix(at+"."+name, ".")
			if strings.HasPrefix(name, "$") {
				return fmt.Errorf("directive %s is not available", field)
			}
			if err := checkDirectives(field, value[name]); err != nil {
				return err
			}
		}
	case []any:
		for i, item := range value {
			if err := checkDirectives(fmt.Sprintf("%s[%d]", at, i), item); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkMetadata(metadata object) (errs []error) {
	for _, name := range slices.Sorted(maps.Keys(metadata)) {
		if name != "labels" && name != "annotations" {
			errs = append(errs, fmt.Errorf("metadata.%s %s", name, setByOperator))
			continue
		}
		entries, _ := metadata[name].(object)
		for _, key := range slices.Sorted(maps.Keys(entries)) {
			prefix, _, _ := strings.Cut(key, "/")
			if prefix == "app.kubernetes.io" || prefix == "quorate.dev" || strings.HasSuffix(prefix, ".quorate.dev") {
				errs = append(errs, fmt.Errorf("metadata.%s[%s] %s", name, key, setByOperator))
			}
		}
	}
	return errs
}

func checkSpec(spec object) (errs []error) {
	for _, name := range slices.Sorted(maps.Keys(spec)) {
		if reason, denied := deniedFields[name]; denied {
			errs = append(errs, fmt.Errorf("spec.%s %s", name, reason))
		}
	}
	for _, volume := range list(spec["volumes"]) {
		if name, _ := volume["name"].(string); operatorVolume(name) {
			errs = append(errs, fmt.Errorf("spec.volumes[%s] %s", name, setByOperator))
		}
	}
	for _, container := range list(spec["containers"]) {
		if container["name"] == ServerContainer {
			errs = append(errs, checkContainer(container)...)
		}
	}
	for _, container := range list(spec["initContainers"]) {
		if container["name"] == ServerContainer {
			errs = append(errs, fmt.Errorf("spec.initContainers[%s]: the name is in use", ServerContainer))
		}
	}
	return errs
}

func operatorVolume(name string) bool {
	return slices.Contains([]string{
		"certificates", "tmp", "data", recordVolume, configurationVolume, auditLogVolume,
	}, name) ||
		strings.HasPrefix(name, socketVolumePrefix)
}

func checkContainer(container object) (errs []error) {
	for _, name := range slices.Sorted(maps.Keys(container)) {
		if !slices.Contains(containerFields, name) {
			errs = append(errs, fmt.Errorf("spec.containers[%s].%s %s", ServerContainer, name, setByOperator))
		}
	}
	for _, variable := range list(container["env"]) {
		if name := variable["name"]; name == "POD_IP" || name == config.PreviousVersionVariable ||
			name == config.MemberRecordVariable {
			errs = append(errs, fmt.Errorf("spec.containers[%s].env[%s] %s", ServerContainer, name, setByOperator))
		}
	}
	for _, mount := range list(container["volumeMounts"]) {
		if at, _ := mount["mountPath"].(string); overlapsOperatorDirectory(at) {
			errs = append(errs,
				fmt.Errorf("spec.containers[%s].volumeMounts[%s]: the directory %s", ServerContainer, at, setByOperator))
		}
	}
	return errs
}

// overlapsOperatorDirectory reports whether a mount is at, below or above a directory of the operator.
func overlapsOperatorDirectory(mountPath string) bool {
	at := path.Clean("/"+mountPath) + "/"
	return slices.ContainsFunc(operatorDirectories, func(directory string) bool {
		directory += "/"
		return strings.HasPrefix(at, directory) || strings.HasPrefix(directory, at) || at == "//"
	})
}

// list returns those elements of a decoded JSON list that are objects.
func list(value any) (objects []object) {
	items, _ := value.([]any)
	for _, item := range items {
		if fields, ok := item.(object); ok {
			objects = append(objects, fields)
		}
	}
	return objects
}
