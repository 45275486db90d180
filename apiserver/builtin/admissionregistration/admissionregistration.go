// Package admissionregistration defines the kinds of the API group admissionregistration.k8s.io.
package admissionregistration

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	api "k8s.io/kubernetes/pkg/apis/admissionregistration"
	_ "k8s.io/kubernetes/pkg/apis/admissionregistration/install"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/mutatingadmissionpolicy"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/mutatingadmissionpolicybinding"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/mutatingwebhookconfiguration"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/resolver"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/validatingadmissionpolicy"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/validatingadmissionpolicybinding"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/validatingwebhookconfiguration"

	"quorate.dev/apiserver/builtin/definition"
	"quorate.dev/apiserver/resource"
)

// Options are the dependencies of the group.
type Options struct {
	// Authorizer checks that a client that writes a policy or binding may read the parameters; nil disables the check.
	Authorizer authorizer.UnconditionalAuthorizer
	Objects    resource.Client
	// Resource returns the resource of a kind of parameters.
	Resource func(schema.GroupVersionKind) (schema.GroupVersionResource, error)
}

// Definitions returns the kinds of the group.
func Definitions(builder *definition.Builder, options Options) []*resource.Definition {
	group := builder.Group("admissionregistration.k8s.io", "v1", "v1beta1", "v1alpha1")
	find := resolver.ResourceResolverFunc(options.Resource)
	getter := policies{options.Objects}
	validating := validatingadmissionpolicy.NewStrategy(options.Authorizer, find)
	extensions := []string{"api-extensions"}
	stable, mutating := []string{"v1"}, []string{"v1", "v1beta1", "v1alpha1"}
	return []*resource.Definition{
		group.Define(definition.Kind{
			Name: "MutatingAdmissionPolicy", Versions: mutating, Categories: extensions,
			Strategy: mutatingadmissionpolicy.NewStrategy(options.Authorizer, find),
		}),
		group.Define(definition.Kind{
			Name: "MutatingAdmissionPolicyBinding", Versions: mutating, Categories: extensions,
			Strategy: mutatingadmissionpolicybinding.NewStrategy(options.Authorizer, getter, find),
		}),
		group.Define(definition.Kind{
			Name: "MutatingWebhookConfiguration", Versions: stable, Categories: extensions,
			Strategy: mutatingwebhookconfiguration.Strategy,
		}),
		group.Define(definition.Kind{
			Name: "ValidatingAdmissionPolicy", Versions: stable, Categories: extensions,
			Strategy: validating, Status: validatingadmissionpolicy.NewStatusStrategy(validating),
		}),
		group.Define(definition.Kind{
			Name: "ValidatingAdmissionPolicyBinding", Versions: stable, Categories: extensions,
			Strategy: validatingadmissionpolicybinding.NewStrategy(options.Authorizer, getter, find),
		}),
		group.Define(definition.Kind{
			Name: "ValidatingWebhookConfiguration", Versions: stable, Categories: extensions,
			Strategy: validatingwebhookconfiguration.Strategy,
		}),
	}
}

// policies reads the policy that a binding refers to.
type policies struct{ objects resource.Client }

func (p policies) GetMutatingAdmissionPolicy(ctx context.Context, name string) (*api.MutatingAdmissionPolicy, error) {
	object, err := p.objects.Get(ctx,
		resource.Key{GroupResource: api.Resource("mutatingadmissionpolicies"), Name: name}, resource.ReadOptions{})
	if err != nil {
		return nil, err
	}
	return object.(*api.MutatingAdmissionPolicy), nil
}

func (p policies) GetValidatingAdmissionPolicy(
	ctx context.Context, name string,
) (*api.ValidatingAdmissionPolicy, error) {
	object, err := p.objects.Get(ctx,
		resource.Key{GroupResource: api.Resource("validatingadmissionpolicies"), Name: name}, resource.ReadOptions{})
	if err != nil {
		return nil, err
	}
	return object.(*api.ValidatingAdmissionPolicy), nil
}
