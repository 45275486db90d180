package reconcile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
)

// Host describes how API servers in mode Extension reach their host.
type Host struct {
	Server string // URL
	CAFile string // takes precedence over CAData; read again by every reconciliation
	CAData []byte
}

// trusted returns the certificates that verify the host.
func (h Host) trusted() ([]byte, error) {
	if h.CAFile == "" {
		return h.CAData, nil
	}
	data, err := os.ReadFile(h.CAFile)
	if err != nil {
		return nil, fmt.Errorf("reading the authority of the hosting cluster: %w", err)
	}
	return data, nil
}

// ensureHostAccess maintains the ServiceAccount and the bindings of API servers in mode Extension in their host, and
// the kubeconfig that they use.
func (r *Reconciler) ensureHostAccess(ctx context.Context, p *pass) error {
	if !p.cluster.IsExtension() {
		return nil
	}
	trusted, err := r.Host.trusted()
	if err != nil {
		return err
	}
	kubeconfig, err := desired.HostKubeconfig(p.cluster, r.Host.Server, trusted)
	if err != nil {
		return err
	}
	errs := []error{r.ensureSecret(ctx, p.cluster, kubeconfig), r.ensureServiceAccount(ctx, p.cluster)}
	for _, binding := range desired.HostClusterRoleBindings(p.cluster) {
		current := &rbacv1.ClusterRoleBinding{}
		errs = append(errs, r.ensureBinding(ctx, p.cluster, binding, current, func() { current.Subjects = binding.Subjects }))
	}
	binding, current := desired.HostRoleBinding(p.cluster), &rbacv1.RoleBinding{}
	errs = append(errs, r.ensureBinding(ctx, p.cluster, binding, current, func() { current.Subjects = binding.Subjects }))
	if err := errors.Join(errs...); apierrors.IsForbidden(err) {
		return fmt.Errorf("%w; apply manifests/extension.yaml, which grants the operator the permissions for mode Extension", err)
	} else if err != nil {
		return err
	}
	return nil
}

func (r *Reconciler) ensureServiceAccount(ctx context.Context, cluster *v1alpha1.ApiServerCluster) error {
	wanted, current := desired.HostServiceAccount(cluster), &corev1.ServiceAccount{}
	err := r.Reader.Get(ctx, client.ObjectKeyFromObject(wanted), current)
	switch {
	case apierrors.IsNotFound(err):
		return r.create(ctx, cluster, wanted)
	case err != nil:
		return fmt.Errorf("reading service account %s: %w", wanted.Name, err)
	case !metav1.IsControlledBy(current, cluster):
		return foreignError(wanted.Name)
	}
	return nil
}

// ensureBinding creates a binding, or updates its subjects. Its role never changes.
func (r *Reconciler) ensureBinding(
	ctx context.Context, cluster *v1alpha1.ApiServerCluster, wanted, current client.Object, set func(),
) error {
	g := registrar{api: uncached{r.Client, r.Reader}, selector: desired.ExtensionSelector(cluster)}
	_, err := g.ensure(ctx, wanted, current, set)
	return err
}

// uncached is a client that reads from the API server: the operator neither lists nor watches cluster-scoped objects.
type uncached struct {
	client.Client
	reader client.Reader
}

// Get implements client.Client.
func (u uncached) Get(ctx context.Context, key client.ObjectKey, into client.Object, options ...client.GetOption) error {
	return u.reader.Get(ctx, key, into, options...)
}

// List implements client.Client.
func (u uncached) List(ctx context.Context, into client.ObjectList, options ...client.ListOption) error {
	return u.reader.List(ctx, into, options...)
}

// ensureHostAPIServices registers the groups of a cluster in mode Extension in its host. An APIService is created once
// a ready API server serves its version, because the host's discovery, and with it namespace deletion and garbage
// collection, wait for every APIService. It is then kept, even while no API server is ready.
func (r *Reconciler) ensureHostAPIServices(ctx context.Context, p *pass) error {
	wanted := desired.HostAPIServices(p.cluster, p.certificates.trusted)
	var names []string
	for _, service := range wanted {
		names = append(names, service.Name)
	}
	if p.announce(names) {
		return nil
	}
	g := registrar{
		Reconciler: r, pass: p, api: uncached{r.Client, r.Reader}, selector: desired.ExtensionSelector(p.cluster),
	}
	statuses := []v1alpha1.APIServiceStatus{}
	keep := map[client.ObjectKey]bool{}
	for _, service := range wanted {
		keep[client.ObjectKeyFromObject(service)] = true
		statuses = append(statuses, g.registerInHost(ctx, service))
	}
	if err := g.prune(ctx, keep, &apiregistrationv1.APIServiceList{}); err != nil {
		p.unavailable(names, v1alpha1.ReasonRegistrationFailed, "deleting removed APIServices: "+err.Error())
		return nil
	}
	p.setAPIServices(statuses)
	return nil
}

