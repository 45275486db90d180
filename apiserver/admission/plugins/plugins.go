// Package plugins creates upstream's admission plugins. It defines their order and which of them are enabled, and
// initializes them.
package plugins

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/spf13/pflag"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	mutatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	validatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	webhookinitializer "k8s.io/apiserver/pkg/admission/plugin/webhook/initializer"
	mutatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	validatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/validating"
	apiserverapi "k8s.io/apiserver/pkg/apis/apiserver"
	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	apiserverv1alpha1 "k8s.io/apiserver/pkg/apis/apiserver/v1alpha1"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/openapi"
	"k8s.io/client-go/tools/cache"
	kubeapiserveradmission "k8s.io/kubernetes/pkg/kubeapiserver/admission"
	"k8s.io/kubernetes/plugin/pkg/admission/admit"
	"k8s.io/kubernetes/plugin/pkg/admission/alwayspullimages"
	"k8s.io/kubernetes/plugin/pkg/admission/antiaffinity"
	"k8s.io/kubernetes/plugin/pkg/admission/certificates/approval"
	"k8s.io/kubernetes/plugin/pkg/admission/certificates/ctbattest"
	"k8s.io/kubernetes/plugin/pkg/admission/certificates/signing"
	"k8s.io/kubernetes/plugin/pkg/admission/certificates/subjectrestriction"
	"k8s.io/kubernetes/plugin/pkg/admission/defaulttolerationseconds"
	"k8s.io/kubernetes/plugin/pkg/admission/deny"
	"k8s.io/kubernetes/plugin/pkg/admission/eventratelimit"
	"k8s.io/kubernetes/plugin/pkg/admission/extendedresourcetoleration"
	"k8s.io/kubernetes/plugin/pkg/admission/gc"
	"k8s.io/kubernetes/plugin/pkg/admission/limitranger"
	"k8s.io/kubernetes/plugin/pkg/admission/namespace/autoprovision"
	"k8s.io/kubernetes/plugin/pkg/admission/namespace/exists"
	"k8s.io/kubernetes/plugin/pkg/admission/network/defaultingressclass"
	"k8s.io/kubernetes/plugin/pkg/admission/network/denyserviceexternalips"
	"k8s.io/kubernetes/plugin/pkg/admission/nodedeclaredfeatures"
	"k8s.io/kubernetes/plugin/pkg/admission/noderestriction"
	"k8s.io/kubernetes/plugin/pkg/admission/nodetaint"
	"k8s.io/kubernetes/plugin/pkg/admission/podnodeselector"
	"k8s.io/kubernetes/plugin/pkg/admission/podresize"
	"k8s.io/kubernetes/plugin/pkg/admission/podtolerationrestriction"
	"k8s.io/kubernetes/plugin/pkg/admission/podtopologylabels"
	"k8s.io/kubernetes/plugin/pkg/admission/priority"
	"k8s.io/kubernetes/plugin/pkg/admission/runtimeclass"
	"k8s.io/kubernetes/plugin/pkg/admission/scheduling/podgroupprotection"
	"k8s.io/kubernetes/plugin/pkg/admission/security/podsecurity"
	"k8s.io/kubernetes/plugin/pkg/admission/serviceaccount"
	"k8s.io/kubernetes/plugin/pkg/admission/storage/persistentvolume/resize"
	"k8s.io/kubernetes/plugin/pkg/admission/storage/storageclass/setdefault"
	"k8s.io/kubernetes/plugin/pkg/admission/storage/storageobjectinuseprotection"
)

// Options configure the plugins.
type Options struct {
	Selection Selection
	// ConfigFile is the value of --admission-control-config-file; empty: the plugins' defaults.
	ConfigFile string

	Client kubernetes.Interface
	// Parameters has informers of all kinds that can be parameters of policies.
	Parameters informers.SharedInformerFactory
	// Dynamic reads the parameters of policies that the informers of Parameters do not have yet.
	Dynamic dynamic.Interface
	// OpenAPI has the schemas of the objects that mutating policies apply configurations to.
	OpenAPI openapi.Client
	// Services resolves the addresses of webhooks that are Services.
	Services webhook.ServiceResolver
	// Authentication provides the credentials for webhooks, including those in the kubeconfig files that ConfigFile
	// names.
	Authentication webhook.AuthenticationInfoResolverWrapper

	Informers  informers.SharedInformerFactory
	Authorizer authorizer.Authorizer
	Mapper     meta.RESTMapper
	// Serves reports whether a resource is served.
	Serves func(schema.GroupVersionResource) bool
	// ServerID is the ID of this replica in the metrics of static manifests.
	ServerID string
	// Stopped is closed when the plugins are no longer called.
	Stopped <-chan struct{}
}

// Plugin is an enabled plugin. Upstream is nil if New does not create the plugin (notMade).
type Plugin struct {
	Name     string
	Upstream admission.Interface
	// Rules describes which writes the plugin's configurations may select; nil: the plugin has no configurations with
	// rules.
	Rules *RuleIndex
}

// notMade has the plugins that are in the order, but which New does not create. Package native implements them.
var notMade = []string{NamespaceLifecycle}

