package reconcile

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/pki"
	"quorate.dev/operator/validation"
)

// ensureConfiguration validates the files of the configuration and copies them into Secrets of the cluster, so that
// pods mount only validated files. If files are invalid, the last valid ones stay in use; if there are none, the spec
// counts as invalid.
func (r *Reconciler) ensureConfiguration(ctx context.Context, p *pass) error {
	if err := r.ensureEncryptionKeys(ctx, p); err != nil || !p.mayChange() {
		return err
	}
	if len(desired.Parts(p.cluster)) > 0 || p.configuration.Encryption != nil {
		if err := r.ensureFiles(ctx, p); err != nil || p.input.Invalid != nil {
			return err
		}
	}
	if p.cluster.Spec.Patches.Pod != nil {
		p.input.Invalid = r.validatePod(ctx, p)
	}
	return nil
}

func (r *Reconciler) ensureFiles(ctx context.Context, p *pass) error {
	current := &corev1.Secret{}
	found, err := r.find(ctx, p.cluster, desired.SecretName(p.cluster, desired.ConfigurationSecret), current)
	if err != nil {
		return err
	}
	if err := r.chooseFiles(ctx, p, current.Data); err != nil || p.input.Invalid != nil {
		return err
	}
	static := p.configuration.StaticSecret(p.cluster)
	if static != nil {
		if exists, err := r.find(ctx, p.cluster, static.Name, &corev1.Secret{}); err != nil || !exists {
			if err := errors.Join(err, r.create(ctx, p.cluster, static)); err != nil {
				return err
			}
		}
	}
	wanted := p.configuration.Secret(p.cluster, current.Data, p.state.Pods)
	if err := r.writeSecret(ctx, p.cluster, found, current, wanted); err != nil {
		return err
	}
	if found && !maps.EqualFunc(current.Data, wanted.Data, slices.Equal) {
		r.event(p.cluster, event{
			related: reference("Secret", current), reason: v1alpha1.ReasonConfigurationUpdated, action: "Update",
			message: "Updated the configuration in Secret " + current.Name + " with validated files",
		})
	}
	return r.deleteUnusedFiles(ctx, p, static)
}

// chooseFiles sets the files to those of the user or, if these are invalid, to the last valid ones.
func (r *Reconciler) chooseFiles(ctx context.Context, p *pass, last map[string][]byte) error {
	files, err := r.readFiles(ctx, p.cluster)
	if err != nil && !errors.Is(err, errMissing) {
		return err
	}
	var static string
	if err == nil {
		static, err = r.Checks.files(p.cluster, files)
	}
	if err != nil {
		p.input.ConfigurationErr = err
		files = lastFiles(p.cluster, last)
		var lastErr error
		if static, lastErr = r.Checks.files(p.cluster, files); lastErr != nil {
			p.input.ConfigurationErr, p.input.Invalid = nil, err
			return nil
		}
	}
	p.configuration.Files, p.configuration.Static = files, static
	return nil
}

// lastFiles returns the stored files of the parts in the spec.
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

// readFiles reads the files of the user. They may be in objects that the cluster does not own, which are not cached.
func (r *Reconciler) readFiles(ctx context.Context, cluster *v1alpha1.ApiServerCluster) (map[string][]byte, error) {
	files := map[string][]byte{}
	for _, part := range desired.Parts(cluster) {
		if ref := part.Files.ConfigMapRef; ref != nil {
			object := &corev1.ConfigMap{}
			if err := r.readSource(ctx, cluster, "ConfigMap", ref.Name, object); err != nil {
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
			if err := r.readSource(ctx, cluster, "Secret", ref.Name, object); err != nil {
				return nil, fmt.Errorf("%s: %w", part.Name, err)
			}
			for name, content := range object.Data {
				files[desired.FileKey(part.Name, name)] = content
			}
		}
	}
	return files, nil
}

func (r *Reconciler) readSource(
	ctx context.Context, cluster *v1alpha1.ApiServerCluster, kind, name string, into client.Object,
) error {
	err := r.Reader.Get(ctx, client.ObjectKey{Namespace: cluster.Namespace, Name: name}, into)
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("%s %s %w", kind, name, errMissing)
	}
	if err != nil {
		return fmt.Errorf("reading %s %s: %w", kind, name, err)
	}
	return nil
}

