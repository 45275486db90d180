// Package builtin defines Kubernetes' built-in kinds as resource.Definitions with upstream's types, strategies and
// printers. Its sub-packages, one per API group, adapt k8s.io/kubernetes to the registry.
package builtin

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
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
	"quorate.dev/apiserver/builtin/lifecycle"
	"quorate.dev/apiserver/builtin/podpaths"
	"quorate.dev/apiserver/builtin/rbac"
	"quorate.dev/apiserver/builtin/scheduling"
	builtinschema "quorate.dev/apiserver/builtin/schema"
	"quorate.dev/apiserver/builtin/storage"
	"quorate.dev/apiserver/kubelet"
	"quorate.dev/apiserver/resource"
)

// Options are the dependencies of built-in kinds.
type Options struct {
	// Schema is the schema for managed fields. If it is nil, each call of Definitions loads its own.
	Schema *builtinschema.Loader
	// Objects reads and writes stored objects. Its catalog may be empty when Definitions is called.
	Objects resource.Client
	// Catalog is used to find the resources of parameters of admission policies; optional.
	Catalog *resource.CatalogHolder
	// Clock defaults to the real clock.
	Clock clock.PassiveClock

	// APIs are the enabled APIs.
	APIs     enablement.APIs
	EventTTL time.Duration
	// StorageMediaType is the media type of stored objects except CustomResourceDefinitions and APIServices; empty
	// means protobuf.
	StorageMediaType string
	// ServiceAccountToken returns the implementation of serviceaccounts/token, which reads objects. Without the function,
	// or if it returns nil, the subresource is disabled.
	ServiceAccountToken func(objects resource.Client) resource.Action
	// Kubelets implements the connect subresources of nodes, pods and Services; nil disables them.
	Kubelets *kubelet.Kubelets
	// Etcd has a health check for each member of etcd.
	Etcd []func(context.Context) error
	// ServiceFamily is the default IP family of Services; empty means IPv4.
	ServiceFamily corev1.IPFamily
	// Tokens authenticates the tokens of TokenReviews; nil rejects all tokens.
	Tokens    authenticator.Token
	Audiences authenticator.Audiences
	// Authorizer decides access reviews, and checks writes of RBAC and some other kinds.
	Authorizer authorizer.UnconditionalAuthorizer
	// Rules returns the rules for SelfSubjectRulesReviews.
	Rules authorizer.RuleResolver
}

// Definitions returns all enabled built-in kinds. Their groups are in the order of discovery.
func Definitions(options Options) []*resource.Definition {
	if options.Schema == nil {
		options.Schema = builtinschema.NewLoader()
		if options.APIs.Unstable() {
			options.Schema = builtinschema.NewLoaderForAllVersions()
		}
	}
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	var token resource.Action
	if options.ServiceAccountToken != nil {
		token = options.ServiceAccountToken(options.Objects)
	}
	builder := definition.NewBuilder(legacyscheme.Scheme, legacyscheme.Codecs,
		options.Schema.For(legacyscheme.Scheme), options.APIs.Serves).
		StoredAs(options.StorageMediaType)
	var all []*resource.Definition
	for _, group := range [][]*resource.Definition{
		core.Definitions(builder, core.Options{
			Objects: options.Objects, EventTTL: options.EventTTL, Token: token, Kubelets: options.Kubelets,
			Etcd: options.Etcd, Clock: options.Clock, ServiceFamily: options.ServiceFamily,
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
		lifecycle.Definitions(builder, options.Clock),
	} {
		all = append(all, group...)
	}
	for _, d := range all {
		d.Warned = podpaths.Bounded
	}
	return slices.DeleteFunc(all, func(d *resource.Definition) bool { return len(d.Versions) == 0 })
}

// CustomResourceDefinitions returns the definition of CustomResourceDefinitions, the only built-in kind of an extension
// server.
func CustomResourceDefinitions(clock clock.PassiveClock) []*resource.Definition {
	return apiextensions.Definitions(builtinschema.NewLoader(), clock, enablement.APIs{}.Serves)
}

// resourceOf returns a function that maps a kind to its resource in the current catalog.
func resourceOf(catalog *resource.CatalogHolder) func(schema.GroupVersionKind) (schema.GroupVersionResource, error) {
	return func(kind schema.GroupVersionKind) (schema.GroupVersionResource, error) {
		if catalog != nil {
			for _, d := range catalog.Current().Group(kind.Group).Definitions() {
				if d.Kind == kind.Kind && d.Version(kind.Version) != nil {
					return kind.GroupVersion().WithResource(d.Plural), nil
				}
			}
		}
		return schema.GroupVersionResource{}, &meta.NoKindMatchError{
			GroupKind: kind.GroupKind(), SearchedVersions: []string{kind.Version},
		}
	}
}

// DecodableVersions returns a function that returns the versions from which stored objects of a built-in kind can be
// decoded, in the order of preference.
func DecodableVersions() func(schema.GroupKind) []schema.GroupVersion {
	schemes := []*runtime.Scheme{apiextensions.NewScheme(), apiregistration.NewScheme(), legacyscheme.Scheme}
	return func(kind schema.GroupKind) []schema.GroupVersion {
		for _, scheme := range schemes {
			if versions := scheme.VersionsForGroupKind(kind); len(versions) > 0 {
				return versions
			}
		}
		return nil
	}
}
