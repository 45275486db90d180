package apiservices

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/observed"
	"quorate.dev/operator/reconcile/credentials"
	"quorate.dev/operator/reconcile/owned"
)

const (
	// registrationInterval is the requeue interval while an APIService is not available, during the first
	// registrationPeriod.
	registrationInterval = 2 * time.Second
	registrationPeriod   = time.Minute
)

// registerAction is the action in events about APIServices.
const registerAction = "Register"

// registrationEvents are the reasons and messages of the events for changes of an APIService.
var registrationEvents = map[owned.Change][2]string{
	owned.Created: {v1alpha1.ReasonAPIServiceRegistered, "Registered APIService "},
	owned.Updated: {v1alpha1.ReasonAPIServiceUpdated, "Updated APIService "},
}

// Steps registers extension API servers inside a cluster, and a cluster in mode Extension in its host.
type Steps struct {
	Objects owned.Objects
	// Connect returns a client for the API servers of a cluster.
	Connect func(*rest.Config) (client.Client, error)
	// Discover returns an error unless the API servers of a cluster serve the path of a group version.
	Discover func(ctx context.Context, config *rest.Config, path string) error
}

// Input is what Ensure depends on.
type Input struct {
	State       *observed.State
	Credentials credentials.Set
	Now         time.Time
}

// Result is the result of Ensure.
type Result struct {
	Statuses *[]v1alpha1.APIServiceStatus // nil: unknown
	// Announced reports that APIServices are missing in the stored status, which lists an APIService before it is
	// created. The next reconciliation creates them.
	Announced bool
	Due       time.Time // when the APIServices are due for another look; zero: with the next reconciliation
}

// Ensure registers the extension API servers of spec.aggregation inside the cluster, and deletes registrations that are
// no longer in the spec. It registers a cluster in mode Extension in its host. The status lists an APIService before it
// is created, so that it is deleted later even if the operator crashes between the creation and the next write of the
// status. A failure concerns one APIService and is reported in its status, not as an error.
func (s Steps) Ensure(ctx context.Context, in Input) (Result, error) {
	cluster := in.State.Cluster
	if cluster.IsExtension() {
		return s.ensureInHost(ctx, in), nil
	}
	wanted := cluster.Spec.Aggregation.APIServices
	if len(wanted) == 0 && len(cluster.Status.APIServices) == 0 {
		return Result{}, nil
	}
	names := apiServiceNames(wanted)
	if announced := announce(cluster, names); announced != nil {
		return Result{Statuses: announced, Announced: true}, nil
	}
	if in.State.ReadyAddress() == "" {
		return in.unavailable(names, v1alpha1.ReasonNoReadyReplicas, "no API server is ready"), nil
	}
	if pod := withoutAggregatorRouting(in.State); pod != "" && len(wanted) > 0 {
		return in.unavailable(names, v1alpha1.ReasonPending,
			"waiting for pod "+pod+" to restart with --enable-aggregator-routing"), nil
	}
	hosted, err := s.Connect(in.Credentials.Hosted(in.State))
	if err != nil {
		return Result{}, err
	}
	g := registrar{
		Labeled: owned.Labeled{API: hosted, Selector: desired.RegistrationSelector(cluster)},
		objects: s.Objects, cluster: cluster,
	}
	statuses := []v1alpha1.APIServiceStatus{}
	keep := map[client.ObjectKey]bool{}
	for i := range wanted {
		statuses = append(statuses, g.register(ctx, &wanted[i], keep))
	}
	// Removed APIServices stay in the status until prune succeeds.
	if err := g.prune(ctx, keep, registrations()...); err != nil {
		return in.unavailable(names, v1alpha1.ReasonRegistrationFailed,
			"Removed APIServices could not be deleted: "+err.Error()), nil
	}
	return in.result(statuses), nil
}

// withoutAggregatorRouting returns the name of a pod that cannot reach the endpoints of extension API servers, because
// it was started without --enable-aggregator-routing, or "". Such a pod would report the APIServices as unavailable.
// The flag is part of the hash of the spec, so that a rollout replaces the pod.
func withoutAggregatorRouting(state *observed.State) string {
	for i := range state.Pods {
		if pod := &state.Pods[i]; !desired.RoutesToEndpoints(pod) {
			return pod.Name
		}
	}
	return ""
}

func apiServiceNames(entries []v1alpha1.AggregatedAPIService) []string {
	names := make([]string, 0, len(entries))
	for i := range entries {
		names = append(names, desired.APIServiceName(entries[i].Group, entries[i].Version))
	}
	return names
}

