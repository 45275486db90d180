package openapi_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	openapiv3 "github.com/google/gnostic-models/openapiv3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	featuregatetesting "k8s.io/component-base/featuregate/testing"

	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/builtin/enablement"
	"quorate.dev/apiserver/openapi"
	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/resource"
)

// goldenDirectory is the directory of upstream's documents with all versions and features, without enum values.
func goldenDirectory(t *testing.T) string {
	t.Helper()
	module, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes").Output()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(strings.TrimSpace(string(module)), "api", "openapi-spec")
}

func definitions(t *testing.T, runtimeConfig map[string]string) []*resource.Definition {
	t.Helper()
	apis, err := builtin.Enable(runtimeConfig, enablement.Emulation{})
	if err != nil {
		t.Fatal(err)
	}
	return builtin.Definitions(builtin.Options{APIs: apis})
}

// everything returns a handler of the documents for the resources of the golden documents.
func everything(t *testing.T, options openapi.Options) http.Handler {
	t.Helper()
	for _, gate := range []featuregate.Feature{
		"GenericWorkload", "TopologyAwareWorkloadScheduling", "CompositePodGroup", "EvictionRequestAPI",
	} {
		featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, gate, true)
	}
	return handlerOf(t, options, definitions(t, map[string]string{"api/all": "true"}))
}

func readGolden(t *testing.T, file string) map[string]any {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var document map[string]any
	if err := json.Unmarshal(content, &document); err != nil {
		t.Fatal(err)
	}
	document["info"].(map[string]any)["version"] = "1.37"
	return document
}

// plain removes enumerations, which the golden documents lack, and CBOR if it is off.
func plain(value any) any { return withoutCBOR(withoutEnumerations(value)) }

func withoutEnumerations(value any) any {
	switch v := value.(type) {
	case map[string]any:
		if description, ok := v["description"].(string); ok {
			before, _, _ := strings.Cut(description, "Possible enum values:")
			v["description"] = strings.TrimSpace(before)
			if v["description"] == "" {
				delete(v, "description")
			}
		}
		if _, values := v["enum"].([]any); values {
			delete(v, "enum")
		}
		for _, child := range v {
			withoutEnumerations(child)
		}
	case []any:
		for _, child := range v {
			withoutEnumerations(child)
		}
	}
	return value
}

// withoutCBOR removes the media types of CBOR, which the golden documents have, unless CBOR is served.
func withoutCBOR(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for key, child := range v {
			if isDisabled(key) {
				delete(v, key)
				continue
			}
			v[key] = withoutCBOR(child)
		}
	case []any:
		return slices.DeleteFunc(v, func(child any) bool {
			name, ok := withoutCBOR(child).(string)
			return ok && isDisabled(name)
		})
	}
	return value
}

// isDisabled reports whether a name is a media type of CBOR that is not served.
func isDisabled(name string) bool { return strings.Contains(name, "cbor") && !request.ServesCBOR() }

// withAndWithoutCBOR runs a test for both values of the feature gate CBORServingAndStorage.
func withAndWithoutCBOR(t *testing.T, test func(t *testing.T)) {
	for _, on := range []bool{false, true} {
		t.Run(fmt.Sprintf("CBOR=%t", on), func(t *testing.T) {
			featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.CBORServingAndStorage, on)
			test(t)
		})
	}
}

func TestV3EqualsUpstream(t *testing.T) {
	withAndWithoutCBOR(t, func(t *testing.T) { compareV3(t, everything(t, openapi.Options{}), plain) })
}

func TestV2EqualsUpstream(t *testing.T) {
	withAndWithoutCBOR(t, func(t *testing.T) { compareV2(t, everything(t, openapi.Options{}), plain) })
}

// TestWithoutEnumerations compares the documents with the golden documents, which upstream generates with
// OpenAPIEnums=false.
func TestWithoutEnumerations(t *testing.T) {
	h := everything(t, openapi.Options{NoEnumerations: true})
	compareV3(t, h, withoutCBOR)
	compareV2(t, h, withoutCBOR)
}

