package reconcile

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
)

const (
	// hostedTimeout limits a request to the API servers of a cluster.
	hostedTimeout = 5 * time.Second
	// registrationInterval is the requeue interval while an APIService is not available, in the first shortWaitPeriod.
	registrationInterval = 2 * time.Second
)

// registerAction is the action of events about APIServices.
const registerAction = "Register"

// change is the effect of a write on an object.
type change int

const (
	unchanged change = iota
	created
	updated
)

// registrationEvents are the reasons and messages of events about APIServices.
var registrationEvents = map[change][2]string{
	created: {v1alpha1.ReasonAPIServiceRegistered, "Registered APIService "},
	updated: {v1alpha1.ReasonAPIServiceUpdated, "Updated APIService "},
}

// ensureAPIServices registers the extension API servers in spec.aggregation inside the cluster, and deletes those that
// are no longer in it. The status lists an APIService before it is created, so that it is deleted even if the operator
// crashes in between. A failure concerns one APIService and is reported in its status.
func (r *Reconciler) ensureAPIServices(ctx context.Context, p *pass) error {
	if p.cluster.IsExtension() {
		return r.ensureHostAPIServices(ctx, p)
	}
	wanted := p.cluster.Spec.Aggregation.APIServices
	if len(wanted) == 0 && len(p.cluster.Status.APIServices) == 0 {
		return nil
	}
	if p.announce(apiServiceNames(wanted)) {
		return nil
	}
	if p.state.ReadyAddress() == "" {
		p.unavailable(apiServiceNames(wanted), v1alpha1.ReasonNoReadyReplicas, "no API server is ready")
		return nil
	}
	if pod := p.withoutAggregatorRouting(); pod != "" && len(wanted) > 0 {
		p.unavailable(apiServiceNames(wanted), v1alpha1.ReasonPending, "waiting for pod "+pod+" to restart with --enable-aggregator-routing")
		return nil
	}
	hosted, err := r.Connect(p.hosted())
	if err != nil {
		return err
	}
	g := registrar{Reconciler: r, pass: p, api: hosted, selector: desired.RegistrationSelector(p.cluster)}
	statuses := []v1alpha1.APIServiceStatus{}
	keep := map[client.ObjectKey]bool{}
	for i := range wanted {
		statuses = append(statuses, g.register(ctx, &wanted[i], keep))
	}
	if err := g.prune(ctx, keep, registrations()...); err != nil { // removed APIServices stay in the status, so that deletion is retried
		p.unavailable(apiServiceNames(wanted), v1alpha1.ReasonRegistrationFailed, "deleting removed APIServices: "+err.Error())
		return nil
	}
	p.setAPIServices(statuses)
	return nil
}