// deleteUnusedFiles deletes the Secrets with static files that no pod mounts.
func (r *Reconciler) deleteUnusedFiles(ctx context.Context, p *pass, current *corev1.Secret) error {
	list := &corev1.SecretList{}
	err := r.Client.List(ctx, list, client.InNamespace(p.cluster.Namespace),
		client.MatchingLabels(desired.Selector(p.cluster)), client.HasLabels{desired.ConfigurationLabel})
	if err != nil {
		return fmt.Errorf("listing Secrets of the configuration: %w", err)
	}
	for i := range list.Items {
		old := &list.Items[i]
		used := slices.ContainsFunc(p.state.Pods, func(pod corev1.Pod) bool { return desired.MountsConfiguration(&pod, old.Name) })
		if used || current != nil && old.Name == current.Name {
			continue
		}
		if err := r.Client.Delete(ctx, old); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("deleting Secret %s: %w", old.Name, err)
		}
	}
	return nil
}

// validatePod returns the hosting cluster's error for a pod with the patch of the spec. The pod is not created.
func (r *Reconciler) validatePod(ctx context.Context, p *pass) error {
	pod, err := desired.ExamplePod(p.cluster, p.state.Image, p.configuration)
	if err != nil {
		return err
	}
	return r.Checks.pod(p.cluster, p.state.Image, func() error {
		if err := controllerutil.SetControllerReference(p.cluster, pod, r.Client.Scheme()); err != nil {
			return err
		}
		err := r.Client.Create(ctx, pod, client.DryRunAll)
		quota := apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota")
		if !quota && (apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsForbidden(err)) {
			return fmt.Errorf("spec.patches.pod: %w", err)
		}
		return nil
	})
}

// mountedHash returns the hash of the files that pods mount and reload.
func (p *pass) mountedHash() string {
	reloaded := p.configuration.ReloadHash(p.cluster)
	if reloaded == "" {
		return p.certificates.hash()
	}
	return pki.Fingerprint([]byte(p.certificates.hash()), []byte(reloaded))
}

// Checks keeps the last results of validations, which take milliseconds to seconds. It is safe for concurrent use.
type Checks struct {
	mu      sync.Mutex
	results map[types.NamespacedName]map[string]checkResult // by kind of check
	pods    map[types.NamespacedName][]string               // UIDs of the pods whose version was read
}

type checkResult struct {
	input  [sha256.Size]byte
	static string
	err    error
}

// NewChecks returns a cache without results.
func NewChecks() *Checks {
	return &Checks{results: map[types.NamespacedName]map[string]checkResult{}, pods: map[types.NamespacedName][]string{}}
}

// forget drops the results of a cluster.
func (c *Checks) forget(key types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.results, key)
	delete(c.pods, key)
}

// files validates the files of a cluster.
func (c *Checks) files(cluster *v1alpha1.ApiServerCluster, files map[string][]byte) (string, error) {
	result := c.check("files", cluster, files, func() checkResult {
		configuration := desired.Configuration{Files: files}
		var err error
		configuration.Encryption, err = exampleEncryption(cluster)
		if err != nil {
			return checkResult{err: err}
		}
		static, err := validation.Check(cluster, configuration)
		return checkResult{static: static, err: err}
	})
	return result.static, result.err
}

func (c *Checks) pod(cluster *v1alpha1.ApiServerCluster, image string, do func() error) error {
	return c.check("pod", cluster, image, func() checkResult { return checkResult{err: do()} }).err
}

// check returns the last result of a kind of check if the spec and the input have not changed. Failing files are
// checked twice: the user's files, then the last valid ones.
func (c *Checks) check(kind string, cluster *v1alpha1.ApiServerCluster, input any, do func() checkResult) checkResult {
	text, err := json.Marshal([]any{cluster.Spec, input})
	if err != nil {
		return checkResult{err: fmt.Errorf("encode the input of a validation: %w", err)}
	}
	sum, key := sha256.Sum256(text), client.ObjectKeyFromObject(cluster)
	c.mu.Lock()
	last, found := c.results[key][kind]
	other, failed := c.results[key][kind+" failed"]
	c.mu.Unlock()
	switch {
	case found && last.input == sum:
		return last
	case failed && other.input == sum:
		return other
	}
	result := do()
	result.input = sum
	if result.err != nil {
		kind += " failed"
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.results[key] == nil {
		c.results[key] = map[string]checkResult{}
	}
	c.results[key][kind] = result
	return result
}
