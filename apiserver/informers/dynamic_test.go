package informers_test

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/go-logr/logr/testr"
	coordinationv1 "k8s.io/api/coordination/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientinformers "k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/apis/coordination"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/crd"
	"quorate.dev/apiserver/informers"
	"quorate.dev/apiserver/lazy"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/serviceresolver"
)

var (
	rules = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "rules"}
	rule  = rules.GroupVersion().WithKind("Rule")
)

// defineRules returns the definition of the custom resource rules, whose field color has the given default. changes
// modify the CustomResourceDefinition first.
func defineRules(
	t *testing.T, uid types.UID, color string, changes ...func(*apiextensionsv1.CustomResourceDefinition),
) *resource.Definition {
	t.Helper()
	properties := map[string]apiextensionsv1.JSONSchemaProps{
		"color": {Type: "string", Default: &apiextensionsv1.JSON{Raw: fmt.Appendf(nil, "%q", color)}},
	}
	definition := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "rules.example.com", UID: uid, Generation: 1},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: rules.Group, Scope: apiextensionsv1.ClusterScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{
				Plural: "rules", Singular: "rule", Kind: "Rule", ListKind: "RuleList",
			},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{
					OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", Properties: properties},
				}}},
		},
	}
	for _, change := range changes {
		change(definition)
	}
	definition.Status = crd.Conditions(definition, crd.Claim(), true)
	converters, err := crd.NewConverters(nil, serviceresolver.Clients{MaxResponse: 1 << 20}.Wrap)
	if err != nil {
		t.Fatal(err)
	}
	builder, err := crd.NewBuilder(&lazy.Set{}, converters, clock.RealClock{})
	if err != nil {
		t.Fatal(err)
	}
	made, err := builder.Definition(definition)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// dynamic returns a factory of all resources, and a function that replaces the custom ones.
func dynamic(t *testing.T) (*world, clientinformers.SharedInformerFactory, func(custom ...*resource.Definition)) {
	t.Helper()
	w, typed := open(t)
	builtIn := w.publisher.Current().Definitions()
	var before []*resource.Definition
	serve := func(custom ...*resource.Definition) {
		w.publisher.Publish(resource.NewCatalog(append(builtIn[:len(builtIn):len(builtIn)], custom...)...))
		for _, d := range before {
			w.Registry.Release(d)
		}
		before = custom
	}
	return w, informers.Dynamic(typed, informers.Options{Source: w, Catalog: w.publisher, Logger: testr.New(t)}), serve
}

func forResource(
	t *testing.T, factory clientinformers.SharedInformerFactory, name schema.GroupVersionResource,
) clientinformers.GenericInformer {
	t.Helper()
	informer, err := factory.ForResource(name)
	if err != nil {
		t.Fatal(err)
	}
	return informer
}

// colorOf returns the color of an object, or an empty string if it does not exist.
func colorOf(t *testing.T, lister cache.GenericLister, name string) string {
	t.Helper()
	object, err := lister.Get(name)
	if apierrors.IsNotFound(err) {
		return ""
	}
	if err != nil {
		t.Fatal(err)
	}
	color, _, err := unstructured.NestedString(object.(*unstructured.Unstructured).Object, "color")
	if err != nil {
		t.Fatal(err)
	}
	return color
}

func createRule(t *testing.T, w *world, name string) {
	t.Helper()
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(rule)
	object.SetName(name)
	if _, err := w.Create(
		t.Context(), resource.Key{GroupResource: rules.GroupResource()}, object, resource.WriteOptions{},
	); err != nil {
		t.Fatal(err)
	}
}

func TestDynamicFollowsCustomResources(t *testing.T) {
	w, factory, serve := dynamic(t)
	informer := forResource(t, factory, rules)
	lister := informer.Lister()
	if informer.Informer().HasSynced() {
		t.Error("an informer has synced before its resource is served")
	}
	if list, err := lister.List(labels.Everything()); err != nil || len(list) != 0 {
		t.Errorf("before the resource is served: %v, %v", list, err)
	}
	serve(defineRules(t, "1", "red"))
	createRule(t, w, "a")
	await(t, "synced", informer.Informer().HasSynced)
	await(t, "the object is listed", func() bool { return colorOf(t, lister, "a") == "red" })

	serve(defineRules(t, "2", "blue"))
	await(t, "the next definition decides", func() bool { return colorOf(t, lister, "a") == "blue" })
	createRule(t, w, "b")
	await(t, "an object of the next definition", func() bool { return colorOf(t, lister, "b") == "blue" })

	serve()
	if got := colorOf(t, lister, "a"); got != "" {
		t.Errorf("an object of a resource that is no longer served: %s", got)
	}
	if !informer.Informer().HasSynced() {
		t.Error("the informer of a resource that is no longer served is not synced")
	}
	serve(defineRules(t, "3", "green"))
	await(t, "served again", func() bool { return colorOf(t, lister, "a") == "green" })
}

// converter is a conversion webhook, which converts nothing but apiVersion.
type converter struct {
	*httptest.Server
	fails atomic.Bool  // all calls fail
	calls atomic.Int64 // number of successful calls
}

