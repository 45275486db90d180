// Package source resolves the references in containers and volumes of a Pod: to fields of the Pod, to resource requests
// and limits, and to Secrets and ConfigMaps.
package source

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	corelisters "k8s.io/client-go/listers/core/v1"
)

// Objects provides Secrets and ConfigMaps.
type Objects struct {
	Secrets    corelisters.SecretLister
	ConfigMaps corelisters.ConfigMapLister
}

// ErrNoKey is returned if an object exists but does not have the key.
var ErrNoKey = errors.New("no such key")

// SecretKey returns the value of a key of a Secret.
func (o Objects) SecretKey(namespace, name, key string) ([]byte, error) {
	secret, err := o.Secrets.Secrets(namespace).Get(name)
	if err != nil {
		return nil, err
	}
	value, ok := secret.Data[key]
	if !ok {
		return nil, fmt.Errorf("%w: %q in secret %s/%s", ErrNoKey, key, namespace, name)
	}
	return value, nil
}

// ConfigMapKey returns the value of a key of a ConfigMap.
func (o Objects) ConfigMapKey(namespace, name, key string) ([]byte, error) {
	configMap, err := o.ConfigMaps.ConfigMaps(namespace).Get(name)
	if err != nil {
		return nil, err
	}
	if value, ok := configMap.Data[key]; ok {
		return []byte(value), nil
	}
	if value, ok := configMap.BinaryData[key]; ok {
		return value, nil
	}
	return nil, fmt.Errorf("%w: %q in configmap %s/%s", ErrNoKey, key, namespace, name)
}

// Field returns the value of a Pod's field that a fieldRef selects.
func Field(pod *corev1.Pod, path string) (string, error) {
	if name, key, ok := subscript(path); ok {
		switch name {
		case "metadata.labels":
			return pod.Labels[key], nil
		case "metadata.annotations":
			return pod.Annotations[key], nil
		}
		return "", fmt.Errorf("field %q has no keys", path)
	}
	switch path {
	case "metadata.name":
		return pod.Name, nil
	case "metadata.namespace":
		return pod.Namespace, nil
	case "metadata.uid":
		return string(pod.UID), nil
	case "metadata.labels":
		return formatMap(pod.Labels), nil
	case "metadata.annotations":
		return formatMap(pod.Annotations), nil
	case "spec.nodeName":
		return pod.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, nil
	case "status.hostIP", "status.hostIPs":
		return pod.Status.HostIP, nil
	case "status.podIP", "status.podIPs":
		return pod.Status.PodIP, nil
	}
	return "", fmt.Errorf("unsupported field path %q", path)
}

// subscript splits a field path such as "metadata.labels['key']" into field and key.
func subscript(path string) (name, key string, ok bool) {
	name, rest, ok := strings.Cut(path, "['")
	if !ok {
		return "", "", false
	}
	key, ok = strings.CutSuffix(rest, "']")
	return name, key, ok
}

func formatMap(values map[string]string) string {
	var lines []string
	for _, key := range slices.Sorted(maps.Keys(values)) {
		lines = append(lines, key+"="+strconv.Quote(values[key]))
	}
	return strings.Join(lines, "\n")
}

// Resource returns the value of a resourceFieldRef: a container's request or limit, divided by the divisor and rounded
// up.
func Resource(pod *corev1.Pod, container *corev1.Container, reference *corev1.ResourceFieldSelector) (string, error) {
	if reference.ContainerName != "" {
		index := slices.IndexFunc(pod.Spec.Containers, func(c corev1.Container) bool {
			return c.Name == reference.ContainerName
		})
		if index < 0 {
			return "", fmt.Errorf("no container %q", reference.ContainerName)
		}
		container = &pod.Spec.Containers[index]
	}
	if container == nil {
		return "", errors.New("a containerName is required")
	}
	kind, name, _ := strings.Cut(reference.Resource, ".")
	list := container.Resources.Limits
	if kind == "requests" {
		list = container.Resources.Requests
	} else if kind != "limits" {
		return "", fmt.Errorf("unsupported resource %q", reference.Resource)
	}
	return divide(list[corev1.ResourceName(name)], reference.Divisor, name == string(corev1.ResourceCPU)), nil
}

func divide(quantity, divisor resource.Quantity, milli bool) string {
	if divisor.IsZero() {
		divisor = resource.MustParse("1")
	}
	if milli {
		return strconv.FormatInt(int64(math.Ceil(float64(quantity.MilliValue())/float64(divisor.MilliValue()))), 10)
	}
	return strconv.FormatInt(int64(math.Ceil(float64(quantity.Value())/float64(divisor.Value()))), 10)
}