// announce returns the status with APIServices that are not created yet, or nil if the status lists all of them.
func announce(cluster *v1alpha1.ApiServerCluster, names []string) *[]v1alpha1.APIServiceStatus {
	statuses := slices.Clone(cluster.Status.APIServices)
	for _, name := range names {
		if !slices.ContainsFunc(statuses, func(s v1alpha1.APIServiceStatus) bool { return s.Name == name }) {
			statuses = append(statuses, v1alpha1.APIServiceStatus{
				Name: name, Available: metav1.ConditionUnknown, Reason: v1alpha1.ReasonPending, Message: "it is not registered yet",
			})
		}
	}
	if len(statuses) == len(cluster.Status.APIServices) {
		return nil
	}
	return &statuses
}

// unavailable reports the same reason for all APIServices, including those that still have to be deleted: an APIService
// that disappeared from the status would not be deleted later.
func (in Input) unavailable(names []string, reason, message string) Result {
	for _, s := range in.State.Cluster.Status.APIServices {
		if !slices.Contains(names, s.Name) {
			names = append(names, s.Name)
		}
	}
	statuses := make([]v1alpha1.APIServiceStatus, 0, len(names))
	for _, name := range names {
		statuses = append(statuses, v1alpha1.APIServiceStatus{
			Name: name, Available: metav1.ConditionUnknown, Reason: reason, Message: message,
		})
	}
	return in.result(statuses)
}

// result returns the status of the APIServices, and requests a reconciliation soon if any APIService is not available.
// The request is limited to registrationPeriod, because an extension API server may be unavailable for days.
func (in Input) result(statuses []v1alpha1.APIServiceStatus) Result {
	slices.SortFunc(statuses, func(a, b v1alpha1.APIServiceStatus) int {
		return strings.Compare(a.Name, b.Name)
	})
	result := Result{Statuses: &statuses}
	pending := slices.ContainsFunc(statuses, func(s v1alpha1.APIServiceStatus) bool {
		return s.Available != metav1.ConditionTrue
	})
	c := meta.FindStatusCondition(in.State.Cluster.Status.Conditions, v1alpha1.APIServicesAvailable)
	if pending && (c == nil || in.Now.Sub(c.LastTransitionTime.Time) < registrationPeriod) {
		result.Due = in.Now.Add(registrationInterval)
	}
	return result
}

// registrations returns the kinds of objects inside a cluster that register extension API servers, in the order in
// which they are deleted.
func registrations() []client.ObjectList {
	return []client.ObjectList{
		&apiregistrationv1.APIServiceList{}, &discoveryv1.EndpointSliceList{}, &corev1.ServiceList{},
	}
}

// registrar writes objects through the API of a cluster or of its host, to register extension API servers.
type registrar struct {
	owned.Labeled
	objects owned.Objects
	cluster *v1alpha1.ApiServerCluster
}

// register creates or updates the objects of an entry of spec.aggregation, adds their keys to keep, and returns the
// status of the APIService. If the CA bundle cannot be read, the registered objects stay as they are: without its
// caBundle, the extension API server would be unavailable to everyone because of a Secret that is being replaced.
func (g *registrar) register(
	ctx context.Context, entry *v1alpha1.AggregatedAPIService, keep map[client.ObjectKey]bool,
) v1alpha1.APIServiceStatus {
	status := v1alpha1.APIServiceStatus{
		Name: desired.APIServiceName(entry.Group, entry.Version), Available: metav1.ConditionFalse,
		Reason: v1alpha1.ReasonRegistrationFailed,
	}
	caBundle, problem := g.caBundle(ctx, entry.CABundle)
	objects, err := desired.Register(g.cluster, entry, caBundle)
	if err != nil { // impossible, because the spec is valid
		status.Message = err.Error()
		return status
	}
	for _, object := range []client.Object{objects.Service, objects.APIService} { // slices have the keys of their Services
		keep[client.ObjectKeyFromObject(object)] = true
	}
	if problem != nil { // keep the registered objects as they are
		status.Reason, status.Message = v1alpha1.ReasonInvalidCABundle, problem.Error()
		return status
	}
	if err := g.write(ctx, objects); err != nil {
		status.Message = err.Error()
		if errors.Is(err, owned.ErrForeign) {
			status.Reason = v1alpha1.ReasonConflict
		}
		return status
	}
	return apiServiceStatus(objects.APIService)
}

