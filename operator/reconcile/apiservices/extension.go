package apiservices

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/reconcile/owned"
)

// Host describes how API servers in mode Extension reach their host, which is the hosting cluster.
type Host struct {
	Server string // URL of the API server
	// Path of the PEM certificates that verify Server, read in each reconciliation; takes precedence over CAData.
	CAFile string
	CAData []byte
}

// trusted returns the PEM certificates that verify the host.
func (h Host) trusted() ([]byte, error) {
	if h.CAFile == "" {
		return h.CAData, nil
	}
	data, err := os.ReadFile(h.CAFile)
	if err != nil {
		return nil, fmt.Errorf("read the authority of the hosting cluster: %w", err)
	}
	return data, nil
}

// EnsureHostAccess maintains what API servers in mode Extension need in their host: a ServiceAccount, its bindings, and
// a kubeconfig. The certificates that verify the host are read in each reconciliation, because the host may replace
// them. A missing permission of the operator is reported with the manifest that grants it.
func EnsureHostAccess(ctx context.Context, objects owned.Objects, cluster *v1alpha1.ApiServerCluster, host Host) error {
	if !cluster.IsExtension() {
		return nil
	}
	trusted, err := host.trusted()
	if err != nil {
		return err
	}
	kubeconfig, err := desired.HostKubeconfig(cluster, host.Server, trusted)
	if err != nil {
		return err
	}
	errs := []error{objects.EnsureSecret(ctx, cluster, kubeconfig), ensureServiceAccount(ctx, objects, cluster)}
	for _, binding := range desired.HostClusterRoleBindings(cluster) {
		current := &rbacv1.ClusterRoleBinding{}
		errs = append(errs, ensureBinding(ctx, objects, cluster, binding, current, func() {
			current.Subjects = binding.Subjects
		}))
	}
	binding, current := desired.HostRoleBinding(cluster), &rbacv1.RoleBinding{}
	errs = append(errs, ensureBinding(ctx, objects, cluster, binding, current, func() {
		current.Subjects = binding.Subjects
	}))
	if err := errors.Join(errs...); apierrors.IsForbidden(err) {
		return fmt.Errorf("%w; apply manifests/extension.yaml, which grants the operator the permissions for mode Extension",
			err)
	} else if err != nil {
		return err
	}
	return nil
}

// ensureServiceAccount creates the ServiceAccount in the host. It returns owned.ErrForeign if another owner has one
// with the name: the pods would run with the permissions of that account, and the bindings would give it permissions
// that it should not have.
func ensureServiceAccount(ctx context.Context, objects owned.Objects, cluster *v1alpha1.ApiServerCluster) error {
	wanted, current := desired.HostServiceAccount(cluster), &corev1.ServiceAccount{}
	err := objects.Reader.Get(ctx, client.ObjectKeyFromObject(wanted), current)
	switch {
	case apierrors.IsNotFound(err):
		return objects.Create(ctx, cluster, wanted)
	case err != nil:
		return fmt.Errorf("read service account %s: %w", wanted.Name, err)
	case !metav1.IsControlledBy(current, cluster):
		return owned.ForeignError(current)
	}
	return nil
}

// ensureBinding creates a binding, or updates its subjects. The role of a binding is immutable and always the same.
func ensureBinding(
	ctx context.Context, objects owned.Objects, cluster *v1alpha1.ApiServerCluster,
	wanted, current client.Object, set func(),
) error {
	_, err := inHost(objects, cluster).Ensure(ctx, wanted, current, set)
	return err
}

// inHost returns the access to the cluster-scoped objects of a cluster in mode Extension in its host.
func inHost(objects owned.Objects, cluster *v1alpha1.ApiServerCluster) owned.Labeled {
	return owned.Labeled{API: uncached{objects.Client, objects.Reader}, Selector: desired.ExtensionSelector(cluster)}
}

// uncached is a client that reads from the API server, because the operator neither lists nor watches cluster-scoped
// objects.
type uncached struct {
	client.Client
	reader client.Reader
}

// Get implements client.Client.
func (u uncached) Get(
	ctx context.Context, key client.ObjectKey, into client.Object, options ...client.GetOption,
) error {
	return u.reader.Get(ctx, key, into, options...)
}

// List implements client.Client.
func (u uncached) List(ctx context.Context, into client.ObjectList, options ...client.ListOption) error {
	return u.reader.List(ctx, into, options...)
}

// ensureInHost registers the groups of a cluster in mode Extension in its host. An APIService is created once a ready
// API server serves its version: an APIService that is not available would fail the host's discovery, and with it the
// deletion of namespaces and the garbage collection. Once created, it stays even while no API server is ready.
func (s Steps) ensureInHost(ctx context.Context, in Input) Result {
	cluster := in.State.Cluster
	wanted := desired.HostAPIServices(cluster, in.Credentials.Trusted)
	var names []string
	for _, service := range wanted {
		names = append(names, service.Name)
	}
	if announced := announce(cluster, names); announced != nil {
		return Result{Statuses: announced, Announced: true}
	}
	g := registrar{Labeled: inHost(s.Objects, cluster), objects: s.Objects, cluster: cluster}
	statuses := []v1alpha1.APIServiceStatus{}
	keep := map[client.ObjectKey]bool{}
	for _, service := range wanted {
		keep[client.ObjectKeyFromObject(service)] = true
		statuses = append(statuses, s.registerInHost(ctx, &g, in, service))
	}
	if err := g.prune(ctx, keep, &apiregistrationv1.APIServiceList{}); err != nil {
		return in.unavailable(names, v1alpha1.ReasonRegistrationFailed,
			"Removed APIServices could not be deleted: "+err.Error())
	}
	return in.result(statuses)
}