// New creates the enabled plugins in order.
func New(options Options) ([]Plugin, error) {
	names, err := Enabled(options.Selection)
	if err != nil {
		return nil, err
	}
	scheme, err := configScheme()
	if err != nil {
		return nil, err
	}
	configs, err := admission.ReadAdmissionConfiguration(names, options.ConfigFile, scheme)
	if err != nil {
		return nil, fmt.Errorf("failed to read plugin config: %w", err)
	}
	initializers, err := initializersOf(options, slices.Contains(names, resourceQuota))
	if err != nil {
		return nil, err
	}
	factories := upstream()
	var made []Plugin
	for _, name := range names {
		plugin := Plugin{Name: name}
		if !slices.Contains(notMade, name) {
			config, err := configs.ConfigFor(name)
			if err != nil {
				return nil, err
			}
			config, static, err := hasManifests(config)
			if err != nil {
				return nil, err
			}
			if plugin.Upstream, err = factories.InitPlugin(name, config, initializers); err != nil {
				return nil, err
			}
			if plugin.Rules, err = rulesFor(name, options.Informers); err != nil {
				return nil, err
			}
			if plugin.Rules != nil {
				plugin.Rules.all = static
			}
		}
		made = append(made, plugin)
	}
	return made, nil
}

func configScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		apiserverapi.AddToScheme, apiserverv1alpha1.AddToScheme, apiserverv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("build the scheme of the admission configuration: %w", err)
		}
	}
	return scheme, nil
}

// SetDefaultTolerations sets how many seconds pods tolerate nodes that are not ready or unreachable. Upstream's
// DefaultTolerationSeconds plugin reads both from package variables when it is created, so the setting is global to the
// process and must precede New.
func SetDefaultTolerations(notReadySeconds, unreachableSeconds int64) error {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	defaulttolerationseconds.RegisterFlags(flags)
	if err := flags.Set("default-not-ready-toleration-seconds", strconv.FormatInt(notReadySeconds, 10)); err != nil {
		return err
	}
	return flags.Set("default-unreachable-toleration-seconds", strconv.FormatInt(unreachableSeconds, 10))
}

// resourceQuota is the name of the only plugin that needs quota evaluators. The evaluators have informers of the
// resources that they count.
const resourceQuota = "ResourceQuota"

func initializersOf(options Options, quota bool) (admission.PluginInitializers, error) {
	all := admission.PluginInitializers{
		// Upstream requires the ID before the informers.
		initializer.NewAPIServerIDInitializer(options.ServerID),
		initializer.New(options.Client, options.Dynamic, options.Informers, options.Authorizer,
			utilfeature.DefaultFeatureGate, compatibility.DefaultBuildEffectiveVersion(), options.Stopped, options.Mapper),
		webhookinitializer.NewPluginInitializer(options.Authentication, options.Services),
		policies{options},
		kubeapiserveradmission.NewPluginInitializer(),
	}
	if !quota {
		return all, nil
	}
	evaluators, err := newQuotas(options)
	if err != nil {
		return nil, fmt.Errorf("build the quota configuration: %w", err)
	}
	return append(all, evaluators), nil
}

// rulesFor returns an index of the rules of a plugin's configurations, updated by an informer. It returns nil if the
// plugin has no configurations.
func rulesFor(plugin string, informers informers.SharedInformerFactory) (*RuleIndex, error) {
	configurations := informers.Admissionregistration().V1()
	var informer cache.SharedIndexInformer
	var rulesOf func(any) []admissionregistrationv1.RuleWithOperations
	switch plugin {
	case MutatingAdmissionWebhook:
		informer, rulesOf = configurations.MutatingWebhookConfigurations().Informer(), rulesOfMutatingWebhooks
	case ValidatingAdmissionWebhook:
		informer, rulesOf = configurations.ValidatingWebhookConfigurations().Informer(), rulesOfValidatingWebhooks
	case MutatingAdmissionPolicy:
		if !utilfeature.DefaultFeatureGate.Enabled(features.MutatingAdmissionPolicy) {
			return nil, nil // the kind is not served, and the plugin does nothing
		}
		informer, rulesOf = configurations.MutatingAdmissionPolicies().Informer(), rulesOfMutatingPolicy
	case ValidatingAdmissionPolicy:
		informer, rulesOf = configurations.ValidatingAdmissionPolicies().Informer(), rulesOfValidatingPolicy
	default:
		return nil, nil
	}
	return newRuleIndex(informer, rulesOf)
}

// upstream returns the factories of upstream's plugins by name.
func upstream() *admission.Plugins {
	plugins := admission.NewPlugins()
	for _, register := range []func(*admission.Plugins){
		admit.Register, alwayspullimages.Register, antiaffinity.Register, approval.Register, autoprovision.Register,
		ctbattest.Register, defaultingressclass.Register, defaulttolerationseconds.Register, deny.Register,
		denyserviceexternalips.Register, eventratelimit.Register, exists.Register, extendedresourcetoleration.Register,
		gc.Register, registerImagePolicy, limitranger.Register, nodedeclaredfeatures.Register,
		noderestriction.Register, nodetaint.Register, podgroupprotection.Register,
		podnodeselector.Register, podresize.Register, podsecurity.Register, podtolerationrestriction.Register,
		podtopologylabels.Register, priority.Register, resize.Register, resourcequota.Register, runtimeclass.Register,
		serviceaccount.Register, setdefault.Register, signing.Register, storageobjectinuseprotection.Register,
		subjectrestriction.Register, mutatingwebhook.Register, validatingwebhook.Register, mutatingpolicy.Register,
		validatingpolicy.Register,
	} {
		register(plugins)
	}
	return plugins
}