// TestTagsWithoutEnumerations checks that a client that knows a document with enumerations does not keep it, and that
// the other documents keep their tags. The responses are the same in protobuf, which is derived from JSON.
func TestTagsWithoutEnumerations(t *testing.T) {
	all := definitions(t, nil)
	with, without := handler(t, all...), handlerOf(t, openapi.Options{NoEnumerations: true}, all)
	before, after := index(t, with), index(t, without)
	for path, address := range after {
		if version := strings.HasPrefix(path, "api/") || strings.Count(path, "/") == 2 && path != "openid/v1/jwks"; version ==
			(address == before[path]) {
			t.Errorf("%s has the address %s, and with enumerations %s", path, address, before[path])
		}
	}
	tag := func(h http.Handler) string { return get(h, "/openapi/v2").Header().Get("Etag") }
	if tag(with) == tag(without) {
		t.Error("the tag of version 2 is that with enumerations")
	}
	json := get(without, after["apis/batch/v1"])
	want, err := openapiv3.ParseDocument(json.Body.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	var got openapiv3.Document
	protobuf := get(without, after["apis/batch/v1"], "Accept", v3Protobuf)
	if err := proto.Unmarshal(protobuf.Body.Bytes(), &got); err != nil || !proto.Equal(want, &got) {
		t.Errorf("the documents differ: %v", err)
	}
	if w := get(without, after["apis/batch/v1"], "If-None-Match", json.Header().Get("Etag")); w.Code != 304 {
		t.Errorf("with its tag: %d", w.Code)
	}
}

// compareV3 compares the version 3 documents with the golden documents after normalize.
func compareV3(t *testing.T, h http.Handler, normalize func(any) any) {
	t.Helper()
	directory := filepath.Join(goldenDirectory(t), "v3")
	addresses := index(t, h)
	files, err := os.ReadDir(directory)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		path := strings.ReplaceAll(strings.TrimSuffix(file.Name(), "_openapi.json"), "__", "/")
		if path == "logs" {
			continue // logs are not served
		}
		address, ok := addresses[path]
		if !ok {
			t.Errorf("%s is not listed", path)
			continue
		}
		delete(addresses, path)
		var got map[string]any
		decode(t, get(h, address).Body.Bytes(), &got)
		if difference := cmp.Diff(
			normalize(readGolden(t, filepath.Join(directory, file.Name()))), normalize(got),
		); difference != "" {
			t.Errorf("%s (-upstream +ours):\n%.3000s", path, difference)
		}
	}
	for path := range addresses {
		if path != ".well-known/openid-configuration" { // added after the golden documents were made
			t.Errorf("%s is listed and upstream has none", path)
		}
	}
}

// compareV2 compares the version 2 document with the golden document after normalize.
func compareV2(t *testing.T, h http.Handler, normalize func(any) any) {
	t.Helper()
	want := readGolden(t, filepath.Join(goldenDirectory(t), "swagger.json"))
	for _, logs := range []string{"/logs/", "/logs/{logpath}"} {
		delete(want["paths"].(map[string]any), logs)
	}
	for name := range want["parameters"].(map[string]any) {
		if strings.HasPrefix(name, "logpath-") {
			delete(want["parameters"].(map[string]any), name)
		}
	}
	var got map[string]any
	decode(t, get(h, "/openapi/v2").Body.Bytes(), &got)
	if difference := cmp.Diff(normalize(want), normalize(got)); difference != "" {
		t.Errorf("(-upstream +ours):\n%.3000s", difference)
	}
}

func TestEnumValuesArePublished(t *testing.T) {
	h := handler(t, definitions(t, nil)...)
	var document struct {
		Definitions map[string]struct {
			Properties map[string]struct {
				Description string
				Enum        []string
			}
		}
	}
	decode(t, get(h, "/openapi/v2").Body.Bytes(), &document)
	protocol := document.Definitions["io.k8s.api.networking.v1.NetworkPolicyPort"].Properties["protocol"]
	if !slices.Equal(protocol.Enum, []string{"SCTP", "TCP", "UDP"}) ||
		!strings.Contains(protocol.Description, "- `\"SCTP\"` is the SCTP protocol.") {
		t.Errorf("got %+v", protocol)
	}
}

// TestPartlyServed checks that disabled resources, and schemas that only they use, are omitted.
func TestPartlyServed(t *testing.T) {
	h := handler(t,
		definitions(t,
			map[string]string{"apps/v1/deployments": "false", "resource.k8s.io/v1beta1/deviceclasses": "true",
				"batch/v1": "false"})...)
	addresses := index(t, h)
	if _, ok := addresses["apis/batch/v1"]; ok {
		t.Error("apis/batch/v1 is listed")
	}
	var apps, devices, swagger map[string]any
	decode(t, get(h, addresses["apis/apps/v1"]).Body.Bytes(), &apps)
	decode(t, get(h, addresses["apis/resource.k8s.io/v1beta1"]).Body.Bytes(), &devices)
	decode(t, get(h, "/openapi/v2").Body.Bytes(), &swagger)
	schemas := func(document map[string]any) any { return document["components"].(map[string]any)["schemas"] }
	for _, test := range []struct {
		in   any
		name string
		want bool
	}{
		{apps["paths"], "/apis/apps/v1/deployments", false},
		{apps["paths"], "/apis/apps/v1/namespaces/{namespace}/deployments/{name}/scale", false},
		{apps["paths"], "/apis/apps/v1/replicasets", true},
		{schemas(apps), "io.k8s.api.apps.v1.DeploymentStrategy", false},
		{schemas(apps), "io.k8s.api.core.v1.PodSpec", true},
		{devices["paths"], "/apis/resource.k8s.io/v1beta1/deviceclasses/{name}", true},
		{devices["paths"], "/apis/resource.k8s.io/v1beta1/resourceslices", false},
		{swagger["paths"], "/apis/apps/v1/deployments", false},
		{swagger["paths"], "/apis/batch/v1/jobs", false},
		{swagger["paths"], "/apis/batch/", false},
		{swagger["paths"], "/apis/resource.k8s.io/v1beta1/deviceclasses", true},
		{swagger["paths"], "/version/", true},
		{swagger["definitions"], "io.k8s.api.batch.v1.Job", false},
		{swagger["definitions"], "io.k8s.api.resource.v1beta1.DeviceClass", true},
	} {
		if _, ok := test.in.(map[string]any)[test.name]; ok != test.want {
			t.Errorf("%s is published: %v", test.name, ok)
		}
	}
}
