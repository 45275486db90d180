// Package events defines the kind of the API group events.k8s.io. It shares its objects with the core group.
package events

import (
	"time"

	_ "k8s.io/kubernetes/pkg/apis/events/install"

	"quorate.dev/apiserver/builtin/core"
	"quorate.dev/apiserver/builtin/definition"
	"quorate.dev/apiserver/resource"
)

// Definitions returns the kinds of the group; events live for timeToLive after their last write.
func Definitions(builder *definition.Builder, timeToLive time.Duration) []*resource.Definition {
	group := builder.Group("events.k8s.io", "v1")
	return []*resource.Definition{group.Define(core.EventKind(timeToLive))}
}
