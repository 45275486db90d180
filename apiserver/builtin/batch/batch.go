// Package batch defines the kinds of the API group batch.
package batch

import (
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
		}),
	}
}