// registerInHost creates or updates an APIService in the host and returns its status. If the APIService cannot be read,
// registerInHost does not create it: whether an API server has to serve its version first is unknown.
func (s Steps) registerInHost(
	ctx context.Context, g *registrar, in Input, wanted *apiregistrationv1.APIService,
) v1alpha1.APIServiceStatus {
	status := v1alpha1.APIServiceStatus{Name: wanted.Name, Available: metav1.ConditionUnknown}
	err := g.API.Get(ctx, client.ObjectKeyFromObject(wanted), &apiregistrationv1.APIService{})
	if apierrors.IsNotFound(err) {
		if reason, message := s.served(ctx, in, wanted); reason != "" {
			status.Reason, status.Message = reason, message
			return status
		}
		err = nil
	}
	if err == nil {
		err = g.ensureAPIService(ctx, wanted)
	}
	if err != nil {
		status.Available, status.Reason, status.Message =
			metav1.ConditionFalse, v1alpha1.ReasonRegistrationFailed, err.Error()
		if errors.Is(err, owned.ErrForeign) {
			status.Reason = v1alpha1.ReasonConflict
		}
		return status
	}
	return apiServiceStatus(wanted)
}

// served returns why no API server serves the version of an APIService yet, as the reason and message of a status, or
// "". It requests the group version from one ready replica. It is called only before the APIService is created: later,
// the condition Available shows it, which the aggregator of the host sets.
func (s Steps) served(ctx context.Context, in Input, service *apiregistrationv1.APIService) (reason, message string) {
	if in.State.ReadyAddress() == "" {
		return v1alpha1.ReasonNoReadyReplicas, "no API server is ready"
	}
	path := "/apis/" + service.Spec.Group + "/" + service.Spec.Version
	if err := s.Discover(ctx, in.Credentials.Hosted(in.State), path); err != nil {
		return v1alpha1.ReasonNotServed, "waiting for its CustomResourceDefinitions in the cluster: " + err.Error()
	}
	return "", ""
}

// Outdated returns the APIServices in the host whose caBundle is not the current one, trusted.
func Outdated(
	ctx context.Context, reader client.Reader, cluster *v1alpha1.ApiServerCluster, trusted []byte,
) ([]string, error) {
	if !cluster.IsExtension() {
		return nil, nil
	}
	var list apiregistrationv1.APIServiceList
	if err := reader.List(ctx, &list, client.MatchingLabels(desired.ExtensionSelector(cluster))); err != nil {
		return nil, fmt.Errorf("list APIServices: %w", err)
	}
	var outdated []string
	for i := range list.Items {
		if !bytes.Equal(list.Items[i].Spec.CABundle, trusted) {
			outdated = append(outdated, "apiservice/"+list.Items[i].Name)
		}
	}
	return outdated, nil
}

// Unregister deletes the APIServices of a cluster in mode Extension before its API servers, so that the host does not
// wait for responses of servers that are gone. It returns the results of removeSelected: the deletion of the cluster
// continues once no APIService is left.
func Unregister(
	ctx context.Context, objects owned.Objects, cluster *v1alpha1.ApiServerCluster,
) (deleted, terminating int, err error) {
	return removeSelected(ctx, objects, cluster, &apiregistrationv1.APIServiceList{})
}

// RevokeHostAccess deletes the bindings of a cluster in mode Extension in its host.
func RevokeHostAccess(ctx context.Context, objects owned.Objects, cluster *v1alpha1.ApiServerCluster) error {
	var errs []error
	for _, binding := range desired.HostClusterRoleBindings(cluster) {
		errs = append(errs, removeOwned(ctx, objects, cluster, binding, &rbacv1.ClusterRoleBinding{}))
	}
	return errors.Join(append(errs,
		removeOwned(ctx, objects, cluster, desired.HostRoleBinding(cluster), &rbacv1.RoleBinding{}))...)
}

// removeOwned deletes an object in the host if it has the labels of the cluster. current is an empty object of its
// kind.
func removeOwned(
	ctx context.Context, objects owned.Objects, cluster *v1alpha1.ApiServerCluster, object, current client.Object,
) error {
	err := objects.Reader.Get(ctx, client.ObjectKeyFromObject(object), current)
	if err != nil || !desired.ExtensionSelector(cluster).AsSelector().Matches(labels.Set(current.GetLabels())) {
		return client.IgnoreNotFound(err)
	}
	if err := objects.Client.Delete(ctx, current); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete %s: %w", object.GetName(), err)
	}
	return nil
}

// removeSelected deletes the objects of one kind in the host that have the labels of the cluster. It returns the number
// of objects that it has deleted, and the number of objects that were deleted earlier and wait for their finalizers.
func removeSelected(
	ctx context.Context, objects owned.Objects, cluster *v1alpha1.ApiServerCluster, list client.ObjectList,
) (deleted, terminating int, err error) {
	if err := objects.Reader.List(ctx, list, client.MatchingLabels(desired.ExtensionSelector(cluster))); err != nil {
		return 0, 0, fmt.Errorf("list the objects of the cluster in the host: %w", err)
	}
	err = meta.EachListItem(list, func(item runtime.Object) error {
		object, ok := item.(client.Object)
		if !ok {
			return nil
		}
		if object.GetDeletionTimestamp() != nil { // the object waits for its finalizers
			terminating++
			return nil
		}
		deleted++
		if err := objects.Client.Delete(ctx, object); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete %s: %w", object.GetName(), err)
		}
		return nil
	})
	return deleted, terminating, err
}
