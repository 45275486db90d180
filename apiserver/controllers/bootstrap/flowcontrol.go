package bootstrap

import (
	"context"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	defaults "k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/flowcontrol/install"
	"k8s.io/kubernetes/pkg/registry/flowcontrol/ensurer"

	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/system"
)

// flowControlProducer is a field manager of kube-apiserver.
const flowControlProducer = "api-priority-and-fairness-config-producer-v1"

const flowControlEvery = time.Minute

// Resources of API priority and fairness.
var (
	FlowSchemas    = schema.GroupResource{Group: flowcontrolv1.GroupName, Resource: "flowschemas"}
	PriorityLevels = schema.GroupResource{Group: flowcontrolv1.GroupName, Resource: "prioritylevelconfigurations"}
)

// FlowControl creates and updates the mandatory and suggested objects of API priority and fairness, and deletes
// obsolete suggested objects.
func (b *Bootstrap) FlowControl(ctx context.Context) error {
	ctx = resource.WithManager(system.WithServerUser(ctx), flowControlProducer)
	levels := configurations[*flowcontrolv1.PriorityLevelConfiguration]{ctx: ctx, bootstrap: b, resource: PriorityLevels}
	schemas := configurations[*flowcontrolv1.FlowSchema]{ctx: ctx, bootstrap: b, resource: FlowSchemas}
	err := levels.read()
	if apierrors.IsNotFound(err) {
		return nil // disabled by --runtime-config
	}
	if err != nil {
		return err
	}
	if err := schemas.read(); err != nil {
		return err
	}
	levelTasks := levels.tasks(defaults.MandatoryPriorityLevelConfigurations,
		defaults.SuggestedPriorityLevelConfigurations,
		ensurer.NewObjectOps(levels, levels, (*flowcontrolv1.PriorityLevelConfiguration).DeepCopy,
			withLevelSpec, sameLevelSpec))
	schemaTasks := schemas.tasks(defaults.MandatoryFlowSchemas, defaults.SuggestedFlowSchemas,
		ensurer.NewObjectOps(schemas, schemas, (*flowcontrolv1.FlowSchema).DeepCopy, withSchemaSpec, sameSchemaSpec))
	return runAll(ctx, append(levelTasks, schemaTasks...))
}

// FlowControlLoop runs FlowControl periodically.
func (b *Bootstrap) FlowControlLoop() Loop {
	return Loop{Name: "flow control configuration", Pass: b.FlowControl, Every: flowControlEvery}
}

func withLevelSpec(into, from *flowcontrolv1.PriorityLevelConfiguration) *flowcontrolv1.PriorityLevelConfiguration {
	into = into.DeepCopy()
	from.Spec.DeepCopyInto(&into.Spec)
	return into
}

// sameLevelSpec reports whether two priority levels have equal specs. In the exempt level, it ignores the fields that
// users may change.
func sameLevelSpec(wanted, actual *flowcontrolv1.PriorityLevelConfiguration) bool {
	wanted = wanted.DeepCopy()
	legacyscheme.Scheme.Default(wanted)
	if wanted.Name == flowcontrolv1.PriorityLevelConfigurationNameExempt {
		if actual.Spec.Exempt == nil {
			return false
		}
		wanted.Spec.Exempt.NominalConcurrencyShares = actual.Spec.Exempt.NominalConcurrencyShares
		wanted.Spec.Exempt.LendablePercent = actual.Spec.Exempt.LendablePercent
	}
	return equality.Semantic.DeepEqual(wanted.Spec, actual.Spec)
}

func withSchemaSpec(into, from *flowcontrolv1.FlowSchema) *flowcontrolv1.FlowSchema {
	into = into.DeepCopy()
	from.Spec.DeepCopyInto(&into.Spec)
	return into
}

func sameSchemaSpec(wanted, actual *flowcontrolv1.FlowSchema) bool {
	wanted = wanted.DeepCopy()
	legacyscheme.Scheme.Default(wanted)
	return equality.Semantic.DeepEqual(wanted.Spec, actual.Spec)
}