func (g *registrar) registerInHost(ctx context.Context, wanted *apiregistrationv1.APIService) v1alpha1.APIServiceStatus {
	status := v1alpha1.APIServiceStatus{Name: wanted.Name, Available: metav1.ConditionUnknown}
	err := g.api.Get(ctx, client.ObjectKeyFromObject(wanted), &apiregistrationv1.APIService{})
	if apierrors.IsNotFound(err) {
		if reason, message := g.served(ctx, wanted); reason != "" {
			status.Reason, status.Message = reason, message
			return status
		}
	}
	if err := g.ensureAPIService(ctx, wanted); err != nil {
		status.Available, status.Reason, status.Message = metav1.ConditionFalse, v1alpha1.ReasonRegistrationFailed, err.Error()
		if errors.Is(err, errForeign) {
			status.Reason = v1alpha1.ReasonConflict
		}
		return status
	}
	return apiServiceStatus(wanted)
}

// served returns why the API servers do not serve the version of an APIService, or "".
func (g *registrar) served(ctx context.Context, service *apiregistrationv1.APIService) (reason, message string) {
	if g.pass.state.ReadyAddress() == "" {
		return v1alpha1.ReasonNoReadyReplicas, "no API server is ready"
	}
	path := "/apis/" + service.Spec.Group + "/" + service.Spec.Version
	if err := g.Discover(ctx, g.pass.hosted(), path); err != nil {
		return v1alpha1.ReasonNotServed, "waiting for its CustomResourceDefinitions in the cluster: " + err.Error()
	}
	return "", ""
}

// Discover returns an error if an API server does not serve a group version.
func Discover(ctx context.Context, config *rest.Config, path string) error {
	requests, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+path, nil)
	if err != nil {
		return err
	}
	response, err := requests.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if _, err := io.Copy(io.Discard, io.LimitReader(response.Body, discoveryLimit)); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", path, response.Status)
	}
	return nil
}

const discoveryLimit = 4 << 20 // bytes

// outdatedAPIServices returns the APIServices in the host that do not have the present caBundle.
func (r *Reconciler) outdatedAPIServices(ctx context.Context, p *pass) ([]string, error) {
	if !p.cluster.IsExtension() {
		return nil, nil
	}
	var list apiregistrationv1.APIServiceList
	if err := r.Reader.List(ctx, &list, client.MatchingLabels(desired.ExtensionSelector(p.cluster))); err != nil {
		return nil, fmt.Errorf("listing APIServices: %w", err)
	}
	var outdated []string
	for i := range list.Items {
		if !bytes.Equal(list.Items[i].Spec.CABundle, p.certificates.trusted) {
			outdated = append(outdated, "apiservice/"+list.Items[i].Name)
		}
	}
	return outdated, nil
}

// unregister deletes the APIServices of a cluster in mode Extension, so that the host does not wait for API servers
// that are being deleted. It reports whether all are gone.
func (r *Reconciler) unregister(ctx context.Context, cluster *v1alpha1.ApiServerCluster) (left bool, err error) {
	n, err := r.removeSelected(ctx, cluster, &apiregistrationv1.APIServiceList{})
	return n > 0, err
}

// revokeHostAccess deletes the permissions of a cluster in mode Extension.
func (r *Reconciler) revokeHostAccess(ctx context.Context, cluster *v1alpha1.ApiServerCluster) error {
	var errs []error
	for _, binding := range desired.HostClusterRoleBindings(cluster) {
		errs = append(errs, r.removeOwned(ctx, cluster, binding, &rbacv1.ClusterRoleBinding{}))
	}
	return errors.Join(append(errs, r.removeOwned(ctx, cluster, desired.HostRoleBinding(cluster), &rbacv1.RoleBinding{}))...)
}

// removeOwned deletes an object if it has the labels of the cluster.
func (r *Reconciler) removeOwned(ctx context.Context, cluster *v1alpha1.ApiServerCluster, object, current client.Object) error {
	err := r.Reader.Get(ctx, client.ObjectKeyFromObject(object), current)
	if err != nil || !desired.ExtensionSelector(cluster).AsSelector().Matches(labels.Set(current.GetLabels())) {
		return client.IgnoreNotFound(err)
	}
	if err := r.Client.Delete(ctx, current); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting %s: %w", object.GetName(), err)
	}
	return nil
}

// removeSelected deletes the objects of one kind in the host that have the labels of the cluster, and returns their
// number.
func (r *Reconciler) removeSelected(
	ctx context.Context, cluster *v1alpha1.ApiServerCluster, list client.ObjectList,
) (n int, err error) {
	if err := r.Reader.List(ctx, list, client.MatchingLabels(desired.ExtensionSelector(cluster))); err != nil {
		return 0, fmt.Errorf("listing the objects of the cluster in the host: %w", err)
	}
	err = meta.EachListItem(list, func(item runtime.Object) error {
		object, ok := item.(client.Object)
		if !ok {
			return nil
		}
		n++
		if err := r.Client.Delete(ctx, object); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("deleting %s: %w", object.GetName(), err)
		}
		return nil
	})
	return n, err
}
