package openapi_test

import (
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	featuregatetesting "k8s.io/component-base/featuregate/testing"

	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/builtin/enablement"
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
func everything(t *testing.T) http.Handler {
	t.Helper()
	for _, gate := range []featuregate.Feature{
		"ClusterTrustBundle", "GenericWorkload", "PodCertificateRequest", "StorageVersionMigrator",
	} {
		featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, gate, true)
	}
	return handler(t, definitions(t, map[string]string{"api/all": "true"})...)
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
	document["info"].(map[string]any)["version"] = "1.36"
	return document
}

// plain removes intended differences: CBOR, which is off by default, and enum values, which the golden documents lack.
func plain(value any) any {
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
		for key, child := range v {
			if strings.Contains(key, "cbor") {
				delete(v, key)
				continue
			}
			v[key] = plain(child)
		}
	case []any:
		return slices.DeleteFunc(v, func(child any) bool {
			name, ok := plain(child).(string)
			return ok && strings.Contains(name, "cbor")
		})
	}
	return value
}

func TestV3EqualsUpstream(t *testing.T) {
	h, directory := everything(t), filepath.Join(goldenDirectory(t), "v3")
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
		if difference := cmp.Diff(plain(readGolden(t, filepath.Join(directory, file.Name()))), plain(got)); difference != "" {
			t.Errorf("%s (-upstream +ours):\n%.3000s", path, difference)
		}
	}
	for path := range addresses {
		if path != ".well-known/openid-configuration" { // added after the golden documents were made
			t.Errorf("%s is listed and upstream has none", path)
		}
	}
}

func TestV2EqualsUpstream(t *testing.T) {
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
	decode(t, get(everything(t), "/openapi/v2").Body.Bytes(), &got)
	if difference := cmp.Diff(plain(want), plain(got)); difference != "" {
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
