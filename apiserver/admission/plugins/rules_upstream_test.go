package plugins

import (
	"math/rand/v2"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/predicates/rules"
	"k8s.io/utils/ptr"
)

// some returns one to three of the values.
func some(random *rand.Rand, values ...string) []string {
	chosen := make([]string, 1+random.IntN(3))
	for i := range chosen {
		chosen[i] = values[random.IntN(len(values))]
	}
	return chosen
}

func one(random *rand.Rand, values ...string) string { return values[random.IntN(len(values))] }

func randomRule(random *rand.Rand) (rule admissionregistrationv1.RuleWithOperations) {
	for _, operation := range some(random, "CREATE", "UPDATE", "DELETE", "CONNECT", "*", "create", "") {
		rule.Operations = append(rule.Operations, admissionregistrationv1.OperationType(operation))
	}
	rule.APIGroups = some(random, "", "apps", "*", "example.com")
	rule.APIVersions = some(random, "v1", "v2", "*")
	rule.Resources = some(random, "pods", "deployments", "*", "pods/exec", "pods/*", "*/scale", "*/*",
		"deployments/scale", "/", "pods/", "a/b/c")
	if random.IntN(2) == 0 {
		rule.Scope = ptr.To(admissionregistrationv1.ScopeType(one(random, "*", "Cluster", "Namespaced")))
	}
	return rule
}

// TestRuleIndexSelectsWhatUpstreamMatches: a write that a rule of upstream's matches is never skipped.
func TestRuleIndexSelectsWhatUpstreamMatches(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	matched, skipped := 0, 0
	for range 3000 {
		index := &RuleIndex{
			synced: func() bool { return true }, rules: map[types.UID][]admissionregistrationv1.RuleWithOperations{},
		}
		for _, uid := range []types.UID{"a", "b"} {
			index.rules[uid] = []admissionregistrationv1.RuleWithOperations{randomRule(random), randomRule(random)}
		}
		index.rebuild()
		for range 20 {
			resource := schema.GroupVersionResource{
				Group: one(random, "", "apps", "example.com", "other"), Version: one(random, "v1", "v2"),
				Resource: one(random, "pods", "deployments", "things", "a"),
			}
			subresource := one(random, "", "exec", "scale", "status", "b/c")
			operation := admission.Operation(one(random, "CREATE", "UPDATE", "DELETE", "CONNECT"))
			attributes := admission.NewAttributesRecord(nil, nil, schema.GroupVersionKind{}, one(random, "", "default"), "name",
				resource, subresource, operation, nil, false, nil)
			selected := index.MaySelect(string(operation), resource.GroupResource(), subresource)
			if !selected {
				skipped++
			}
			for _, all := range index.rules {
				for _, rule := range all {
					matcher := rules.Matcher{Rule: rule, Attr: attributes}
					if !matcher.Matches() {
						continue
					}
					if matched++; !selected {
						t.Fatalf("%s of %v %q is skipped, although %+v matches", operation, resource, subresource, rule)
					}
				}
			}
		}
	}
	if matched < 1000 || skipped < 1000 {
		t.Errorf("%d matches, %d writes skipped: the samples decide too little", matched, skipped)
	}
}
