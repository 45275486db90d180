package crd_test

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"quorate.dev/apiserver/crd"
)

func TestConditions(t *testing.T) {
	type names = apiextensionsv1.CustomResourceDefinitionNames
	for _, test := range []struct {
		name      string
		change    func(*apiextensionsv1.CustomResourceDefinition)
		others    []names
		establish bool
		want      []string // "Type=Status Reason"
	}{
		{"free names", nil, nil, true, []string{"NamesAccepted=True NoConflicts", "Established=True InitialNamesAccepted"}},
		{"not yet published", nil, nil, false, []string{"NamesAccepted=True NoConflicts", "Established=False Installing"}},
		{
			"plural taken", nil, []names{{Plural: "widgets"}}, true, []string{
				"NamesAccepted=False PluralConflict", "Established=False NotAccepted",
			},
		},
		{
			"singular taken", nil, []names{{ShortNames: []string{"widget"}}}, true, []string{
				"NamesAccepted=False SingularConflict", "Established=False NotAccepted",
			},
		},
		{
			"short name taken", nil, []names{{Singular: "wd"}}, true, []string{
				"NamesAccepted=False ShortNamesConflict", "Established=False NotAccepted",
			},
		},
		{
			"kind taken", nil, []names{{ListKind: "Widget"}}, true, []string{
				"NamesAccepted=False KindConflict", "Established=False NotAccepted",
			},
		},
		{"once established, for ever", func(d *apiextensionsv1.CustomResourceDefinition) {
			d.Status = crd.Conditions(d, crd.Claim(), true)
			d.Spec.Names.ShortNames = []string{"new"}
		}, []names{{Plural: "new"}}, true, []string{
			"NamesAccepted=False ShortNamesConflict", "Established=True InitialNamesAccepted",
		}},
		{"unknown fields preserved everywhere", func(d *apiextensionsv1.CustomResourceDefinition) {
			d.Spec.PreserveUnknownFields = true
		}, nil, true,
			[]string{
				"NamesAccepted=True NoConflicts", "Established=True InitialNamesAccepted", "NonStructuralSchema=True Violations",
			}},
		{"community group without approval", func(d *apiextensionsv1.CustomResourceDefinition) { d.Spec.Group = "x.k8s.io" },
			nil, true,
			[]string{
				"NamesAccepted=True NoConflicts", "Established=True InitialNamesAccepted",
				"KubernetesAPIApprovalPolicyConformant=False MissingAnnotation",
			}},
		{
			"community group with approval", community("https://github.com/kubernetes/kubernetes/pull/1"), nil, true, []string{
				"NamesAccepted=True NoConflicts", "Established=True InitialNamesAccepted",
				"KubernetesAPIApprovalPolicyConformant=True ApprovedAnnotation",
			},
		},
		{
			"community group with an annotation that is no URL", community("approved by all"), nil, true, []string{
				"NamesAccepted=True NoConflicts", "Established=True InitialNamesAccepted",
				"KubernetesAPIApprovalPolicyConformant=False InvalidAnnotation",
			},
		},
		{
			"community group that is unapproved on purpose", community("unapproved, experimental-only"), nil, true, []string{
				"NamesAccepted=True NoConflicts", "Established=True InitialNamesAccepted",
				"KubernetesAPIApprovalPolicyConformant=False UnapprovedAnnotation",
			},
		},
		{
			"schema that cannot be checked", func(d *apiextensionsv1.CustomResourceDefinition) {
				d.Spec.Versions[0].Schema.OpenAPIV3Schema.Items = &apiextensionsv1.JSONSchemaPropsOrArray{
					JSONSchemas: []apiextensionsv1.JSONSchemaProps{{Type: "string"}},
				}
			}, nil, true, []string{
				"NamesAccepted=True NoConflicts", "Established=True InitialNamesAccepted",
				"NonStructuralSchema=Unknown StructuralError",
			},
		},
		{"webhook with a broken bundle", func(d *apiextensionsv1.CustomResourceDefinition) {
			d.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{Webhook: &apiextensionsv1.WebhookConversion{
				ClientConfig: &apiextensionsv1.WebhookClientConfig{CABundle: []byte("no certificate")},
			}}
		}, nil, true, []string{"NamesAccepted=True NoConflicts", "Established=False InvalidCABundle"}},
		{"conversion webhook", convertedByWebhook, nil, true,
			[]string{"NamesAccepted=True NoConflicts", "Established=True InitialNamesAccepted"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			definition := sample(t)
			if test.change != nil {
				test.change(definition)
			}
			status := crd.Conditions(definition, crd.Claim(test.others...), test.establish)
			var got []string
			for _, c := range status.Conditions {
				got = append(got, string(c.Type)+"="+string(c.Status)+" "+c.Reason)
			}
			if strings.Join(got, "\n") != strings.Join(test.want, "\n") {
				t.Errorf("got %q, want %q", got, test.want)
			}
			if len(status.StoredVersions) != 1 || status.StoredVersions[0] != "v1" {
				t.Errorf("stored versions %v", status.StoredVersions)
			}
		})
	}
}

// community returns a change that moves a definition to a protected group, with an annotation about its approval.
func community(approval string) func(*apiextensionsv1.CustomResourceDefinition) {
	return func(d *apiextensionsv1.CustomResourceDefinition) {
		d.Spec.Group = "x.k8s.io"
		d.Annotations = map[string]string{apiextensionsv1.KubeAPIApprovedAnnotation: approval}
	}
}

// TestStoredVersionsGrow: a new storage version is added to the stored versions, and none is removed, because objects
// may still be stored in the others.
func TestStoredVersionsGrow(t *testing.T) {
	definition := sample(t)
	for _, want := range []string{"[v1]", "[v1 v1beta1]", "[v1 v1beta1]"} {
		definition.Status = crd.Conditions(definition, crd.Claim(), true)
		if got := fmt.Sprint(definition.Status.StoredVersions); got != want {
			t.Errorf("stored versions are %s, want %s", got, want)
		}
		for i := range definition.Spec.Versions {
			definition.Spec.Versions[i].Storage = !definition.Spec.Versions[i].Storage
		}
	}
}

func TestConditionsAreStable(t *testing.T) {
	definition := sample(t)
	definition.Status = crd.Conditions(definition, crd.Claim(), true)
	again := crd.Conditions(definition, crd.Claim(), true)
	for _, c := range definition.Status.Conditions {
		if same := apihelpers.FindCRDCondition(
			&apiextensionsv1.CustomResourceDefinition{Status: again}, c.Type,
		); same == nil || *same != c {
			t.Errorf("%v became %v", c, same)
		}
	}
}
