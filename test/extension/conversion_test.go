package extension

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// boltsDefinition has a conversion webhook: spec.size of v1beta1 is spec.length of v1.
const boltsDefinition = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: bolts.parts.example.com}
spec:
  group: parts.example.com
  scope: Namespaced
  names: {plural: bolts, singular: bolt, kind: Bolt}
  conversion:
    strategy: Webhook
    webhook: {conversionReviewVersions: [v1], clientConfig: {url: %q, caBundle: %s}}
  versions:
  - name: v1
    served: true
    storage: %t
    schema:
      openAPIV3Schema: {type: object, properties: {spec: {type: object, required: [length], properties: {length: {type: integer}}}}}
  - name: v1beta1
    served: true
    storage: %t
    schema:
      openAPIV3Schema: {type: object, properties: {spec: {type: object, required: [size], properties: {size: {type: integer}}}}}
`

// startConverter starts the conversion webhook of bolts, and returns their definition for each storage version.
func startConverter(t testing.TB) map[string]string {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(convertBolts))
	t.Cleanup(server.Close)
	bundle := base64.StdEncoding.EncodeToString(
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	definitions := map[string]string{}
	for _, storage := range []string{"v1", "v1beta1"} {
		definitions[storage] = fmt.Sprintf(boltsDefinition, server.URL, bundle, storage == "v1", storage == "v1beta1")
	}
	return definitions
}

func convertBolts(w http.ResponseWriter, r *http.Request) {
	review := apiextensionsv1.ConversionReview{}
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	response := &apiextensionsv1.ConversionResponse{
		UID: review.Request.UID, Result: metav1.Status{Status: metav1.StatusSuccess},
	}
	for _, raw := range review.Request.Objects {
		converted, err := convertBolt(raw.Raw, review.Request.DesiredAPIVersion)
		if err != nil {
			response.ConvertedObjects = nil
			response.Result = metav1.Status{Status: metav1.StatusFailure, Message: err.Error()}
			break
		}
		response.ConvertedObjects = append(response.ConvertedObjects, runtime.RawExtension{Object: converted})
	}
	review.Request, review.Response = nil, response
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review)
}

func convertBolt(raw []byte, desired string) (*unstructured.Unstructured, error) {
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(raw); err != nil {
		return nil, err
	}
	fields := map[string]string{movedGroup + "/v1": "length", movedGroup + "/v1beta1": "size"}
	from, to := fields[object.GetAPIVersion()], fields[desired]
	if from == "" || to == "" {
		return nil, fmt.Errorf("cannot convert %s to %s", object.GetAPIVersion(), desired)
	}
	value, found, _ := unstructured.NestedInt64(object.Object, "spec", from)
	if !found {
		return nil, fmt.Errorf("%s has no spec.%s in %s", object.GetName(), from, object.GetAPIVersion())
	}
	object.SetAPIVersion(desired)
	object.Object["spec"] = map[string]any{to: value}
	return object, nil
}

var (
	bolts    = schema.GroupVersionResource{Group: movedGroup, Version: "v1", Resource: "bolts"}
	oldBolts = schema.GroupVersionResource{Group: movedGroup, Version: "v1beta1", Resource: "bolts"}
)

// createBolts stores one object in v1beta1, changes the storage version, and stores another one in v1.
func (s *fixture) createBolts() {
	s.Helper()
	create := func(name string, as schema.GroupVersionResource, field string) {
		must(s.objects.Resource(as).Namespace(partsNamespace).Create(s.Context(), &unstructured.Unstructured{
			Object: map[string]any{
				"apiVersion": as.GroupVersion().String(), "kind": "Bolt",
				"metadata": map[string]any{"name": name}, "spec": map[string]any{field: int64(len(name))},
			},
		}, metav1.CreateOptions{}))(s)
	}
	create("old", oldBolts, "size")
	s.apply(s.host, s.bolts["v1"])
	create("newer", bolts, "length")
	definition := must(s.objects.Resource(crds).Get(s.Context(), "bolts.parts.example.com", metav1.GetOptions{}))(s)
	stored, _, _ := unstructured.NestedStringSlice(definition.Object, "status", "storedVersions")
	if got := strings.Join(stored, ","); got != "v1beta1,v1" {
		s.Fatalf("bolts are stored in %s", got)
	}
}

// boltsAreConverted reads bolts in the version in which they are not stored.
func (s *fixture) boltsAreConverted() {
	s.Helper()
	for _, name := range []string{"old", "newer"} {
		object, err := s.objects.Resource(oldBolts).Namespace(partsNamespace).Get(s.Context(), name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			s.Errorf("bolt %s is lost", name)
			continue
		}
		if err != nil {
			s.Fatal(err)
		}
		if size, _, _ := unstructured.NestedInt64(object.Object, "spec", "size"); size != int64(len(name)) {
			s.Errorf("bolt %s has size %d, want %d", name, size, len(name))
		}
	}
}
