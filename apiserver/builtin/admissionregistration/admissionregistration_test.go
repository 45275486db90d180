package admissionregistration_test

import (
	"context"
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	api "k8s.io/kubernetes/pkg/apis/admissionregistration"

	"quorate.dev/apiserver/builtin/admissionregistration"
	"quorate.dev/apiserver/builtin/builtintest"
	"quorate.dev/apiserver/resource"
)

func TestServed(t *testing.T) {
	t.Parallel()
	builtintest.CheckServed(t, definitions(), []builtintest.Served{
		{
			Resource: "mutatingadmissionpolicies", Kind: "MutatingAdmissionPolicy",
			Versions: "v1 v1beta1 v1alpha1", Categories: "api-extensions",
			Stored:  "mutatingadmissionpolicies admissionregistration.k8s.io/v1",
			Columns: "Mutations, ParamKind, Age",
		},
		{
			Resource: "mutatingadmissionpolicybindings", Kind: "MutatingAdmissionPolicyBinding",
			Versions: "v1 v1beta1 v1alpha1", Categories: "api-extensions",
			Stored:  "mutatingadmissionpolicybindings admissionregistration.k8s.io/v1",
			Columns: "PolicyName, ParamRef, Age",
		},
		{
			Resource: "mutatingwebhookconfigurations", Kind: "MutatingWebhookConfiguration", Versions: "v1",
			Categories: "api-extensions",
			Stored:     "mutatingwebhookconfigurations admissionregistration.k8s.io/v1",
			Columns:    "Webhooks, Age",
		},
		{
			Resource: "validatingadmissionpolicies", Kind: "ValidatingAdmissionPolicy", Versions: "v1",
			Categories: "api-extensions",
			Stored:     "validatingadmissionpolicies admissionregistration.k8s.io/v1",
			Columns:    "Validations, ParamKind, Age", Subresources: []string{"status"},
		},
		{
			Resource: "validatingadmissionpolicybindings", Kind: "ValidatingAdmissionPolicyBinding",
			Versions: "v1", Categories: "api-extensions",
			Stored:  "validatingadmissionpolicybindings admissionregistration.k8s.io/v1",
			Columns: "PolicyName, ParamRef, Age",
		},
		{
			Resource: "validatingwebhookconfigurations", Kind: "ValidatingWebhookConfiguration",
			Versions: "v1", Categories: "api-extensions",
			Stored:  "validatingwebhookconfigurations admissionregistration.k8s.io/v1",
			Columns: "Webhooks, Age",
		},
	})
}

// policies is a client with the policies of each kind named "replicas", whose parameters are Limits.
type policies struct{ resource.Client }

func (policies) Get(_ context.Context, key resource.Key, _ resource.ReadOptions) (runtime.Object, error) {
	kind := &api.ParamKind{APIVersion: "example.com/v1", Kind: "Limit"}
	switch {
	case key.Name != "replicas":
	case key.GroupResource == api.Resource("validatingadmissionpolicies"):
		return &api.ValidatingAdmissionPolicy{Spec: api.ValidatingAdmissionPolicySpec{ParamKind: kind}}, nil
	case key.GroupResource == api.Resource("mutatingadmissionpolicies"):
		return &api.MutatingAdmissionPolicy{Spec: api.MutatingAdmissionPolicySpec{ParamKind: kind}}, nil
	}
	return nil, apierrors.NewNotFound(key.GroupResource, key.Name)
}