// apiServiceStatus returns the status of an APIService, from its condition Available.
func apiServiceStatus(service *apiregistrationv1.APIService) v1alpha1.APIServiceStatus {
	for _, c := range service.Status.Conditions {
		if c.Type == apiregistrationv1.Available {
			return v1alpha1.APIServiceStatus{
				Name: service.Name, Available: metav1.ConditionStatus(c.Status), Reason: c.Reason, Message: c.Message,
			}
		}
	}
	return v1alpha1.APIServiceStatus{
		Name: service.Name, Available: metav1.ConditionUnknown, Reason: v1alpha1.ReasonNotEvaluated,
		Message: "the aggregator has not checked it yet",
	}
}

// readCABundle reads the certificates in a key of a Secret or ConfigMap. It returns nothing else that the key may
// contain, because the APIService can be read by users who cannot read the Secret.
func readCABundle(
	ctx context.Context, reader client.Reader, namespace string, source *v1alpha1.CABundleSource,
) ([]byte, error) {
	key, object := source.Key, ""
	if key == "" {
		key = desired.AuthorityKey
	}
	var data []byte
	var err error
	if ref := source.SecretRef; ref != nil {
		secret := &corev1.Secret{}
		object = "secret " + ref.Name
		err = reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: ref.Name}, secret)
		data = secret.Data[key]
	} else {
		config := &corev1.ConfigMap{}
		object = "configmap " + source.ConfigMapRef.Name
		err = reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: source.ConfigMapRef.Name}, config)
		data = []byte(config.Data[key])
	}
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("%s does not exist", object)
	case err != nil:
		return nil, fmt.Errorf("read %s: %w", object, err)
	case len(data) == 0:
		return nil, fmt.Errorf("%s has no key %s", object, key)
	}
	certificates, err := cert.ParseCertsPEM(data)
	if err != nil {
		return nil, fmt.Errorf("%s, key %s, has no valid certificates: %w", object, key, err)
	}
	return cert.EncodeCertificates(certificates...)
}

// caBundle returns the certificates of a source, or nil without one.
func (g *registrar) caBundle(ctx context.Context, source *v1alpha1.CABundleSource) ([]byte, error) {
	if source == nil {
		return nil, nil
	}
	return readCABundle(ctx, g.objects.Reader, g.cluster.Namespace, source)
}

// write creates or updates the objects of a registration, the APIService last: it must not refer to a missing Service.
func (g *registrar) write(ctx context.Context, objects desired.Registration) error {
	if err := g.ensureNamespace(ctx, objects.Service.Namespace); err != nil {
		return err
	}
	current := &corev1.Service{}
	if _, err := g.Ensure(ctx, objects.Service, current, func() {
		current.Spec.Ports = objects.Service.Spec.Ports
	}); err != nil {
		return err
	}
	if err := g.EnsureSlice(ctx, objects.Slice); err != nil {
		return err
	}
	return g.ensureAPIService(ctx, objects.APIService)
}

// ensureAPIService creates or updates an APIService, and copies the stored status into wanted.
func (g *registrar) ensureAPIService(ctx context.Context, wanted *apiregistrationv1.APIService) error {
	current := &apiregistrationv1.APIService{}
	change, err := g.Ensure(ctx, wanted, current, func() { current.Spec = wanted.Spec })
	if err != nil {
		return err
	}
	if text, changed := registrationEvents[change]; changed {
		g.objects.Event(g.cluster, owned.Event{Reason: text[0], Action: registerAction, Message: text[1] + wanted.Name})
	}
	if change != owned.Created {
		wanted.Status = current.Status
	}
	return nil
}

func (g *registrar) ensureNamespace(ctx context.Context, name string) error {
	namespace := &corev1.Namespace{}
	err := g.API.Get(ctx, client.ObjectKey{Name: name}, namespace)
	if !apierrors.IsNotFound(err) {
		return err
	}
	namespace.Name = name
	if err := g.API.Create(ctx, namespace); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create namespace %s: %w", name, err)
	}
	return nil
}

// prune deletes the objects in lists that were created for the cluster and are not in keep. Callers pass APIServices
// first, so that no request is sent to a Service that is gone.
func (g *registrar) prune(ctx context.Context, keep map[client.ObjectKey]bool, lists ...client.ObjectList) error {
	for _, list := range lists {
		deleted, err := g.Prune(ctx, keep, list)
		for _, object := range deleted {
			if _, isAPIService := object.(*apiregistrationv1.APIService); isAPIService {
				g.objects.Event(g.cluster, owned.Event{
					Reason: v1alpha1.ReasonAPIServiceDeleted, Action: registerAction,
					Message: "Deleted APIService " + object.GetName(),
				})
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}
