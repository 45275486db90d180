// Package builtin defines the kinds that Kubernetes' API server serves, each as a resource.Definition
// made from upstream's types, strategies and printers. With its sub-packages it is the adapter to
// k8s.io/kubernetes: nothing else of the server's request path imports that module.
package builtin

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/builtin/admissionregistration"
	"quorate.dev/apiserver/builtin/apiextensions"
	"quorate.dev/apiserver/builtin/apiregistration"
	"quorate.dev/apiserver/builtin/apps"
	"quorate.dev/apiserver/builtin/authentication"
	"quorate.dev/apiserver/builtin/authorization"
	"quorate.dev/apiserver/builtin/batch"
	"quorate.dev/apiserver/builtin/certificates"
	"quorate.dev/apiserver/builtin/core"
	"quorate.dev/apiserver/builtin/definition"
	"quorate.dev/apiserver/builtin/discovery"
	"quorate.dev/apiserver/builtin/dynamicresource"
	"quorate.dev/apiserver/builtin/enablement"
	"quorate.dev/apiserver/builtin/rbac"
	"quorate.dev/apiserver/builtin/scheduling"
	builtinschema "quorate.dev/apiserver/builtin/schema"
	"quorate.dev/apiserver/builtin/storage"
	"quorate.dev/apiserver/kubelet"
	"quorate.dev/apiserver/resource"
)

// Options are what built-in kinds depend on.
type Options struct {
	// Schema is needed by field managers; nil: one of their own.
	Schema *builtinschema.Loader
	// Objects is the registry. It may have an empty catalog while definitions are being made.
	Objects resource.Client
	// Catalog tells which kinds are served; nil: none, which admission policies with parameters notice.
	Catalog *resource.CatalogHolder
	// Clock; nil: the real one.
	Clock clock.PassiveClock

	// APIs are those that are served.
	APIs     enablement.APIs
	EventTTL time.Duration
	// ServiceAccountToken answers serviceaccounts/token; nil: not served.
	ServiceAccountToken resource.Action
	// Kubelets answers for nodes, pods and what stands behind services; nil: not served.
	Kubelets *kubelet.Kubelets
	// Etcd asks each member of etcd whether it is healthy.
	Etcd []func(context.Context) error
	// ServiceFamily is the default family of Service addresses; empty: IPv4.
	ServiceFamily corev1.IPFamily
	// Tokens answers token reviews; nil: no token is accepted.
	Tokens    authenticator.Token
	Audiences authenticator.Audiences
	// Authorizer answers access reviews and checks writers of some kinds.
	Authorizer authorizer.Authorizer
	// Rules answers self-subject rules reviews.
	Rules authorizer.RuleResolver
}

// Definitions returns all built-in kinds that are served, in the order of precedence in which their groups appear in discovery.
func Definitions(options Options) []*resource.Definition {
	if options.Schema == nil {
		options.Schema = builtinschema.NewLoader()
		if options.APIs.Unstable() {
			options.Schema = builtinschema.NewLoaderOfAll()
		}
	}
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	builder := definition.NewBuilder(legacyscheme.Scheme, legacyscheme.Codecs, options.Schema.For(legacyscheme.Scheme), options.APIs.Serves)
	var all []*resource.Definition
	for _, group := range [][]*resource.Definition{
		core.Definitions(builder, core.Options{
			EventTTL: options.EventTTL, Token: options.ServiceAccountToken, Kubelets: options.Kubelets, Etcd: options.Etcd, Clock: options.Clock,
			ServiceFamily: options.ServiceFamily,
		}),
		apiregistration.Definitions(options.Schema, options.APIs.Serves),
		apps.Definitions(builder),
		eventsGroup(builder, options.EventTTL),
		authentication.Definitions(builder, authentication.Options{
			Tokens: options.Tokens, Audiences: options.Audiences, Clock: options.Clock,
		}),
		authorization.Definitions(builder, options.Authorizer, options.Rules),
		autoscalingGroup(builder),
		batch.Definitions(builder),
		certificates.Definitions(builder, options.Authorizer, options.Clock),
		networkingGroup(builder),
		policyGroup(builder),
		rbac.Definitions(builder),
		storage.Definitions(builder),
		admissionregistration.Definitions(builder, admissionregistration.Options{
			Authorizer: options.Authorizer, Objects: options.Objects, Resource: resourceOf(options.Catalog),
		}),
		apiextensions.Definitions(options.Schema, options.Clock, options.APIs.Serves),
		scheduling.Definitions(builder),
		coordinationGroup(builder),
		nodeGroup(builder),
		discovery.Definitions(builder),
		dynamicresource.Definitions(builder, options.Objects, options.Authorizer),
		flowControlGroup(builder),
		apiServerInternalGroup(builder),
		storageMigrationGroup(builder),
	} {
		all = append(all, group...)
	}
	return slices.DeleteFunc(all, func(d *resource.Definition) bool { return len(d.Versions) == 0 })
}

// resourceOf returns a function that finds the resource of a kind in the catalog in force.
func resourceOf(catalog *resource.CatalogHolder) func(schema.GroupVersionKind) (schema.GroupVersionResource, error) {
	return func(kind schema.GroupVersionKind) (schema.GroupVersionResource, error) {
		if catalog != nil {
			for _, d := range catalog.Current().Definitions() {
				if d.Group == kind.Group && d.Kind == kind.Kind && d.Version(kind.Version) != nil {
					return kind.GroupVersion().WithResource(d.Plural), nil
				}
			}
		}
		return schema.GroupVersionResource{}, &meta.NoKindMatchError{GroupKind: kind.GroupKind(), SearchedVersions: []string{kind.Version}}
	}
}
