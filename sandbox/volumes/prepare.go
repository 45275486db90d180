package volumes

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"

	"quorate.dev/sandbox/source"
)

// Source provides the API objects to which volumes refer.
type Source struct {
	Objects source.Objects
	Claims  corelisters.PersistentVolumeClaimLister
	Volumes corelisters.PersistentVolumeLister
	Tokens  Tokens
}

// Folders are the folders of one Pod's volumes.
type Folders struct {
	root    string // folder of the Pod
	source  Source
	paths   map[string]string // by name of the volume
	written map[string]Content
}

// NewFolders returns the Folders of a Pod whose folder is root.
func NewFolders(root string, source Source) *Folders {
	return &Folders{root: root, source: source, paths: map[string]string{}, written: map[string]Content{}}
}

// Path returns the folder of a volume, and false if the volume is not prepared.
func (f *Folders) Path(volume string) (string, bool) {
	path, ok := f.paths[volume]
	return path, ok
}

// Prepare creates the folders of all volumes of the Pod, and updates those whose API objects have changed. It is
// idempotent.
func (f *Folders) Prepare(ctx context.Context, pod *corev1.Pod) error {
	for _, volume := range pod.Spec.Volumes {
		path, err := f.prepare(ctx, pod, volume)
		if err != nil {
			return fmt.Errorf("volume %q: %w", volume.Name, err)
		}
		f.paths[volume.Name] = path
	}
	return nil
}

func (f *Folders) prepare(ctx context.Context, pod *corev1.Pod, volume corev1.Volume) (string, error) {
	folder := filepath.Join(f.root, "volumes", volume.Name)
	switch {
	case volume.EmptyDir != nil:
		return folder, os.MkdirAll(folder, 0o777)
	case volume.HostPath != nil:
		return existing(volume.HostPath.Path)
	case volume.PersistentVolumeClaim != nil:
		if path, ok := f.paths[volume.Name]; ok {
			return path, nil // the volume of a mounted claim does not change
		}
		return f.claimed(pod.Namespace, volume.PersistentVolumeClaim.ClaimName)
	case volume.Secret != nil, volume.ConfigMap != nil, volume.DownwardAPI != nil, volume.Projected != nil:
		return folder, f.render(ctx, pod, volume, folder)
	}
	return "", fmt.Errorf("the sandbox does not support this kind of volume")
}

func (f *Folders) render(ctx context.Context, pod *corev1.Pod, volume corev1.Volume, folder string) error {
	content, err := Render(ctx, pod, volume.VolumeSource, f.source.Objects, f.source.Tokens)
	if err != nil {
		return err
	}
	if written, ok := f.written[volume.Name]; ok && written.Equal(content) {
		return nil
	}
	if err := Write(folder, content); err != nil {
		return err
	}
	f.written[volume.Name] = content
	return nil
}

// claimed returns the folder of a claim's volume. It does not create a missing folder: without its data, the Pod must
// not start.
func (f *Folders) claimed(namespace, name string) (string, error) {
	claim, err := f.source.Claims.PersistentVolumeClaims(namespace).Get(name)
	if err != nil {
		return "", err
	}
	if claim.Status.Phase != corev1.ClaimBound || claim.DeletionTimestamp != nil {
		return "", fmt.Errorf("persistentvolumeclaim %q is not bound", name)
	}
	volume, err := f.source.Volumes.Get(claim.Spec.VolumeName)
	if err != nil {
		return "", err
	}
	if volume.Spec.HostPath == nil {
		return "", fmt.Errorf("persistentvolume %q is not a hostPath volume", volume.Name)
	}
	return existing(volume.Spec.HostPath.Path)
}

func existing(folder string) (string, error) {
	_, err := os.Stat(folder)
	return folder, err
}
