package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	validatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/cel/openapi/resolver"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/restmapper"
	"k8s.io/controller-manager/pkg/informerfactory"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller"
	"k8s.io/kubernetes/pkg/controller/clusterroleaggregation"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"
	"k8s.io/kubernetes/pkg/controller/namespace"
	"k8s.io/kubernetes/pkg/controller/resourcequota"
	"k8s.io/kubernetes/pkg/controller/serviceaccount"
	"k8s.io/kubernetes/pkg/controller/validatingadmissionpolicystatus"
	quotainstall "k8s.io/kubernetes/pkg/quota/v1/install"
)

// These are defaults of kube-controller-manager.
const (
	namespaceWorkers   = 10
	collectorWorkers   = 20
	accountWorkers     = 1
	quotaWorkers       = 5
	aggregationWorkers = 5
	policyWorkers      = 5
	discoveryInterval  = 30 * time.Second
	syncTimeout        = 30 * time.Second
	finalizeResync     = 5 * time.Minute
	quotaResync        = 5 * time.Minute
	noResync           = 0
)

// runControllers starts the enabled controllers and waits until ctx ends.
func runControllers(ctx context.Context, options Options) error {
	t, err := newTerm(options)
	if err != nil {
		return err
	}
	for _, known := range []struct {
		name  string
		start func(context.Context) error
	}{
		{Namespace, t.startNamespace},
		{GarbageCollector, t.startCollector},
		{ServiceAccount, t.startServiceAccount},
		{ResourceQuota, t.startQuota},
		{ClusterRoleAggregation, t.startAggregation},
		{PolicyStatus, t.startPolicyStatus},
	} {
		if !slices.Contains(options.Enabled, known.name) && !slices.Contains(options.Enabled, All) {
			continue
		}
		if err := known.start(ctx); err != nil {
			return fmt.Errorf("start the controller %s: %w", known.name, err)
		}
	}
	t.typed.Start(ctx.Done())
	t.partial.Start(ctx.Done())
	close(t.started)
	<-ctx.Done()
	return nil
}

// leaderTerm is the state that the controllers share while this replica is the leader.
type leaderTerm struct {
	client   *kubernetes.Clientset
	metadata metadata.Interface
	typed    informers.SharedInformerFactory        // built-in kinds
	partial  metadatainformer.SharedInformerFactory // custom resources
	started  chan struct{}                          // closed when the informers are started

	awaitDefinitions func(context.Context) error // Options.AwaitDefinitions
}

func newTerm(options Options) (*leaderTerm, error) {
	client, err := kubernetes.NewForConfig(options.Client)
	if err != nil {
		return nil, err
	}
	partial, err := metadata.NewForConfig(options.Client)
	if err != nil {
		return nil, err
	}
	return &leaderTerm{
		client:   client,
		metadata: partial,
		typed:    options.Informers(),
		partial:  metadatainformer.NewSharedInformerFactory(partial, noResync),
		started:  make(chan struct{}),

		awaitDefinitions: options.AwaitDefinitions,
	}, nil
}

// anyInformers returns a factory for informers of built-in kinds and custom resources.
func (t *leaderTerm) anyInformers() informerfactory.InformerFactory {
	return informerfactory.NewInformerFactory(t.typed, t.partial)
}

// newMapper returns a RESTMapper with cached discovery. The controller that uses it must reset it.
func (t *leaderTerm) newMapper() *restmapper.DeferredDiscoveryRESTMapper {
	return restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(t.client.Discovery()))
}

// startNamespace starts the namespace controller. NewNamespaceController exits the process if discovery returns no
// resources. startNamespace therefore discovers them first, passes that result to the constructor, and returns an error
// if there are none.
func (t *leaderTerm) startNamespace(ctx context.Context) error {
	resources, err := t.namespacedResources(ctx)
	if len(resources) == 0 {
		return errors.Join(errors.New("discover namespaced resources: the server has none"), err)
	}
	constructed := false
	discover := func() ([]*metav1.APIResourceList, error) {
		if !constructed {
			return resources, err
		}
		return t.namespacedResources(ctx)
	}
	c := namespace.NewNamespaceController(ctx, t.client, t.metadata, discover,
		t.typed.Core().V1().Namespaces(), finalizeResync, corev1.FinalizerKubernetes)
	constructed = true
	go c.Run(ctx, namespaceWorkers)
	return nil
}

