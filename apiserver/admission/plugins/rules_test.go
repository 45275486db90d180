package plugins

import (
	"context"
	"fmt"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apimachinery/pkg/util/wait"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
)

func rule(operation, group, resource string) admissionregistrationv1.RuleWithOperations {
	return admissionregistrationv1.RuleWithOperations{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.OperationType(operation)},
		Rule: admissionregistrationv1.Rule{
			APIGroups: []string{group}, APIVersions: []string{"v1"}, Resources: []string{resource},
		},
	}
}

func TestRuleIndex(t *testing.T) {
	pods, deployments := schema.GroupResource{Resource: "pods"}, schema.GroupResource{
		Group: "apps", Resource: "deployments",
	}
	for name, test := range map[string]struct {
		rule        admissionregistrationv1.RuleWithOperations
		operation   string
		resource    schema.GroupResource
		subresource string
		want        bool
	}{
		"equal":                           {rule("CREATE", "", "pods"), "CREATE", pods, "", true},
		"another operation":               {rule("UPDATE", "", "pods"), "CREATE", pods, "", false},
		"every operation":                 {rule("*", "", "pods"), "DELETE", pods, "", true},
		"another group":                   {rule("*", "apps", "pods"), "CREATE", pods, "", false},
		"every group":                     {rule("*", "*", "deployments"), "CREATE", deployments, "", true},
		"a resource, not its subresource": {rule("*", "", "pods"), "CREATE", pods, "exec", false},
		"a subresource":                   {rule("*", "", "pods/exec"), "CREATE", pods, "exec", true},
		"all subresources":                {rule("*", "", "pods/*"), "CREATE", pods, "exec", true},
		"all subresources and itself":     {rule("*", "", "pods/*"), "CREATE", pods, "", true},
		"a subresource of all":            {rule("*", "apps", "*/scale"), "UPDATE", deployments, "scale", true},
		"all resources":                   {rule("*", "apps", "*"), "UPDATE", deployments, "", true},
		"all resources, no subresources":  {rule("*", "apps", "*"), "UPDATE", deployments, "scale", false},
		"all of all":                      {rule("*", "*", "*/*"), "UPDATE", deployments, "scale", true},
	} {
		index := &RuleIndex{
			synced: func() bool { return true },
			rules:  map[types.UID][]admissionregistrationv1.RuleWithOperations{"a": {test.rule}},
		}
		index.rebuild()
		if got := index.MaySelect(test.operation, test.resource, test.subresource); got != test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestRuleIndexFollows: the index selects everything until it has read all configurations, and follows them then.
func TestRuleIndexFollows(t *testing.T) {
	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "a"},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Rules: []admissionregistrationv1.RuleWithOperations{rule("CREATE", "", "pods")},
		}},
	}
	client := fake.NewClientset(configuration)
	factory := informers.NewSharedInformerFactory(client, 0)
	index, err := newRuleIndex(factory.Admissionregistration().V1().ValidatingWebhookConfigurations().Informer(),
		rulesOfValidatingWebhooks)
	if err != nil {
		t.Fatal(err)
	}
	pods, secrets := schema.GroupResource{Resource: "pods"}, schema.GroupResource{Resource: "secrets"}
	if !index.MaySelect("CREATE", secrets, "") {
		t.Error("a write is not selected before the configurations are known")
	}
	factory.Start(t.Context().Done())
	factory.WaitForCacheSync(t.Context().Done())
	becomes := func(what string, want func() bool) {
		t.Helper()
		met := func(context.Context) (bool, error) { return want(), nil }
		if err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, 20*time.Second, true, met); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	becomes("synced", func() bool {
		return index.MaySelect("CREATE", pods, "") && !index.MaySelect("CREATE", secrets, "")
	})
	configurations := client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	if err := configurations.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	becomes("deleted", func() bool { return !index.MaySelect("CREATE", pods, "") })
}

func TestPolicyWithoutRulesSelectsEverything(t *testing.T) {
	if got := rulesOfValidatingPolicy(&admissionregistrationv1.ValidatingAdmissionPolicy{}); len(got) != 1 ||
		got[0].Resources[0] != "*/*" {
		t.Errorf("got %v", got)
	}
}

// BenchmarkMaySelect is what 100 configurations that select nothing add to each write.
func BenchmarkMaySelect(b *testing.B) {
	index := &RuleIndex{
		synced: func() bool { return true }, rules: map[types.UID][]admissionregistrationv1.RuleWithOperations{},
	}
	for i := range 100 {
		group := fmt.Sprintf("group-%d.example.com", i)
		index.rules[types.UID(group)] = []admissionregistrationv1.RuleWithOperations{
			rule("CREATE", group, "things"), rule("UPDATE", group, "*"),
		}
	}
	index.rules["pods"] = []admissionregistrationv1.RuleWithOperations{rule("DELETE", "", "pods")}
	index.rebuild()
	pods := schema.GroupResource{Resource: "pods"}
	b.ReportAllocs()
	for b.Loop() {
		if index.MaySelect("CREATE", pods, "") {
			b.Fatal("selected")
		}
	}
}

// TestRulesOfDisabledPolicies: no informer follows a kind that is not served, as mutating policies with
// --emulated-version=1.34.
func TestRulesOfDisabledPolicies(t *testing.T) {
	featuregatetesting.SetFeatureGateEmulationVersionDuringTest(t,
		utilfeature.DefaultFeatureGate, version.MustParse("1.34"))
	index, err := rulesFor(MutatingAdmissionPolicy, informers.NewSharedInformerFactory(fake.NewClientset(), 0))
	if index != nil || err != nil {
		t.Errorf("got %v, %v, want no index", index, err)
	}
}
