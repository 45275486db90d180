package failover

import (
	"context"
	"fmt"
	"net/http"
	"testing"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"quorate.dev/test/upstream"
)

// TestDefinitionsAreServedWhenAnswered: when a client of one replica has seen that a definition is established, the
// other replica serves it too, and the response to a write of a definition comes after discovery has the change.
func TestDefinitionsAreServedWhenAnswered(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	r := startReplicas(t, upstream.StartQuorate, upstream.StartQuorate)
	definitions := clientset.NewForConfigOrDie(r.config(0)).ApiextensionsV1().CustomResourceDefinitions()
	first, second := r.client(0), r.client(1)
	for i := range 10 {
		definition := definitionOf(fmt.Sprintf("g%d.example.com", i))
		if _, err := definitions.Create(t.Context(), definition, meta.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		r.expect(second, "/apis/"+definition.Spec.Group+"/v2/things", http.StatusNotFound)
		err := wait.PollUntilContextTimeout(t.Context(), pollInterval/10, patience, true, func(
			ctx context.Context,
		) (bool, error) {
			current, err := definitions.Get(ctx, definition.Name, meta.GetOptions{})
			definition = current
			return err == nil && isEstablished(current), err
		})
		if err != nil {
			t.Fatal(err)
		}
		r.expect(second, "/apis/"+definition.Spec.Group+"/v1/things", http.StatusOK)
		definition.Spec.Versions[1].Served = true
		if _, err := definitions.Update(t.Context(), definition, meta.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		r.expect(first, "/apis/"+definition.Spec.Group+"/v2", http.StatusOK)
		r.expect(first, "/openapi/v3/apis/"+definition.Spec.Group+"/v2", http.StatusOK)
		r.expect(second, "/apis/"+definition.Spec.Group+"/v2", http.StatusOK)
		r.expect(second, "/apis/"+definition.Spec.Group+"/v2/things", http.StatusOK)
	}
}

// expect sends one GET request.
func (r *replicas) expect(client kubernetes.Interface, path string, code int) {
	r.Helper()
	got := 0
	err := client.Discovery().RESTClient().Get().AbsPath(path).SetHeader("Accept", "application/json").
		MaxRetries(0).Do(r.Context()).StatusCode(&got).Error()
	if got != code {
		r.Errorf("%s: %d, want %d: %v", path, got, code, err)
	}
}

func isEstablished(definition *apiextensions.CustomResourceDefinition) bool {
	for _, c := range definition.Status.Conditions {
		if c.Type == apiextensions.Established {
			return c.Status == apiextensions.ConditionTrue
		}
	}
	return false
}

// definitionOf returns a definition of things in versions v1, and v2, which is not served.
func definitionOf(group string) *apiextensions.CustomResourceDefinition {
	schema := &apiextensions.CustomResourceValidation{OpenAPIV3Schema: &apiextensions.JSONSchemaProps{Type: "object"}}
	return &apiextensions.CustomResourceDefinition{
		ObjectMeta: meta.ObjectMeta{Name: "things." + group},
		Spec: apiextensions.CustomResourceDefinitionSpec{
			Group: group, Scope: apiextensions.ClusterScoped,
			Names: apiextensions.CustomResourceDefinitionNames{
				Plural: "things", Singular: "thing", Kind: "Thing", ListKind: "ThingList",
			},
			Versions: []apiextensions.CustomResourceDefinitionVersion{
				{Name: "v1", Served: true, Storage: true, Schema: schema}, {Name: "v2", Schema: schema},
			},
		},
	}
}
