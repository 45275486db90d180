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

// Flow is a flow schema that is in force, with its priority level.
type Flow struct {
	Schema, Level string
	// SchemaHeader and LevelHeader are the values of the response headers: the UIDs. They must not be changed.
	SchemaHeader, LevelHeader []string

	source  *flowcontrolv1.FlowSchema
	set     *queueSet
	metrics *flowMetrics
	found   atomic.Pointer[series] // nil until the first request
	limited bool                   // the level is not exempt
	queues  int                    // of the level
}

// distinguisher returns what distinguishes the flows of the schema.
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

// seed of the hashes of flows. Clients cannot know which flows share queues, and each replica has others.
var seed = maphash.MakeSeed()

// hash is the entropy from which the queues of a flow are dealt.
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

// table has the flows of one state of the configuration, in the order in which they are matched.
type table struct {
	generation uint64
	flows      []*Flow
	catchAll   *Flow
}

// match returns the first flow that selects a request. The mandatory flow schema catch-all selects every authenticated or
// anonymous user; if it does not, it is used all the same.
func (t *table) match(who user.Info, info *upstream.RequestInfo) *Flow {
	for _, f := range t.flows {
		if matches(f.source, who, info) {
			return f
		}
	}
	return t.catchAll
}

// table returns the flows of the current configuration.
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

// build returns the flows that upstream's controller has in force: those whose priority level exists, in the order of
// their precedence, and the mandatory ones. Until the informers have synced, only the mandatory ones are in force.
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

// add adds a flow at the end. It ignores a flow whose priority level has no queue set, because the level is broken or not
// digested yet.
func (t *table) add(f *Flow) {
	if f.set == nil {
		return
	}
	t.flows = append(t.flows, f)
	if f.Schema == flowcontrolv1.FlowSchemaNameCatchAll {
		t.catchAll = f
	}
}

// complete adds the mandatory flow schemas that do not exist.
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

func (c *Controller) flow(schema *flowcontrolv1.FlowSchema, level *flowcontrolv1.PriorityLevelConfiguration) *Flow {
	f := &Flow{
		Schema: schema.Name, Level: level.Name, SchemaHeader: []string{string(schema.UID)}, LevelHeader: []string{string(level.UID)},
		source: schema, set: c.sets[level.Name], metrics: c.metrics, limited: level.Spec.Limited != nil,
	}
	if f.limited && level.Spec.Limited.LimitResponse.Queuing != nil {
		f.queues = int(level.Spec.Limited.LimitResponse.Queuing.Queues)
	}
	return f
}

// markUndesired marks the queue sets whose priority levels have been deleted, and forgets them when they are idle.
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
