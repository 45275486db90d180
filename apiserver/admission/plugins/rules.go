package plugins

import (
	"strings"
	"sync"
	"sync/atomic"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// RuleIndex holds the rules of all configurations of one kind: the rules of webhooks, or the match constraints of
// policies. It decides whether a write may be selected, from operation, group and resource alone; it ignores selectors,
// match conditions and exclusions. A write that it does not select skips upstream's dispatcher, which looks at each
// configuration and copies the object.
type RuleIndex struct {
	informer cache.SharedIndexInformer
	rulesOf  func(object any) []admissionregistrationv1.RuleWithOperations
	synced   cache.InformerSynced
	// all is set if the plugin also has configurations in static manifests, whose rules the index does not know, so that
	// every write may be selected.
	all bool

	mu      sync.Mutex
	rules   map[types.UID][]admissionregistrationv1.RuleWithOperations
	targets atomic.Pointer[targets]
}

// targets has the operations that rules select, by API group, resource and subresource. "*" means all groups.
type targets map[string]selectedTargets

type selectedTargets map[target]operations

// target is a resource and a subresource, either of which may be "*".
type target struct{ resource, subresource string }

// operations is a set of bits, one for each operation.
type operations uint8

const wildcard = "*"

func operationsOf(name string) operations {
	switch name {
	case "CREATE":
		return 1
	case "UPDATE":
		return 2
	case "DELETE":
		return 4
	case "CONNECT":
		return 8
	case wildcard:
		return 15
	}
	return 0
}

func newRuleIndex(
	informer cache.SharedIndexInformer, rulesOf func(any) []admissionregistrationv1.RuleWithOperations,
) (*RuleIndex, error) {
	i := &RuleIndex{
		informer: informer, rulesOf: rulesOf, rules: map[types.UID][]admissionregistrationv1.RuleWithOperations{},
	}
	i.targets.Store(&targets{})
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    i.set,
		UpdateFunc: func(_, object any) { i.set(object) },
		DeleteFunc: i.remove,
	})
	if err != nil {
		return nil, err
	}
	i.synced = registration.HasSynced
	return i, nil
}

func (i *RuleIndex) set(object any) {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.rules[accessor.GetUID()] = i.rulesOf(object)
	i.rebuild()
}

func (i *RuleIndex) remove(object any) {
	if tombstone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = tombstone.Obj
	}
	accessor, err := meta.Accessor(object)
	if err != nil {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.rules, accessor.GetUID())
	i.rebuild()
}

// rebuild replaces the targets. The caller holds the lock.
func (i *RuleIndex) rebuild() {
	all := targets{}
	for _, rules := range i.rules {
		for _, rule := range rules {
			all.add(rule)
		}
	}
	i.targets.Store(&all)
}

func (t targets) add(rule admissionregistrationv1.RuleWithOperations) {
	var selected operations
	for _, operation := range rule.Operations {
		selected |= operationsOf(string(operation))
	}
	for _, group := range rule.APIGroups {
		if t[group] == nil {
			t[group] = selectedTargets{}
		}
		for _, name := range rule.Resources {
			resource, subresource, _ := strings.Cut(name, "/")
			t[group][target{resource, subresource}] |= selected
		}
	}
}

// MaySelect implements admission.Rules. It returns true until the informer has synced, and for all writes if the plugin
// has static manifests.
func (i *RuleIndex) MaySelect(operation string, resource schema.GroupResource, subresource string) bool {
	if i.all || !i.synced() {
		return true
	}
	all, wanted := *i.targets.Load(), operationsOf(operation)
	return all[resource.Group].selects(wanted, resource.Resource, subresource) ||
		all[wildcard].selects(wanted, resource.Resource, subresource)
}

// selects reports whether a rule selects at least one operation in wanted of the resource and subresource.
func (t selectedTargets) selects(wanted operations, resource, subresource string) bool {
	if len(t) == 0 {
		return false
	}
	return (t[target{resource, subresource}]|t[target{resource, wildcard}]|
		t[target{wildcard, subresource}]|t[target{wildcard, wildcard}])&wanted != 0
}

// everything is the rule for policies without match constraints, which select all writes.
var everything = []admissionregistrationv1.RuleWithOperations{{
	Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.OperationAll},
	Rule:       admissionregistrationv1.Rule{APIGroups: []string{wildcard}, Resources: []string{"*/*"}},
}}

func rulesOfMutatingWebhooks(object any) (rules []admissionregistrationv1.RuleWithOperations) {
	for _, webhook := range object.(*admissionregistrationv1.MutatingWebhookConfiguration).Webhooks {
		rules = append(rules, webhook.Rules...)
	}
	return rules
}

func rulesOfValidatingWebhooks(object any) (rules []admissionregistrationv1.RuleWithOperations) {
	for _, webhook := range object.(*admissionregistrationv1.ValidatingWebhookConfiguration).Webhooks {
		rules = append(rules, webhook.Rules...)
	}
	return rules
}

func rulesOfMutatingPolicy(object any) []admissionregistrationv1.RuleWithOperations {
	return rulesOfConstraints(object.(*admissionregistrationv1.MutatingAdmissionPolicy).Spec.MatchConstraints)
}

func rulesOfValidatingPolicy(object any) []admissionregistrationv1.RuleWithOperations {
	return rulesOfConstraints(object.(*admissionregistrationv1.ValidatingAdmissionPolicy).Spec.MatchConstraints)
}

func rulesOfConstraints(
	constraints *admissionregistrationv1.MatchResources,
) (rules []admissionregistrationv1.RuleWithOperations) {
	if constraints == nil || len(constraints.ResourceRules) == 0 {
		return everything
	}
	for _, rule := range constraints.ResourceRules {
		rules = append(rules, rule.RuleWithOperations)
	}
	return rules
}
