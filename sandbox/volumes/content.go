// Package volumes manages the volumes of Pods, which are folders of this machine.
package volumes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"

	"quorate.dev/sandbox/source"
)

// defaultMode is the mode of files in Secret, ConfigMap, projected and downward API volumes.
const defaultMode int32 = 0o644

// File is one file of a volume.
type File struct {
	Data []byte
	Mode int32
}

// Content is the content of a volume: files by slash-separated path.
type Content map[string]File

// Tokens issues service-account tokens to Pods.
type Tokens interface {
	Token(ctx context.Context, pod *corev1.Pod, projection *corev1.ServiceAccountTokenProjection) (string, error)
}

// Render returns the content of a volume that consists of API objects.
func Render(
	ctx context.Context, pod *corev1.Pod, volume corev1.VolumeSource, objects source.Objects, tokens Tokens,
) (Content, error) {
	r := renderer{pod, objects, tokens}
	switch {
	case volume.Secret != nil:
		projection := corev1.SecretProjection{
			LocalObjectReference: corev1.LocalObjectReference{Name: volume.Secret.SecretName},
			Items:                volume.Secret.Items, Optional: volume.Secret.Optional,
		}
		return r.secret(&projection, mode(volume.Secret.DefaultMode))
	case volume.ConfigMap != nil:
		projection := corev1.ConfigMapProjection{
			LocalObjectReference: volume.ConfigMap.LocalObjectReference,
			Items:                volume.ConfigMap.Items, Optional: volume.ConfigMap.Optional,
		}
		return r.configMap(&projection, mode(volume.ConfigMap.DefaultMode))
	case volume.DownwardAPI != nil:
		return downward(pod, volume.DownwardAPI.Items, mode(volume.DownwardAPI.DefaultMode))
	case volume.Projected != nil:
		return r.projected(ctx, volume.Projected)
	}
	return nil, errors.New("not a Secret, ConfigMap, projected or downward API volume")
}

func mode(declared *int32) int32 { return ptr.Deref(declared, defaultMode) }

// renderer renders the volumes of one Pod.
type renderer struct {
	pod     *corev1.Pod
	objects source.Objects
	tokens  Tokens
}

func (r renderer) projected(ctx context.Context, volume *corev1.ProjectedVolumeSource) (Content, error) {
	result := Content{}
	for _, projection := range volume.Sources {
		content, err := r.project(ctx, projection, mode(volume.DefaultMode))
		if err != nil {
			return nil, err
		}
		maps.Copy(result, content)
	}
	return result, nil
}

func (r renderer) project(ctx context.Context, projection corev1.VolumeProjection, mode int32) (Content, error) {
	switch {
	case projection.Secret != nil:
		return r.secret(projection.Secret, mode)
	case projection.ConfigMap != nil:
		return r.configMap(projection.ConfigMap, mode)
	case projection.DownwardAPI != nil:
		return downward(r.pod, projection.DownwardAPI.Items, mode)
	case projection.ServiceAccountToken != nil:
		token, err := r.tokens.Token(ctx, r.pod, projection.ServiceAccountToken)
		return Content{projection.ServiceAccountToken.Path: {Data: []byte(token), Mode: mode}}, err
	}
	return nil, errors.New("the sandbox does not support this kind of projection")
}

func (r renderer) secret(projection *corev1.SecretProjection, mode int32) (Content, error) {
	object, err := r.objects.Secrets.Secrets(r.pod.Namespace).Get(projection.Name)
	if err != nil {
		return missing(err, projection.Optional)
	}
	return pick(object.Data, projection.Items, mode, projection.Optional, "secret "+projection.Name)
}

func (r renderer) configMap(projection *corev1.ConfigMapProjection, mode int32) (Content, error) {
	object, err := r.objects.ConfigMaps.ConfigMaps(r.pod.Namespace).Get(projection.Name)
	if err != nil {
		return missing(err, projection.Optional)
	}
	data := make(map[string][]byte, len(object.Data)+len(object.BinaryData))
	for key, value := range object.Data {
		data[key] = []byte(value)
	}
	maps.Copy(data, object.BinaryData)
	return pick(data, projection.Items, mode, projection.Optional, "configmap "+projection.Name)
}

// missing returns an empty volume if an optional object does not exist, and the error otherwise.
func missing(err error, optional *bool) (Content, error) {
	if apierrors.IsNotFound(err) && ptr.Deref(optional, false) {
		return Content{}, nil
	}
	return nil, err
}

// pick returns the files for the keys of an object: all keys, or only the keys in items at the items' paths.
func pick(data map[string][]byte, items []corev1.KeyToPath, mode int32, optional *bool, what string) (Content, error) {
	content := Content{}
	if len(items) == 0 {
		for key, value := range data {
			content[key] = File{Data: value, Mode: mode}
		}
		return content, nil
	}
	for _, item := range items {
		value, ok := data[item.Key]
		if ok {
			content[item.Path] = File{Data: value, Mode: ptr.Deref(item.Mode, mode)}
		} else if !ptr.Deref(optional, false) {
			return nil, fmt.Errorf("%s has no key %q", what, item.Key)
		}
	}
	return content, nil
}

func downward(pod *corev1.Pod, items []corev1.DownwardAPIVolumeFile, mode int32) (Content, error) {
	content := Content{}
	for _, item := range items {
		var value string
		var err error
		switch {
		case item.FieldRef != nil:
			value, err = source.Field(pod, item.FieldRef.FieldPath)
		case item.ResourceFieldRef != nil:
			value, err = source.Resource(pod, nil, item.ResourceFieldRef)
		}
		if err != nil {
			return nil, err
		}
		content[item.Path] = File{Data: []byte(value), Mode: ptr.Deref(item.Mode, mode)}
	}
	return content, nil
}

// Paths returns the paths of the files, sorted.
func (c Content) Paths() []string { return slices.SortedFunc(maps.Keys(c), cmp.Compare[string]) }

// Equal reports whether two contents have the same files with the same modes.
func (c Content) Equal(other Content) bool {
	return maps.EqualFunc(c, other, func(a, b File) bool { return a.Mode == b.Mode && string(a.Data) == string(b.Data) })
}