// namespacedResources returns the resources whose objects are deleted with a namespace. If it returns an error, the
// list may lack custom resources that another replica has established, and the controller does not finish the deletion.
func (t *leaderTerm) namespacedResources(ctx context.Context) ([]*metav1.APIResourceList, error) {
	awaitErr := t.awaitDefinitions(ctx)
	resources, err := t.client.Discovery().ServerPreferredNamespacedResources()
	return resources, errors.Join(awaitErr, err)
}

func (t *leaderTerm) startCollector(ctx context.Context) error {
	collector, err := garbagecollector.NewGarbageCollector(ctx, t.client, t.metadata, t.newMapper(),
		garbagecollector.DefaultIgnoredResources(), t.anyInformers(), t.started)
	if err != nil {
		return err
	}
	go collector.Run(ctx, collectorWorkers, syncTimeout)
	go collector.Sync(ctx, discovery.ServerResourcesInterface(t.client.Discovery()), discoveryInterval)
	return nil
}

func (t *leaderTerm) startServiceAccount(ctx context.Context) error {
	c, err := serviceaccount.NewServiceAccountsController(klog.FromContext(ctx), t.typed.Core().V1().ServiceAccounts(),
		t.typed.Core().V1().Namespaces(), t.client, serviceaccount.DefaultServiceAccountsControllerOptions())
	if err != nil {
		return err
	}
	go c.Run(ctx, accountWorkers)
	return nil
}

func (t *leaderTerm) startQuota(ctx context.Context) error {
	usage, err := quotainstall.NewQuotaConfigurationForControllers(generic.ListerFuncForResourceFunc(t.typed.ForResource),
		t.typed)
	if err != nil {
		return err
	}
	discover := t.client.Discovery().ServerPreferredNamespacedResources
	c, err := resourcequota.NewController(ctx, &resourcequota.ControllerOptions{
		QuotaClient:               t.client.CoreV1(),
		ResourceQuotaInformer:     t.typed.Core().V1().ResourceQuotas(),
		ResyncPeriod:              controller.StaticResyncPeriodFunc(quotaResync),
		InformerFactory:           t.anyInformers(),
		ReplenishmentResyncPeriod: controller.StaticResyncPeriodFunc(noResync),
		DiscoveryFunc:             discover,
		IgnoredResourcesFunc:      usage.IgnoredResources,
		InformersStarted:          t.started,
		Registry:                  generic.NewRegistry(usage.Evaluators()),
		UpdateFilter:              quotainstall.DefaultUpdateFilter(),
	})
	if err != nil {
		return err
	}
	go c.Run(ctx, quotaWorkers)
	go c.Sync(ctx, discover, discoveryInterval)
	return nil
}

func (t *leaderTerm) startAggregation(ctx context.Context) error {
	c := clusterroleaggregation.NewClusterRoleAggregation(t.typed.Rbac().V1().ClusterRoles(), t.client.RbacV1())
	go c.Run(ctx, aggregationWorkers)
	return nil
}

// startPolicyStatus starts the type checking of ValidatingAdmissionPolicies. It reads the types of all kinds from
// OpenAPI; kube-controller-manager has the types of built-in kinds compiled in.
func (t *leaderTerm) startPolicyStatus(ctx context.Context) error {
	c, err :=
		validatingadmissionpolicystatus.NewController(t.typed.Admissionregistration().V1().ValidatingAdmissionPolicies(),
			t.client.AdmissionregistrationV1().ValidatingAdmissionPolicies(), &validatingpolicy.TypeChecker{
				SchemaResolver: &resolver.ClientDiscoveryResolver{Discovery: t.client.Discovery()}, RestMapper: t.newMapper(),
			})
	if err != nil {
		return err
	}
	go c.Run(ctx, policyWorkers)
	return nil
}
