package apiserver

import (
	"context"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	upstream "k8s.io/apiserver/pkg/admission"

	"quorate.dev/apiserver/admission"
	"quorate.dev/apiserver/admission/plugins"
	"quorate.dev/apiserver/resource"
)

// expensive is an upstream plugin whose expressions take a minute.
type expensive struct{ *upstream.Handler }

// Validate implements admission.ValidationInterface of k8s.io/apiserver. Like policies, it reads the kind before each
// expression.
func (expensive) Validate(_ context.Context, a upstream.Attributes, _ upstream.ObjectInterfaces) error {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		_ = a.GetKind()
	}
	return nil
}

type everything struct{}

// MaySelect implements admission.Rules.
func (everything) MaySelect(string, schema.GroupResource, string) bool { return true }

// TestSelectingPluginsAreLimited: the CPU time of policies and webhooks is limited, of a cluster and of an extension
// server's host.
func TestSelectingPluginsAreLimited(t *testing.T) {
	catalog := &resource.CatalogHolder{}
	definition := &resource.Definition{Plural: "pods", Versions: []*resource.Version{{Name: "v1"}}}
	catalog.Publish(resource.NewCatalog(definition))
	s := &Server{environment: environment{catalog: catalog}}
	chain := &admission.Chain{Plugins: []admission.Plugin{s.selectingPlugin(
		plugins.Plugin{Name: plugins.ValidatingAdmissionPolicy, Upstream: expensive{upstream.NewHandler(upstream.Create)}},
		everything{},
	)}}
	err := chain.Validate(t.Context(), &admission.Attributes{
		Operation: admission.Create, Definition: definition, Name: "x",
	})
	if !apierrors.IsForbidden(err) {
		t.Errorf("got %v, want that the write is forbidden", err)
	}
}
