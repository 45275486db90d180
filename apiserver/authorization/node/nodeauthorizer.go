// Package node is the authorization mode Node: a kubelet may access the objects that the pods on its node refer to. It
// runs upstream's authorizer. Informers of the watch cache update the authorizer's graph of these references.
package node

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/informers/certificates"
	certificatesv1 "k8s.io/client-go/informers/certificates/v1"
	"k8s.io/client-go/informers/core"
	"k8s.io/client-go/informers/internalinterfaces"
	resources "k8s.io/client-go/informers/resource"
	resourcesv1 "k8s.io/client-go/informers/resource/v1"
	"k8s.io/client-go/informers/storage"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/auth/nodeidentifier"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/node"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"
)

// Authorizer decides about the requests of nodes. It implements authorizer.UnconditionalAuthorizer and
// authorizer.RuleResolver.
type Authorizer struct {
	*node.NodeAuthorizer
	handlers []cache.ResourceEventHandlerRegistration
}

// New returns an authorizer. It denies all requests of nodes until the informers of factory have been started and have
// synced. The graph has the names of objects, not the objects.
func New(factory informers.SharedInformerFactory) *Authorizer {
	// The metrics are exported by builtin.MeasureUpstream.
	node.RegisterMetrics()
	a := &Authorizer{}
	recording := recorder{factory, a}
	all := metav1.NamespaceAll
	var slices resourcesv1.ResourceSliceInformer
	if utilfeature.DefaultFeatureGate.Enabled(features.DynamicResourceAllocation) {
		slices = resources.New(recording, all, nil).V1().ResourceSlices()
	}
	var requests certificatesv1.PodCertificateRequestInformer
	if utilfeature.DefaultFeatureGate.Enabled(features.PodCertificateRequest) {
		requests = certificates.New(recording, all, nil).V1().PodCertificateRequests()
	}
	objects := core.New(recording, all, nil).V1()
	graph := node.NewGraph()
	node.AddGraphEventHandlers(graph, objects.Nodes(), objects.Pods(), objects.PersistentVolumes(),
		storage.New(recording, all, nil).V1().VolumeAttachments(), slices, requests)
	a.NodeAuthorizer = node.NewAuthorizer(graph, nodeidentifier.NewDefaultNodeIdentifier(), bootstrappolicy.NodeRules())
	return a
}

// Synced reports whether the graph contains all objects that existed when the informers were started.
func (a *Authorizer) Synced() bool {
	for _, handler := range a.handlers {
		if !handler.HasSynced() {
			return false
		}
	}
	return true
}

// recorder is a factory that records the handlers that are added to its informers, because upstream does not expose
// whether the handlers have synced.
type recorder struct {
	internalinterfaces.SharedInformerFactory
	authorizer *Authorizer
}

// InformerFor implements internalinterfaces.SharedInformerFactory.
func (r recorder) InformerFor(
	object runtime.Object, make internalinterfaces.NewInformerFunc,
) cache.SharedIndexInformer {
	return recorded{r.SharedInformerFactory.InformerFor(object, make), r.authorizer}
}

type recorded struct {
	cache.SharedIndexInformer
	authorizer *Authorizer
}

// AddEventHandler implements cache.SharedInformer.
func (r recorded) AddEventHandler(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	registration, err := r.SharedIndexInformer.AddEventHandler(handler)
	if err == nil {
		r.authorizer.handlers = append(r.authorizer.handlers, registration)
	}
	return registration, err
}
