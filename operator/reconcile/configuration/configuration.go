package configuration

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/observed"
	"quorate.dev/operator/reconcile/owned"
)

// Steps validates the configuration and stores its files.
type Steps struct {
	Objects owned.Objects
	Checks  *Checks
}

// Result is the result of Ensure.
type Result struct {
	Files  map[string][]byte // validated files
	Static string            // the part of the configuration that API servers read only when they start
	// Rejected is why the user's files cannot be used. The last valid files are in use.
	Rejected error
	Invalid  error // why the spec counts as invalid
}

// Ensure validates the files of the configuration and copies them into Secrets of the cluster, so that pods mount only
// validated files. If the user's files are invalid, the last valid files stay in use; without valid files, the spec
// counts as invalid. The given configuration contains only the settings of the encryption at rest.
func (s Steps) Ensure(
	ctx context.Context, state *observed.State, configuration desired.Configuration,
) (result Result, err error) {
	cluster := state.Cluster
	if len(desired.Parts(cluster)) > 0 || configuration.Encryption != nil {
		if result, err = s.ensureFiles(ctx, state, configuration); err != nil || result.Invalid != nil {
			return result, err
		}
	}
	if cluster.Spec.Patches.Pod != nil {
		configuration.Files, configuration.Static = result.Files, result.Static
		result.Invalid = s.validatePod(ctx, state, configuration)
	}
	return result, nil
}

// ensureFiles chooses the files and stores them: static files, which API servers read only when they start, in a Secret
// whose name contains their hash, so that running pods keep theirs, and reloadable files in one Secret that is updated.
// Both are stored before pods are created from them.
func (s Steps) ensureFiles(
	ctx context.Context, state *observed.State, configuration desired.Configuration,
) (Result, error) {
	cluster, current := state.Cluster, &corev1.Secret{}
	found, err := s.Objects.Find(ctx, cluster, desired.SecretName(cluster, desired.ConfigurationSecret), current)
	if err != nil {
		return Result{}, err
	}
	result, err := s.chooseFiles(ctx, cluster, current.Data)
	if err != nil || result.Invalid != nil {
		return result, err
	}
	configuration.Files, configuration.Static = result.Files, result.Static
	static := configuration.StaticSecret(cluster)
	if static != nil {
		if exists, err := s.Objects.Find(ctx, cluster, static.Name, &corev1.Secret{}); err != nil || !exists {
			if err := errors.Join(err, s.Objects.Create(ctx, cluster, static)); err != nil {
				return result, err
			}
		}
	}
	wanted := configuration.Secret(cluster, current.Data, state.Pods)
	if err := s.Objects.WriteSecret(ctx, cluster, found, current, wanted); err != nil {
		return result, err
	}
	if found && !maps.EqualFunc(current.Data, wanted.Data, slices.Equal) {
		s.Objects.Event(cluster, owned.Event{
			Related: owned.Reference("Secret", current), Reason: v1alpha1.ReasonConfigurationUpdated, Action: "Update",
			Message: "Updated the configuration in Secret " + current.Name + " with validated files",
		})
	}
	return result, s.deleteUnusedFiles(ctx, state, static)
}

// chooseFiles returns the user's files or, if these are invalid, the last valid files. A missing object counts as an
// invalid file, because a user may delete and recreate it. Any other error of reading is returned: nothing is known
// about the files, so that they must not be reported as rejected. The last valid files are validated as well, since the
// spec may have changed so that they no longer fit. If both are invalid, the error about the user's files is reported.
func (s Steps) chooseFiles(
	ctx context.Context, cluster *v1alpha1.ApiServerCluster, last map[string][]byte,
) (Result, error) {
	files, err := readFiles(ctx, s.Objects.Reader, cluster)
	if err != nil && !errors.Is(err, errMissing) {
		return Result{}, err
	}
	var static string
	if err == nil {
		static, err = s.Checks.files(cluster, files)
	}
	if err == nil {
		return Result{Files: files, Static: static}, nil
	}
	files = lastFiles(cluster, last)
	static, lastErr := s.Checks.files(cluster, files)
	if lastErr != nil {
		return Result{Invalid: err}, nil
	}
	return Result{Files: files, Static: static, Rejected: err}, nil
}

