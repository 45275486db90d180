package flowcontrol

import (
	"hash/maphash"
	"sort"
	"sync/atomic"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/labels"
	defaults "k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/apiserver/pkg/authentication/user"
	upstream "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/util/apihelpers"
)

// Flow is a FlowSchema that is in use, with its priority level.
type Flow struct {
	Schema, Level string
	// SchemaHeader and LevelHeader are the values of the response headers, the UIDs of both objects. They must not be
	// changed.
	SchemaHeader, LevelHeader []string

	source  *flowcontrolv1.FlowSchema
	set     *queueSet
	metrics *flowMetrics
	// found has the metrics of the flow; nil until the first request.
	found atomic.Pointer[series]
	// limited is set if the priority level is not exempt.
	limited bool
	// queues is the number of queues of the priority level.
	queues int
}

// distinguisher returns the flow distinguisher of a request: the user or the namespace, as the FlowSchema demands. It
// is empty if the FlowSchema demands none or the priority level has fewer than two queues.
func (f *Flow) distinguisher(who user.Info, info *upstream.RequestInfo) string {
	method := f.source.Spec.DistinguisherMethod
	switch {
	case f.queues < 2 || method == nil:
	case method.Type == flowcontrolv1.FlowDistinguisherMethodByUserType:
		return who.GetName()
	case method.Type == flowcontrolv1.FlowDistinguisherMethodByNamespaceType:
		return info.Namespace
	}
	return ""
}

// seed is the seed of the hashes of flows. It is random, so that clients cannot know which flows share queues, and
// differs between replicas.
var seed = maphash.MakeSeed()

// hash returns the hash of a flow, from which its hand of queues is dealt.
func (f *Flow) hash(distinguisher string) uint64 {
	if f.queues < 2 {
		return 0
	}
	var h maphash.Hash
	h.SetSeed(seed)
	_, _ = h.WriteString(f.Schema)
	_ = h.WriteByte(0)
	_, _ = h.WriteString(distinguisher)
	return h.Sum64()
}

// table has the flows of one version of the configuration in the order in which they are matched. It is immutable.
type table struct {
	generation uint64
	flows      []*Flow
	catchAll   *Flow
}

// match returns the first flow that selects a request. The mandatory FlowSchema catch-all selects every authenticated
// or anonymous user; it is also used if no flow selects the request.
func (t *table) match(who user.Info, info *upstream.RequestInfo) *Flow {
	for _, f := range t.flows {
		if matches(f.source, who, info) {
			return f
		}
	}
	return t.catchAll
}

// table returns the flows of the current configuration. It builds them under mu after a change.
func (c *Controller) table() *table {
	t, generation := c.current.Load(), c.generation.Load()
	if t != nil && t.generation == generation {
		return t
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if t, generation = c.current.Load(), c.generation.Load(); t == nil || t.generation != generation {
		t = c.build(generation)
		c.current.Store(t)
	}
	return t
}

// build returns the flows that upstream's controller uses: the FlowSchemas whose priority level exists, in the order
// of their precedence, and the mandatory FlowSchemas. Until the informers have synced, it returns only the mandatory
// ones. The caller holds mu.
func (c *Controller) build(generation uint64) *table {
	levels := map[string]*flowcontrolv1.PriorityLevelConfiguration{}
	var schemas apihelpers.FlowSchemaSequence
	if c.Synced() {
		existing, err := c.levels.Lister().List(labels.Everything())
		if err == nil {
			schemas, err = c.schemas.Lister().List(labels.Everything())
		}
		if err != nil {
			c.logger.Error(err, "Failed to read the configuration of priority and fairness; using the mandatory objects")
		}
		for _, level := range existing {
			levels[level.Name] = level
		}
	}
	c.markUndesired(levels)
	for _, mandatory := range defaults.MandatoryPriorityLevelConfigurations {
		if levels[mandatory.Name] == nil {
			levels[mandatory.Name] = mandatory
		}
	}
	sort.Sort(schemas)
	t := &table{generation: generation}
	for _, schema := range schemas {
		if level := levels[schema.Spec.PriorityLevelConfiguration.Name]; level != nil {
			t.add(c.flow(schema, level))
		}
	}
	t.complete(c, levels)
	return t
}

// add appends a flow. It ignores a flow whose priority level has no queue set, because the level is invalid or
// upstream's controller has not digested it yet.
func (t *table) add(f *Flow) {
	if f.set == nil {
		return
	}
	t.flows = append(t.flows, f)
	if f.Schema == flowcontrolv1.FlowSchemaNameCatchAll {
		t.catchAll = f
	}
}

// complete adds the mandatory FlowSchemas that do not exist.
func (t *table) complete(c *Controller, levels map[string]*flowcontrolv1.PriorityLevelConfiguration) {
	existing := map[string]bool{}
	for _, f := range t.flows {
		existing[f.Schema] = true
	}
	if exempt := defaults.MandatoryFlowSchemaExempt; !existing[exempt.Name] {
		flows := t.flows
		t.flows = nil
		t.add(c.flow(exempt, levels[exempt.Spec.PriorityLevelConfiguration.Name]))
		t.flows = append(t.flows, flows...)
	}
	if last := defaults.MandatoryFlowSchemaCatchAll; !existing[last.Name] {
		t.add(c.flow(last, levels[last.Spec.PriorityLevelConfiguration.Name]))
	}
}

// flow returns the flow of a FlowSchema and its priority level. The caller holds mu.
func (c *Controller) flow(schema *flowcontrolv1.FlowSchema, level *flowcontrolv1.PriorityLevelConfiguration) *Flow {
	f := &Flow{
		Schema: schema.Name, Level: level.Name, SchemaHeader: []string{string(schema.UID)},
		LevelHeader: []string{string(level.UID)}, source: schema, set: c.sets[level.Name], metrics: c.metrics,
		limited: level.Spec.Limited != nil,
	}
	if f.limited && level.Spec.Limited.LimitResponse.Queuing != nil {
		f.queues = int(level.Spec.Limited.LimitResponse.Queuing.Queues)
	}
	return f
}

// markUndesired marks the queue sets whose priority levels have been deleted, and removes those that are idle. The
// caller holds mu.
func (c *Controller) markUndesired(levels map[string]*flowcontrolv1.PriorityLevelConfiguration) {
	for name, set := range c.sets {
		desired := levels[name] != nil || name == flowcontrolv1.PriorityLevelConfigurationNameExempt ||
			name == flowcontrolv1.PriorityLevelConfigurationNameCatchAll
		set.undesired.Store(!desired)
		if !desired && set.IsIdle() {
			delete(c.sets, name)
		}
	}
}
