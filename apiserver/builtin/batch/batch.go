// Package batch defines the kinds of the API group batch.
package batch

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/registry/rest"
	_ "k8s.io/kubernetes/pkg/apis/batch/install"
	"k8s.io/kubernetes/pkg/registry/batch/cronjob"
	"k8s.io/kubernetes/pkg/registry/batch/job"

	"quorate.dev/apiserver/builtin/definition"
	"quorate.dev/apiserver/resource"
)

// Definitions returns the kinds of the group.
func Definitions(builder *definition.Builder) []*resource.Definition {
	group := builder.Group("batch", "v1")
	return []*resource.Definition{
		group.Define(definition.Kind{
			Name: "CronJob", ShortNames: []string{"cj"}, Categories: []string{"all"},
			Strategy: cronjob.Strategy, Status: cronjob.StatusStrategy,
		}),
		group.Define(definition.Kind{
			Name: "Job", Categories: []string{"all"},
			Strategy: job.Strategy, Status: job.StatusStrategy, Attributes: job.GetAttrs,
			Delete: jobDeletion{job.Strategy, job.Strategy},
		}),
	}
}

// jobDeletion warns clients that delete a Job without a propagation policy.
type jobDeletion struct {
	rest.RESTDeleteStrategy
	rest.GarbageCollectionDeleteStrategy
}

const podsPreserved = "child pods are preserved by default when jobs are deleted; " +
	"set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning"

// WarningsOnDelete implements resource.DeletionWarner.
func (d jobDeletion) WarningsOnDelete(ctx context.Context, options *metav1.DeleteOptions) []string {
	// Old clients still send OrphanDependents.
	if options.PropagationPolicy != nil || options.OrphanDependents != nil ||
		d.DefaultGarbageCollectionPolicy(ctx) != rest.OrphanDependents {
		return nil
	}
	return []string{podsPreserved}
}