// lastFiles returns the stored files of the parts that are still in the spec.
func lastFiles(cluster *v1alpha1.ApiServerCluster, stored map[string][]byte) map[string][]byte {
	files := map[string][]byte{}
	for _, part := range desired.Parts(cluster) {
		for key, content := range stored {
			if strings.HasPrefix(key, part.Name+".") {
				files[key] = content
			}
		}
	}
	return files
}

// errMissing marks errors about files that do not exist.
var errMissing = errors.New("does not exist")

// readFiles reads the files from the objects that the spec names. The cluster may not own them, so they are not cached.
func readFiles(
	ctx context.Context, reader client.Reader, cluster *v1alpha1.ApiServerCluster,
) (map[string][]byte, error) {
	files := map[string][]byte{}
	for _, part := range desired.Parts(cluster) {
		if ref := part.Files.ConfigMapRef; ref != nil {
			object := &corev1.ConfigMap{}
			if err := readSource(ctx, reader, cluster, "ConfigMap", ref.Name, object); err != nil {
				return nil, fmt.Errorf("%s: %w", part.Name, err)
			}
			for name, content := range object.Data {
				files[desired.FileKey(part.Name, name)] = []byte(content)
			}
			for name, content := range object.BinaryData {
				files[desired.FileKey(part.Name, name)] = content
			}
		}
		if ref := part.Files.SecretRef; ref != nil {
			object := &corev1.Secret{}
			if err := readSource(ctx, reader, cluster, "Secret", ref.Name, object); err != nil {
				return nil, fmt.Errorf("%s: %w", part.Name, err)
			}
			for name, content := range object.Data {
				files[desired.FileKey(part.Name, name)] = content
			}
		}
	}
	return files, nil
}

func readSource(
	ctx context.Context, reader client.Reader, cluster *v1alpha1.ApiServerCluster, kind, name string, into client.Object,
) error {
	err := reader.Get(ctx, client.ObjectKey{Namespace: cluster.Namespace, Name: name}, into)
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("%s %s %w", kind, name, errMissing)
	}
	if err != nil {
		return fmt.Errorf("read %s %s: %w", kind, name, err)
	}
	return nil
}

// deleteUnusedFiles deletes the Secrets of static files that no pod mounts, except the current one, from which the next
// pods are created.
func (s Steps) deleteUnusedFiles(ctx context.Context, state *observed.State, current *corev1.Secret) error {
	list := &corev1.SecretList{}
	err := s.Objects.Client.List(ctx, list, client.InNamespace(state.Cluster.Namespace),
		client.MatchingLabels(desired.Selector(state.Cluster)), client.HasLabels{desired.ConfigurationLabel})
	if err != nil {
		return fmt.Errorf("list Secrets of the configuration: %w", err)
	}
	for i := range list.Items {
		old := &list.Items[i]
		used := slices.ContainsFunc(state.Pods, func(pod corev1.Pod) bool {
			return desired.MountsConfiguration(&pod, old.Name)
		})
		if used || current != nil && old.Name == current.Name {
			continue
		}
		if err := s.Objects.Client.Delete(ctx, old); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete Secret %s: %w", old.Name, err)
		}
	}
	return nil
}

// validatePod returns the error of the hosting cluster for a pod with the patch in the spec. It sends a dry run, so no
// pod is created. Without it, an invalid patch would be found only after the rollout has deleted the first pod. An
// exceeded quota is not an error of the patch: it may be raised, and concerns the number of pods. After any other
// error, such as a timeout, the pod counts as valid, and the next reconciliation sends it again.
func (s Steps) validatePod(ctx context.Context, state *observed.State, configuration desired.Configuration) error {
	pod, err := desired.ExamplePod(state.Cluster, state.Image, configuration)
	if err != nil {
		return err
	}
	return s.Checks.pod(state.Cluster, state.Image, func() (accepted bool, err error) {
		if err := controllerutil.SetControllerReference(state.Cluster, pod, s.Objects.Client.Scheme()); err != nil {
			return false, err
		}
		switch err = s.Objects.Client.Create(ctx, pod, client.DryRunAll); {
		case err == nil, apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota"):
			return true, nil
		case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsForbidden(err):
			return false, fmt.Errorf("spec.patches.pod: %w", err)
		}
		return false, nil
	})
}
