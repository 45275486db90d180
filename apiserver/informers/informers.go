// Package informers implements client-go's informers on the watch cache, for upstream's admission plugins,
// authorizers, quota and controllers. An informer has no copy of the objects: its store reads snapshots of the watch
// cache and decodes entries on demand. A memo caches recently decoded objects.
//
// Path of an event: Source.Follow calls each registration with the entries before and after a change; the
// registration decodes both through the memo and calls its handler. Each handler follows the resource in its own
// goroutine, so that a slow handler does not delay other handlers, and no shared queue can overflow. Indexes are
// handlers too: they map values to keys and have no objects. An index may therefore lag behind the store; reads
// through an index return the current state of the objects that it finds.
//
// Rejected alternative: client-go's SharedInformerFactory with the local client. It would keep every object decoded,
// in each version, in addition to the watch cache.
//
// Lock order: informer.mu before index.mu, memo.mu and the locks of the watch cache. Handlers are called without any
// of these locks.
package informers

import (
	"slices"
	"time"

	"github.com/go-logr/logr"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"quorate.dev/apiserver/resource"
)

// Options configure a factory.
type Options struct {
	// Client is the client of informers for kinds that the function kinds omits. It is optional for All.
	Client kubernetes.Interface
	Source Source
	// Catalog must contain the definitions when the factory is started.
	Catalog *resource.CatalogHolder
	Logger  logr.Logger
	// Failed is called with the panic of a handler, which gets no more events. It must not block. nil: the process ends.
	Failed func(error)
}

// New returns a factory. Informers may be requested before the catalog is published; events and reads start when the
// factory is started.
func New(options Options) informers.SharedInformerFactory {
	factory := informers.NewSharedInformerFactory(options.Client, 0)
	for _, kind := range kinds() {
		informer := newInformer(kind.resource, options)
		factory.InformerFor(kind.object, func(kubernetes.Interface, time.Duration) cache.SharedIndexInformer {
			return informer
		})
	}
	return factory
}

// All returns a factory with informers for all built-in kinds, for controllers. The catalog must be published.
func All(options Options) informers.SharedInformerFactory {
	factory := informers.NewSharedInformerFactory(options.Client, 0)
	for _, d := range options.Catalog.Current().Definitions() {
		for _, v := range d.Versions {
			if d.Source != resource.BuiltIn || !slices.Contains(v.Endpoints[""].Verbs, "watch") {
				continue
			}
			informer := newInformer(schema.GroupVersionResource{Group: d.Group, Version: v.Name, Resource: d.Plural}, options)
			factory.InformerFor(v.Codec.NewExternal(), func(kubernetes.Interface, time.Duration) cache.SharedIndexInformer {
				return informer
			})
		}
	}
	return factory
}

type kind struct {
	object   runtime.Object
	resource schema.GroupVersionResource
}

// kinds returns the kinds that upstream's server components read.
func kinds() []kind {
	core, storage := corev1.SchemeGroupVersion.WithResource, storagev1.SchemeGroupVersion.WithResource
	rbac, dynamic := rbacv1.SchemeGroupVersion.WithResource, resourcev1.SchemeGroupVersion.WithResource
	networking, admission :=
		networkingv1.SchemeGroupVersion.WithResource, admissionregistrationv1.SchemeGroupVersion.WithResource
	return []kind{
		{&corev1.ConfigMap{}, core("configmaps")},
		{&corev1.Endpoints{}, core("endpoints")}, // deprecated, but still served
		{&corev1.LimitRange{}, core("limitranges")},
		{&corev1.Namespace{}, core("namespaces")},
		{&corev1.Node{}, core("nodes")},
		{&corev1.PersistentVolume{}, core("persistentvolumes")},
		{&corev1.PersistentVolumeClaim{}, core("persistentvolumeclaims")},
		{&corev1.Pod{}, core("pods")},
		{&corev1.ResourceQuota{}, core("resourcequotas")},
		{&corev1.Secret{}, core("secrets")},
		{&corev1.Service{}, core("services")},
		{&corev1.ServiceAccount{}, core("serviceaccounts")},
		{&discoveryv1.EndpointSlice{}, discoveryv1.SchemeGroupVersion.WithResource("endpointslices")},
		{&nodev1.RuntimeClass{}, nodev1.SchemeGroupVersion.WithResource("runtimeclasses")},
		{&schedulingv1.PriorityClass{}, schedulingv1.SchemeGroupVersion.WithResource("priorityclasses")},
		{&storagev1.CSIDriver{}, storage("csidrivers")},
		{&storagev1.CSINode{}, storage("csinodes")},
		{&storagev1.StorageClass{}, storage("storageclasses")},
		{&storagev1.VolumeAttachment{}, storage("volumeattachments")},
		{&networkingv1.IngressClass{}, networking("ingressclasses")},
		{&networkingv1.IPAddress{}, networking("ipaddresses")},
		{&networkingv1.ServiceCIDR{}, networking("servicecidrs")},
		{&resourcev1.DeviceClass{}, dynamic("deviceclasses")},
		{&resourcev1.ResourceClaim{}, dynamic("resourceclaims")},
		{&resourcev1.ResourceSlice{}, dynamic("resourceslices")},
		{&rbacv1.Role{}, rbac("roles")},
		{&rbacv1.RoleBinding{}, rbac("rolebindings")},
		{&rbacv1.ClusterRole{}, rbac("clusterroles")},
		{&rbacv1.ClusterRoleBinding{}, rbac("clusterrolebindings")},
		{
			&certificatesv1.CertificateSigningRequest{},
			certificatesv1.SchemeGroupVersion.WithResource("certificatesigningrequests"),
		},
		{
			&certificatesv1beta1.PodCertificateRequest{},
			certificatesv1beta1.SchemeGroupVersion.WithResource("podcertificaterequests"),
		},
		{&flowcontrolv1.FlowSchema{}, flowcontrolv1.SchemeGroupVersion.WithResource("flowschemas")},
		{
			&flowcontrolv1.PriorityLevelConfiguration{},
			flowcontrolv1.SchemeGroupVersion.WithResource("prioritylevelconfigurations"),
		},
		{&admissionregistrationv1.MutatingAdmissionPolicy{}, admission("mutatingadmissionpolicies")},
		{&admissionregistrationv1.MutatingAdmissionPolicyBinding{}, admission("mutatingadmissionpolicybindings")},
		{&admissionregistrationv1.MutatingWebhookConfiguration{}, admission("mutatingwebhookconfigurations")},
		{&admissionregistrationv1.ValidatingAdmissionPolicy{}, admission("validatingadmissionpolicies")},
		{&admissionregistrationv1.ValidatingAdmissionPolicyBinding{}, admission("validatingadmissionpolicybindings")},
		{&admissionregistrationv1.ValidatingWebhookConfiguration{}, admission("validatingwebhookconfigurations")},
	}
}