// withoutAggregatorRouting returns a pod that cannot reach the endpoints of extension API servers, or "". Until it has
// restarted, it rejects requests for their groups and reports them as unavailable.
func (p *pass) withoutAggregatorRouting() string {
	for i := range p.state.Pods {
		if pod := &p.state.Pods[i]; !desired.RoutesToEndpoints(pod) {
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

// announce adds APIServices to the status before they are created. It reports whether any was missing: then the next
// reconciliation creates them.
func (p *pass) announce(names []string) bool {
	statuses := slices.Clone(p.cluster.Status.APIServices)
	for _, name := range names {
		if !slices.ContainsFunc(statuses, func(s v1alpha1.APIServiceStatus) bool { return s.Name == name }) {
			statuses = append(statuses, v1alpha1.APIServiceStatus{
				Name: name, Available: metav1.ConditionUnknown, Reason: v1alpha1.ReasonPending, Message: "it is not registered yet",
			})
		}
	}
	if len(statuses) == len(p.cluster.Status.APIServices) {
		return false
	}
	p.input.APIServices, p.entered = &statuses, true
	return true
}

// unavailable reports a common reason of all APIServices, including those that still have to be deleted.
func (p *pass) unavailable(names []string, reason, message string) {
	for _, s := range p.cluster.Status.APIServices {
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
	p.setAPIServices(statuses)
}

func (p *pass) setAPIServices(statuses []v1alpha1.APIServiceStatus) {
	slices.SortFunc(statuses, func(a, b v1alpha1.APIServiceStatus) int {
		return strings.Compare(a.Name, b.Name)
	})
	p.input.APIServices = &statuses
	pending := slices.ContainsFunc(statuses, func(s v1alpha1.APIServiceStatus) bool { return s.Available != metav1.ConditionTrue })
	c := meta.FindStatusCondition(p.cluster.Status.Conditions, v1alpha1.APIServicesAvailable)
	if pending && (c == nil || p.input.Now.Sub(c.LastTransitionTime.Time) < shortWaitPeriod) {
		p.requeueAt(p.input.Now.Add(registrationInterval))
	}
}

// hosted returns the configuration of an administrator's client for a ready API server of the cluster.
func (p *pass) hosted() *rest.Config {
	admin := p.certificates.leaves[desired.AdminSecret]
	return &rest.Config{
		Host: "https://" + net.JoinHostPort(p.state.ReadyAddress(), strconv.Itoa(desired.SecurePort)),
		TLSClientConfig: rest.TLSClientConfig{
			ServerName: p.certificates.name, CAData: p.certificates.roots(), CertData: admin.Certificate, KeyData: admin.Key,
		},
		Timeout: hostedTimeout, QPS: -1, WarningHandler: rest.NoWarnings{}, UserAgent: "quorate-operator",
	}
}

// Connect returns a client for the kinds that the operator writes inside a cluster. It needs no discovery, which is
// slow while an extension API server does not respond.
func Connect(config *rest.Config) (client.Client, error) {
	kinds := runtime.NewScheme()
	utilruntime.Must(scheme.AddToScheme(kinds))
	utilruntime.Must(apiregistrationv1.AddToScheme(kinds))
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Namespace"), meta.RESTScopeRoot)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Service"), meta.RESTScopeNamespace)
	mapper.Add(discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"), meta.RESTScopeNamespace)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("ConfigMap"), meta.RESTScopeNamespace)
	for kind, scope := range map[string]meta.RESTScope{
		"ClusterRoleBinding": meta.RESTScopeRoot, "Role": meta.RESTScopeNamespace, "RoleBinding": meta.RESTScopeNamespace,
	} {
		mapper.Add(rbacv1.SchemeGroupVersion.WithKind(kind), scope)
	}
	mapper.Add(apiregistrationv1.SchemeGroupVersion.WithKind("APIService"), meta.RESTScopeRoot)
	return client.New(config, client.Options{Scheme: kinds, Mapper: mapper})
}

// registrations are the kinds of the objects inside a cluster, in the order of their deletion.
func registrations() []client.ObjectList {
	return []client.ObjectList{&apiregistrationv1.APIServiceList{}, &discoveryv1.EndpointSliceList{}, &corev1.ServiceList{}}
}

// registrar registers extension API servers through the API of one cluster.
type registrar struct {
	*Reconciler
	pass *pass
	api  client.Client
	// selector is matched by all objects that were created for the cluster.
	selector labels.Set
}

// register creates or updates the objects of an entry, adds their keys to keep and returns the APIService's status.
func (g *registrar) register(
	ctx context.Context, entry *v1alpha1.AggregatedAPIService, keep map[client.ObjectKey]bool,
) v1alpha1.APIServiceStatus {
	status := v1alpha1.APIServiceStatus{
		Name: desired.APIServiceName(entry.Group, entry.Version), Available: metav1.ConditionFalse, Reason: v1alpha1.ReasonRegistrationFailed,
	}
	caBundle, problem := g.caBundle(ctx, entry.CABundle)
	objects, err := desired.Register(g.pass.cluster, entry, caBundle)
	if err != nil { // the spec is validated
		status.Message = err.Error()
		return status
	}
	for _, object := range []client.Object{objects.Service, objects.APIService} { // slices have the keys of Services
		keep[client.ObjectKeyFromObject(object)] = true
	}
	if problem != nil { // keep the registered objects
		status.Reason, status.Message = v1alpha1.ReasonInvalidCABundle, problem.Error()
		return status
	}
	if err := g.write(ctx, objects); err != nil {
		status.Message = err.Error()
		if errors.Is(err, errForeign) {
			status.Reason = v1alpha1.ReasonConflict
		}
		return status
	}
	return apiServiceStatus(objects.APIService)
}

// apiServiceStatus returns the condition Available of an APIService.
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

// readCABundle reads only the certificates from a key of a Secret or ConfigMap: users who cannot read the Secret may
// read the APIService.
func (r *Reconciler) readCABundle(ctx context.Context, namespace string, source *v1alpha1.CABundleSource) ([]byte, error) {
	key, what := source.Key, ""
	if key == "" {
		key = desired.AuthorityKey
	}
	var data []byte
	var err error
	if ref := source.SecretRef; ref != nil {
		secret := &corev1.Secret{}
		what = "secret " + ref.Name
		err = r.Reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: ref.Name}, secret)
		data = secret.Data[key]
	} else {
		config := &corev1.ConfigMap{}
		what = "configmap " + source.ConfigMapRef.Name
		err = r.Reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: source.ConfigMapRef.Name}, config)
		data = []byte(config.Data[key])
	}
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("%s does not exist", what)
	case err != nil:
		return nil, fmt.Errorf("reading %s: %w", what, err)
	case len(data) == 0:
		return nil, fmt.Errorf("%s has no key %s", what, key)
	}
	certificates, err := cert.ParseCertsPEM(data)
	if err != nil {
		return nil, fmt.Errorf("%s, key %s, has no valid certificates: %w", what, key, err)
	}
	return cert.EncodeCertificates(certificates...)
}