// readers allows alice to read all Limits, and bob to read the Limit named "bobs".
func readers(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	limit := a.GetVerb() == "get" && a.GetAPIGroup() == "example.com" && a.GetResource() == "limits"
	if limit && (a.GetUser().GetName() == "alice" || a.GetName() == "bobs") {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

func definitions() []*resource.Definition {
	return admissionregistration.Definitions(builtintest.NewBuilder(), admissionregistration.Options{
		Authorizer: authorizer.AuthorizerFunc(readers), Objects: policies{},
		Resource: func(kind schema.GroupVersionKind) (schema.GroupVersionResource, error) {
			if kind != (schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Limit"}) {
				return schema.GroupVersionResource{}, fmt.Errorf("no resource of %v", kind)
			}
			return kind.GroupVersion().WithResource("limits"), nil
		},
	})
}

const (
	match = `{resourceRules: [{apiGroups: [apps], apiVersions: [v1], operations: [CREATE], resources: [deployments]}]}`

	validating = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: replicas, generation: 7}
spec:
  paramKind: {apiVersion: example.com/v1, kind: Limit}
  matchConstraints: ` + match + `
  validations: [{expression: "object.spec.replicas <= params.max"}]
`
	mutating = `
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: replicas, generation: 7}
spec:
  paramKind: {apiVersion: example.com/v1, kind: Limit}
  matchConstraints: ` + match + `
  reinvocationPolicy: Never
  mutations:
  - patchType: ApplyConfiguration
    applyConfiguration: {expression: "Object{spec: Object.spec{replicas: 1}}"}
`
	validatingBinding = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: replicas}
spec: {policyName: replicas, validationActions: [Deny], paramRef: {name: small, parameterNotFoundAction: Deny}}
`
	mutatingBinding = `
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: replicas}
spec: {policyName: replicas, paramRef: {name: small, parameterNotFoundAction: Deny}}
`
	webhook = `
webhooks:
- name: check.example.com
  admissionReviewVersions: [v1]
  sideEffects: None
  clientConfig: {service: {namespace: team, name: check}}
  rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]
`
	validatingWebhook = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: check, generation: 7}` + webhook
	mutatingWebhook = `
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: check, generation: 7}` + webhook
)

func TestPolicies(t *testing.T) {
	t.Parallel()
	const unreadableKind = `spec.paramKind: Forbidden: user &{bob  [] map[]} must have "get" permission on all objects ` +
		"of the referenced paramKind (kind=Limit, apiVersion=example.com/v1)"
	builtintest.CheckWrites(t, definitions(), map[string]builtintest.Write{
		"create sets defaults and drops the status": {
			Endpoint: "validatingadmissionpolicies", Object: validating, With: "status: {observedGeneration: 3}",
			Want: map[string]string{
				"metadata.generation": "1", "spec.failurePolicy": "Fail", "spec.matchConstraints.matchPolicy": "Equivalent",
				"spec.matchConstraints.resourceRules[0].scope": "*", "status": "{}",
			},
		},
		"a change of the spec is a new generation": {
			Endpoint: "validatingadmissionpolicies", Object: validating,
			Update: "{spec: {failurePolicy: Ignore}, status: {observedGeneration: 3}}",
			Want:   map[string]string{"metadata.generation": "2", "spec.failurePolicy": "Ignore", "status": "{}"},
		},
		"a status update keeps the spec": {
			Endpoint: "validatingadmissionpolicies/status", Object: validating,
			Update: "{spec: {failurePolicy: Ignore}, status: {observedGeneration: 3}}",
			Want: map[string]string{
				"metadata.generation": "1", "spec.failurePolicy": "Fail", "status.observedGeneration": "3",
			},
		},
		"expressions are compiled": {
			Endpoint: "validatingadmissionpolicies", Object: validating, With: "spec: {validations: [{expression: '1 + 1'}]}",
			Errors: []string{`spec.validations[0].expression: Invalid value: "1 + 1": must evaluate to bool but got int`},
		},
		"a policy needs validations": {
			Endpoint: "validatingadmissionpolicies", Object: validating, With: "spec: {validations: null}",
			Errors: []string{
				"spec.validations: Required value: validations or auditAnnotations must contain at least one item",
				"spec.auditAnnotations: Required value: validations or auditAnnotations must contain at least one item",
			},
		},
		"a client must be allowed to read the parameters of a validating policy": {
			Endpoint: "validatingadmissionpolicies", Object: validating, User: "bob", Errors: []string{unreadableKind},
		},
		"a client must be allowed to read the parameters of a mutating policy": {
			Endpoint: "mutatingadmissionpolicies", Object: mutating, User: "bob", Errors: []string{unreadableKind},
		},
		"a new mutating policy has the generation 1": {
			Endpoint: "mutatingadmissionpolicies", Object: mutating,
			Want: map[string]string{"metadata.generation": "1", "spec.failurePolicy": "Fail"},
		},
		"a mutating policy needs mutations": {
			Endpoint: "mutatingadmissionpolicies", Object: mutating, With: "spec: {mutations: null}",
			Errors: []string{"spec.mutations: Required value: mutations must contain at least one item"},
		},
	})
}

// TestBindings: a client that writes a binding must be allowed to read its parameters, which are of the policy's kind.
func TestBindings(t *testing.T) {
	t.Parallel()
	// The arguments of upstream's message for mutating bindings are exchanged.
	const (
		unreadable = `spec.paramRef: Forbidden: user &{bob  [] map[]} does not have "get" permission ` +
			"on the object referenced by paramRef"
		unreadableMutating = `spec.paramRef: Forbidden: user get does not have "&{bob  [] map[]}" permission ` +
			"on the object referenced by paramRef"
		unknownPolicy = "spec.paramRef: Forbidden: unable to get policy other to determine minimum required permissions " +
			`and user &{alice  [] map[]} does not have "get" permission for all groups, versions and resources`
	)
	writes := map[string]builtintest.Write{}
	for plural, test := range map[string]struct{ object, unreadable string }{
		"validatingadmissionpolicybindings": {validatingBinding, unreadable},
		"mutatingadmissionpolicybindings":   {mutatingBinding, unreadableMutating},
	} {
		object := test.object
		writes[plural+" of all parameters"] = builtintest.Write{
			Endpoint: plural, Object: object, Want: map[string]string{"metadata.generation": "1", "spec.policyName": "replicas"},
		}
		writes[plural+" of readable parameters"] = builtintest.Write{
			Endpoint: plural, Object: object, User: "bob", With: "spec: {paramRef: {name: bobs}}",
			Want: map[string]string{"spec.paramRef.name": "bobs"},
		}
		writes[plural+" of unreadable parameters"] = builtintest.Write{
			Endpoint: plural, Object: object, User: "bob", Errors: []string{test.unreadable},
		}
		writes[plural+" of a policy that does not exist"] = builtintest.Write{
			Endpoint: plural, Object: object, With: "spec: {policyName: other}",
			Errors: []string{unknownPolicy},
		}
		writes[plural+" need a policy"] = builtintest.Write{
			Endpoint: plural, Object: object, With: "spec: {policyName: '', paramRef: null}",
			Errors: []string{"spec.policyName: Required value"},
		}
		writes[plural+" have generations"] = builtintest.Write{
			Endpoint: plural, Object: object, Update: "spec: {paramRef: {name: large}}",
			Want: map[string]string{"metadata.generation": "2"},
		}
	}
	writes["validating bindings need actions"] = builtintest.Write{
		Endpoint: "validatingadmissionpolicybindings", Object: validatingBinding, With: "spec: {validationActions: null}",
		Errors: []string{"spec.validationActions: Required value"},
	}
	builtintest.CheckWrites(t, definitions(), writes)
}

func TestWebhooks(t *testing.T) {
	t.Parallel()
	writes := map[string]builtintest.Write{}
	for plural, object := range map[string]string{
		"validatingwebhookconfigurations": validatingWebhook, "mutatingwebhookconfigurations": mutatingWebhook,
	} {
		writes[plural+" have defaults"] = builtintest.Write{
			Endpoint: plural, Object: object,
			Want: map[string]string{
				"metadata.generation": "1", "webhooks[0].failurePolicy": "Fail", "webhooks[0].timeoutSeconds": "10",
				"webhooks[0].matchPolicy": "Equivalent", "webhooks[0].clientConfig.service.port": "443",
				"webhooks[0].rules[0].scope": "*",
			},
		}
		writes[plural+" have generations"] = builtintest.Write{
			Endpoint: plural, Object: object, Update: "webhooks: null", Want: map[string]string{"metadata.generation": "2"},
		}
		writes[plural+" keep generations"] = builtintest.Write{
			Endpoint: plural, Object: object, Update: "metadata: {labels: {a: b}, generation: 9}",
			Want: map[string]string{"metadata.generation": "1"},
		}
		writes[plural+" are validated"] = builtintest.Write{
			Endpoint: plural, Object: object,
			With: "webhooks: [{name: check, admissionReviewVersions: [v1], sideEffects: Some, clientConfig: {}}]",
			Errors: []string{
				`webhooks[0].name: Invalid value: "check": should be a domain with at least three segments separated by dots`,
				`webhooks[0].sideEffects: Unsupported value: "Some": supported values: "None", "NoneOnDryRun"`,
				"webhooks[0].clientConfig: Required value: exactly one of url or service is required",
			},
		}
	}
	builtintest.CheckWrites(t, definitions(), writes)
}