func startConverter(t *testing.T) *converter {
	t.Helper()
	c := &converter{}
	c.Server = httptest.NewTLSServer(c)
	t.Cleanup(func() {
		c.CloseClientConnections()
		c.Close()
	})
	return c
}

// ServeHTTP implements http.Handler.
func (c *converter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var review apiextensionsv1.ConversionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil || c.fails.Load() {
		http.Error(w, fmt.Sprintf("unavailable, or %v", err), http.StatusServiceUnavailable)
		return
	}
	c.calls.Add(1)
	review.Response = &apiextensionsv1.ConversionResponse{
		UID: review.Request.UID, Result: metav1.Status{Status: metav1.StatusSuccess},
	}
	for _, raw := range review.Request.Objects {
		object := &unstructured.Unstructured{}
		if err := object.UnmarshalJSON(raw.Raw); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		object.SetAPIVersion(review.Request.DesiredAPIVersion)
		review.Response.ConvertedObjects = append(review.Response.ConvertedObjects, runtime.RawExtension{Object: object})
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review)
}

// TestDynamicReadsAgainAfterFailedConversion checks that the parameters of a policy can be read when their conversion
// webhook is available again, although they have not changed, and that the result of a conversion is cached.
func TestDynamicReadsAgainAfterFailedConversion(t *testing.T) {
	w, factory, serve := dynamic(t)
	webhook := startConverter(t)
	serve(defineRules(t, "1", "red", func(d *apiextensionsv1.CustomResourceDefinition) {
		converted := *d.Spec.Versions[0].DeepCopy()
		converted.Name, converted.Storage = "v1beta1", false
		d.Spec.Versions = append(d.Spec.Versions, converted)
		d.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{
			Strategy: apiextensionsv1.WebhookConverter, Webhook: &apiextensionsv1.WebhookConversion{
				ClientConfig: &apiextensionsv1.WebhookClientConfig{
					URL: &webhook.URL,
					CABundle: pem.EncodeToMemory(&pem.Block{
						Type: "CERTIFICATE", Bytes: webhook.Certificate().Raw,
					}),
				},
				ConversionReviewVersions: []string{"v1"},
			},
		}
	}))
	createRule(t, w, "a")
	informer := forResource(t, factory, schema.GroupVersionResource{
		Group: rules.Group, Version: "v1beta1", Resource: rules.Resource,
	})
	await(t, "the object exists", func() bool { return len(informer.Informer().GetIndexer().ListKeys()) == 1 })
	webhook.fails.Store(true)
	if object, err := informer.Lister().Get("a"); err == nil {
		t.Errorf("without the webhook: got %v", object)
	}
	webhook.fails.Store(false)
	for range 2 {
		if color := colorOf(t, informer.Lister(), "a"); color != "red" {
			t.Errorf("with the webhook: got the color %q", color)
		}
	}
	if calls := webhook.calls.Load(); calls != 1 {
		t.Errorf("one object was converted %d times", calls)
	}
}

func TestDynamicServesBuiltInKindsAsTypedObjects(t *testing.T) {
	w, factory, _ := dynamic(t)
	leases := coordinationv1.SchemeGroupVersion.WithResource("leases")
	informer := forResource(t, factory, leases)
	lease := &coordination.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "one"}}
	if _, err := w.Create(
		t.Context(), resource.Key{GroupResource: leases.GroupResource(), Namespace: "a"}, lease, resource.WriteOptions{},
	); err != nil {
		t.Fatal(err)
	}
	await(t, "synced", informer.Informer().HasSynced)
	var got any
	await(t, "the object exists", func() (found bool) {
		object, err := informer.Lister().ByNamespace("a").Get("one")
		got = object
		return err == nil
	})
	if _, ok := got.(*coordinationv1.Lease); !ok {
		t.Errorf("got %T", got)
	}
	if list, err := informer.Lister().ByNamespace("b").List(labels.Everything()); err != nil || len(list) != 0 {
		t.Errorf("another namespace: %v, %v", list, err)
	}
}

// TestDynamicOfKindsThatAreNotStored checks informers of kinds that are not stored, which policies may name.
// kube-apiserver's informer never syncs.
func TestDynamicOfKindsThatAreNotStored(t *testing.T) {
	_, factory, _ := dynamic(t)
	informer := forResource(t, factory, schema.GroupVersionResource{
		Group: "authorization.k8s.io", Version: "v1", Resource: "subjectaccessreviews",
	})
	if informer.Informer().HasSynced() {
		t.Error("synced")
	}
}

// TestDynamicSharesTypedInformers checks that the objects of typed informers are decoded only once.
func TestDynamicSharesTypedInformers(t *testing.T) {
	_, factory, _ := dynamic(t)
	secrets := forResource(t, factory, schema.GroupVersionResource{Version: "v1", Resource: "secrets"})
	// Each call returns another typed view of the informer.
	if secrets.Informer().GetIndexer() != factory.Core().V1().Secrets().Informer().GetIndexer() {
		t.Error("the informer of a typed kind is another one")
	}
}