func (g *registrar) caBundle(ctx context.Context, source *v1alpha1.CABundleSource) ([]byte, error) {
	if source == nil {
		return nil, nil
	}
	return g.readCABundle(ctx, g.pass.cluster.Namespace, source)
}

// write creates or updates the objects, the APIService last.
func (g *registrar) write(ctx context.Context, objects desired.Registration) error {
	if err := g.ensureNamespace(ctx, objects.Service.Namespace); err != nil {
		return err
	}
	current := &corev1.Service{}
	if _, err := g.ensure(ctx, objects.Service, current, func() {
		current.Spec.Ports = objects.Service.Spec.Ports
	}); err != nil {
		return err
	}
	if err := g.ensureSlice(ctx, objects.Slice); err != nil {
		return err
	}
	return g.ensureAPIService(ctx, objects.APIService)
}

func (g *registrar) ensureAPIService(ctx context.Context, wanted *apiregistrationv1.APIService) error {
	current := &apiregistrationv1.APIService{}
	did, err := g.ensure(ctx, wanted, current, func() { current.Spec = wanted.Spec })
	if err != nil {
		return err
	}
	if text, changed := registrationEvents[did]; changed {
		g.event(g.pass.cluster, event{reason: text[0], action: registerAction, message: text[1] + wanted.Name})
	}
	if did != created {
		wanted.Status = current.Status
	}
	return nil
}

func (g *registrar) ensureNamespace(ctx context.Context, name string) error {
	namespace := &corev1.Namespace{}
	err := g.api.Get(ctx, client.ObjectKey{Name: name}, namespace)
	if !apierrors.IsNotFound(err) {
		return err
	}
	namespace.Name = name
	if err := g.api.Create(ctx, namespace); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("creating namespace %s: %w", name, err)
	}
	return nil
}

// ensureSlice recreates a slice if its address type changes, because that field is immutable.
func (g *registrar) ensureSlice(ctx context.Context, wanted *discoveryv1.EndpointSlice) error {
	current := &discoveryv1.EndpointSlice{}
	err := g.api.Get(ctx, client.ObjectKeyFromObject(wanted), current)
	if err == nil && g.owns(current) && current.AddressType != wanted.AddressType {
		if err := g.api.Delete(ctx, current); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("deleting endpointslice %s: %w", wanted.Name, err)
		}
	}
	current = &discoveryv1.EndpointSlice{}
	_, err = g.ensure(ctx, wanted, current, func() {
		current.Endpoints, current.Ports = wanted.Endpoints, wanted.Ports
	})
	return err
}

func (g *registrar) owns(object client.Object) bool {
	return g.selector.AsSelector().Matches(labels.Set(object.GetLabels()))
}

// ensure creates an object. If it exists, ensure reads it into current, calls set, and updates it if set has changed
// it.
func (g *registrar) ensure(ctx context.Context, wanted, current client.Object, set func()) (change, error) {
	err := g.api.Get(ctx, client.ObjectKeyFromObject(wanted), current)
	if apierrors.IsNotFound(err) {
		if err := g.api.Create(ctx, wanted); err != nil {
			return unchanged, fmt.Errorf("creating %s: %w", wanted.GetName(), err)
		}
		return created, nil
	}
	if err != nil {
		return unchanged, fmt.Errorf("reading %s: %w", wanted.GetName(), err)
	}
	if !g.owns(current) {
		return unchanged, fmt.Errorf("an object named %s exists and %w; delete it, or rename the entry or its serviceRef",
			wanted.GetName(), errForeign)
	}
	before, ok := current.DeepCopyObject().(client.Object)
	if !ok {
		return unchanged, fmt.Errorf("%T is no object", current)
	}
	set()
	setLabels(current, wanted)
	if equality.Semantic.DeepEqual(before, current) {
		return unchanged, nil
	}
	if err := g.api.Update(ctx, current); err != nil {
		return unchanged, fmt.Errorf("updating %s: %w", wanted.GetName(), err)
	}
	return updated, nil
}

// prune deletes the objects of entries that were removed: the APIServices first, so that no request is sent to a
// Service that is gone.
func (g *registrar) prune(ctx context.Context, keep map[client.ObjectKey]bool, lists ...client.ObjectList) error {
	for _, list := range lists {
		if err := g.api.List(ctx, list, client.MatchingLabels(g.selector)); err != nil {
			return err
		}
		err := meta.EachListItem(list, func(item runtime.Object) error {
			object, ok := item.(client.Object)
			if !ok || keep[client.ObjectKeyFromObject(object)] {
				return nil
			}
			if err := g.api.Delete(ctx, object); client.IgnoreNotFound(err) != nil {
				return err
			}
			if _, isAPIService := object.(*apiregistrationv1.APIService); isAPIService {
				g.event(g.pass.cluster, event{
					reason: v1alpha1.ReasonAPIServiceDeleted, action: registerAction, message: "Deleted APIService " + object.GetName(),
				})
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
