package plugins

import (
	"sync"
	"sync/atomic"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// RuleIndex says which writes the rules of all configurations of a kind may select: those of webhooks, or the match
// constraints of policies. It ignores everything else that narrows a rule, so that a write that it does not select can
// skip upstream's dispatcher, which looks at each configuration and copies the object.
type RuleIndex struct {
	informer cache.SharedIndexInformer
	rulesOf  func(object any) []admissionregistrationv1.RuleWithOperations
	synced   cache.InformerSynced

	mu      sync.Mutex
	rules   map[types.UID][]admissionregistrationv1.RuleWithOperations
	targets atomic.Pointer[map[target]struct{}]
}

// target is what a rule selects. Every member may be "*".
type target struct{ operation, group, resource string }

const wildcard = "*"

func newRuleIndex(informer cache.SharedIndexInformer, rulesOf func(any) []admissionregistrationv1.RuleWithOperations) (*RuleIndex, error) {
	i := &RuleIndex{informer: informer, rulesOf: rulesOf, rules: map[types.UID][]admissionregistrationv1.RuleWithOperations{}}
	i.targets.Store(&map[target]struct{}{})
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
	targets := map[target]struct{}{}
	for _, rules := range i.rules {
		for _, rule := range rules {
			for _, operation := range rule.Operations {
				for _, group := range rule.APIGroups {
					for _, resource := range rule.Resources {
						targets[target{string(operation), group, resource}] = struct{}{}
					}
				}
			}
		}
	}
	i.targets.Store(&targets)
}

// MaySelect implements admission.Selector. It is true as long as the configurations are not known.
func (i *RuleIndex) MaySelect(operation string, resource schema.GroupResource, subresource string) bool {
	if !i.synced() {
		return true
	}
	targets := *i.targets.Load()
	if len(targets) == 0 {
		return false
	}
	for _, pattern := range patterns(resource.Resource, subresource) {
		for _, t := range [...]target{
			{operation, resource.Group, pattern}, {wildcard, resource.Group, pattern},
			{operation, wildcard, pattern}, {wildcard, wildcard, pattern},
		} {
			if _, ok := targets[t]; ok {
				return true
			}
		}
	}
	return false
}

// patterns are the spellings that select a resource or subresource in a rule.
func patterns(plural, subresource string) [4]string {
	if subresource == "" {
		return [4]string{plural, plural + "/*", wildcard, "*/*"}
	}
	return [4]string{plural + "/" + subresource, plural + "/*", "*/" + subresource, "*/*"}
}

// everything is what a policy without rules selects.
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

func rulesOfConstraints(constraints *admissionregistrationv1.MatchResources) (rules []admissionregistrationv1.RuleWithOperations) {
	if constraints == nil || len(constraints.ResourceRules) == 0 {
		return everything
	}
	for _, rule := range constraints.ResourceRules {
		rules = append(rules, rule.RuleWithOperations)
	}
	return rules
}
