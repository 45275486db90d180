package plugins

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
)

func TestQuotasCountWhatIsServed(t *testing.T) {
	claims := schema.GroupResource{Group: "resource.k8s.io", Resource: "resourceclaims"}
	for name, served := range map[string]bool{"served": true, "not served": false} {
		counted, err := newQuotas(Options{
			Informers: informers.NewSharedInformerFactory(nil, 0),
			Serves:    func(resource schema.GroupVersionResource) bool { return served || resource.GroupResource() != claims },
		})
		if err != nil {
			t.Fatal(err)
		}
		resources := map[schema.GroupResource]bool{}
		for _, evaluator := range counted.configuration.Evaluators() {
			resources[evaluator.GroupResource()] = true
		}
		if !resources[schema.GroupResource{Resource: "pods"}] || resources[claims] != served {
			t.Errorf("%s: %v", name, resources)
		}
	}
}
