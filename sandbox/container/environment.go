// Package container computes the environment, the arguments and the paths of the process that runs a container.
package container

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"quorate.dev/sandbox/source"
)

// Environment maps names of variables to values.
type Environment map[string]string

// List returns the variables as sorted name=value pairs.
func (e Environment) List() []string {
	list := make([]string, 0, len(e))
	for _, name := range slices.Sorted(maps.Keys(e)) {
		list = append(list, name+"="+e[name])
	}
	return list
}

// ResolveEnvironment returns the variables of a container: first envFrom in order, then env in order. $(NAME) in a
// value of env expands to a variable defined before.
func ResolveEnvironment(pod *corev1.Pod, container *corev1.Container, objects source.Objects) (Environment, error) {
	environment := Environment{}
	for _, from := range container.EnvFrom {
		if err := environment.addAll(pod.Namespace, from, objects); err != nil {
			return nil, err
		}
	}
	for _, variable := range container.Env {
		value, found, err := resolve(pod, container, variable, environment, objects)
		if err != nil {
			return nil, fmt.Errorf("environment variable %s: %w", variable.Name, err)
		}
		if found {
			environment[variable.Name] = value
		}
	}
	return environment, nil
}

func (e Environment) addAll(namespace string, from corev1.EnvFromSource, objects source.Objects) error {
	if reference := from.ConfigMapRef; reference != nil {
		configMap, err := objects.ConfigMaps.ConfigMaps(namespace).Get(reference.Name)
		if err != nil {
			return ignoreMissing(err, reference.Optional)
		}
		for key, value := range configMap.Data {
			e[from.Prefix+key] = value
		}
	}
	if reference := from.SecretRef; reference != nil {
		secret, err := objects.Secrets.Secrets(namespace).Get(reference.Name)
		if err != nil {
			return ignoreMissing(err, reference.Optional)
		}
		for key, value := range secret.Data {
			e[from.Prefix+key] = string(value)
		}
	}
	return nil
}

func resolve(
	pod *corev1.Pod, container *corev1.Container, variable corev1.EnvVar, known Environment, objects source.Objects,
) (string, bool, error) {
	from := variable.ValueFrom
	switch {
	case from == nil:
		return Expand(variable.Value, known), true, nil
	case from.FieldRef != nil:
		value, err := source.Field(pod, from.FieldRef.FieldPath)
		return value, true, err
	case from.ResourceFieldRef != nil:
		value, err := source.Resource(pod, container, from.ResourceFieldRef)
		return value, true, err
	case from.SecretKeyRef != nil:
		value, err := objects.SecretKey(pod.Namespace, from.SecretKeyRef.Name, from.SecretKeyRef.Key)
		return string(value), err == nil, ignoreMissing(err, from.SecretKeyRef.Optional)
	case from.ConfigMapKeyRef != nil:
		value, err := objects.ConfigMapKey(pod.Namespace, from.ConfigMapKeyRef.Name, from.ConfigMapKeyRef.Key)
		return string(value), err == nil, ignoreMissing(err, from.ConfigMapKeyRef.Optional)
	}
	return "", false, errors.New("the sandbox does not support this kind of valueFrom")
}

func ignoreMissing(err error, optional *bool) error {
	if optional != nil && *optional && (apierrors.IsNotFound(err) || errors.Is(err, source.ErrNoKey)) {
		return nil
	}
	return err
}

// Expand replaces $(NAME) by the value of a variable, and $$ by $. References to unknown variables stay as they are.
func Expand(text string, environment Environment) string {
	var result strings.Builder
	for {
		before, after, found := strings.Cut(text, "$")
		result.WriteString(before)
		if !found {
			return result.String()
		}
		replacement, rest := operand(after, environment)
		result.WriteString(replacement)
		text = rest
	}
}

// operand expands the reference that follows a $, and returns the text after the reference.
func operand(text string, environment Environment) (replacement, rest string) {
	if rest, ok := strings.CutPrefix(text, "$"); ok {
		return "$", rest
	}
	inner, ok := strings.CutPrefix(text, "(")
	if !ok {
		return "$", text
	}
	name, rest, ok := strings.Cut(inner, ")")
	if !ok {
		return "$", text
	}
	if value, known := environment[name]; known {
		return value, rest
	}
	return "$(" + name + ")", rest
}
