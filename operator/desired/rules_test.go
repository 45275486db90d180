package desired

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"

	embedded "quorate.dev/config"
)

// rules returns a function that evaluates the CEL rules of the CRD for a value of a field of spec.
func rules(t *testing.T, path ...string) func(value any) string {
	t.Helper()
	text, err := embedded.CRDs.ReadFile("crd/quorate.dev_apiserverclusters.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var definition apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(text, &definition); err != nil {
		t.Fatal(err)
	}
	var internal apiextensions.JSONSchemaProps
	field := definition.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
	for _, name := range path {
		field = field.Properties[name]
	}
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(
		&field, &internal, nil,
	); err != nil {
		t.Fatal(err)
	}
	structural, err := schema.NewStructural(&internal)
	if err != nil {
		t.Fatal(err)
	}
	validator := cel.NewValidator(structural, false, celconfig.PerCallLimit)
	return func(value any) string {
		errs, _ := validator.Validate(t.Context(), nil, structural, value, nil, celconfig.RuntimeCELCostBudget)
		if len(errs) == 0 {
			return ""
		}
		return errs.ToAggregate().Error()
	}
}

// TestDefinitionsAreValid checks the CRDs as an API server does when they are created, including the estimated costs of
// their rules.
func TestDefinitionsAreValid(t *testing.T) {
	files, err := embedded.CRDs.ReadDir("crd")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		text, err := embedded.CRDs.ReadFile("crd/" + file.Name())
		if err != nil {
			t.Fatal(err)
		}
		var definition apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(text, &definition); err != nil {
			t.Fatal(err)
		}
		if definition.Kind != "CustomResourceDefinition" {
			continue
		}
		apiextensionsv1.SetDefaults_CustomResourceDefinition(&definition)
		apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&definition.Spec)
		var internal apiextensions.CustomResourceDefinition
		if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(
			&definition, &internal, nil,
		); err != nil {
			t.Fatal(err)
		}
		internal.Status.StoredVersions = []string{definition.Spec.Versions[0].Name}
		if errs := validation.ValidateCustomResourceDefinition(t.Context(), &internal); len(errs) > 0 {
			t.Errorf("%s: %v", file.Name(), errs.ToAggregate())
		}
	}
}

// namesFlag reports whether a message of a rule names a flag, or the prefix of its name.
func namesFlag(message, name string) bool {
	group, _, _ := strings.Cut(name, "-")
	words := strings.FieldsFunc(message, func(r rune) bool { return strings.ContainsRune(" ,]", r) })
	return slices.Contains(words, name) || slices.Contains(words, group+"-*")
}

// TestExtraArgsRulesAgree compares the flags that the CRD rejects with the flags that the operator rejects, in all
// spellings.
func TestExtraArgsRulesAgree(t *testing.T) {
	evaluate := rules(t, "extraArgs")
	flags := serverFlags()
	var names []string
	flags.VisitAll(func(flag *pflag.Flag) { names = append(names, flag.Name) })
	for _, name := range append(names, "etcd-x", "audit-x", "authorization-x", "x-file", "authorization-mode-x") {
		message := evaluate(map[string]any{name: "1"})
		switch reason := denialReason(name); {
		case reason == "" && message != "", reason != "" && !strings.Contains(message, reason),
			reason == setByOperator && !namesFlag(message, name):
			t.Errorf("%s: operator rejects with %q, CRD with %q", name, reason, message)
		}
		for _, spelling := range []string{
			"--" + name, "-" + name, name + "=1", strings.ReplaceAll(name, "-", "_"), strings.ToUpper(name),
		} {
			if message := evaluate(map[string]any{spelling: "1"}); message == "" && spelling != name {
				t.Errorf("the CRD accepts %q", spelling)
			}
		}
	}
}
