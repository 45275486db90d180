package enablement_test

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
	utilcompatibility "k8s.io/apiserver/pkg/util/compatibility"
	cliflag "k8s.io/component-base/cli/flag"

	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/builtin/enablement"
)

// runtimeConfigs are values of --runtime-config with the resources that are served (+) and not served (-), or the error
// (!).
var runtimeConfigs = []struct{ config, want string }{
	{
		"", "+apps/v1/deployments -resource.k8s.io/v1beta1/deviceclasses -internal.apiserver.k8s.io/v1alpha1/storageversions",
	},
	{
		"api/all=true", "+apps/v1/deployments +resource.k8s.io/v1beta1/deviceclasses " +
			"+internal.apiserver.k8s.io/v1alpha1/storageversions",
	},
	{
		"api/beta=true", "+apps/v1/deployments +resource.k8s.io/v1beta1/deviceclasses " +
			"-internal.apiserver.k8s.io/v1alpha1/storageversions",
	},
	{
		"api/all=true,api/alpha=false",
		"+resource.k8s.io/v1beta1/deviceclasses -internal.apiserver.k8s.io/v1alpha1/storageversions",
	},
	{"api/all=false,apps/v1=true,apiregistration.k8s.io/v1=true", "+apps/v1/deployments -batch/v1/jobs"},
	{"api/ga=false,/v1=true,apiregistration.k8s.io/v1=true", "+/v1/pods -apps/v1/deployments"},
	{"resource.k8s.io/v1beta1", "+resource.k8s.io/v1beta1/deviceclasses -resource.k8s.io/v1beta2/deviceclasses"},
	{"apps/v1/deployments=false", "-apps/v1/deployments +apps/v1/replicasets"},
	{"apps/v1=false,apps/v1/deployments=true", "+apps/v1/deployments -apps/v1/replicasets"},
	{
		"resource.k8s.io/v1beta1/deviceclasses=true",
		"+resource.k8s.io/v1beta1/deviceclasses -resource.k8s.io/v1beta1/resourceslices",
	},
	// The beta version is gone since 1.37.
	{"networking.k8s.io/v1beta1=true", "-networking.k8s.io/v1beta1/ipaddresses +networking.k8s.io/v1/ipaddresses"},
	{"apiextensions.k8s.io/v1=false", "-apiextensions.k8s.io/v1/customresourcedefinitions"},
	{"authentication.k8s.io/v1beta1=true", "-authentication.k8s.io/v1beta1/selfsubjectreviews"}, // gone since 1.33
	{"apiregistration.k8s.io/v1=false", "!API group/version apiregistration.k8s.io/v1 must be enabled"},
	{"api/all=false", "!invalid runtime-config with only api/all=false"},
	{"api/all=yes", "!invalid value api/all=yes"},
	{"v1=false", "-/v1/pods +apps/v1/deployments"},
	{"api/v1/pods=false,api/legacy=true", "-/v1/pods -/v1/nodes +apps/v1/deployments"},
	{"apps=true", "!runtime-config invalid key apps"},
	{"nope/v1=true,never/v2=true", "!unknown api groups never/v2,nope/v1"},
	{"apps/v9=true", "!group version apps/v9 that has not been registered"},
	{"apps/v1=maybe", `!invalid value of apps/v1: maybe, err: strconv.ParseBool: parsing "maybe": invalid syntax`},
	{
		"apps/v1/Deployments=true",
		`!invalid key apps/v1/Deployments: group/version/resource and resource is always lowercase plural, not "Deployments"`,
	},
}

// TestRuntimeConfig checks which built-in kinds are served.
func TestRuntimeConfig(t *testing.T) {
	for _, test := range runtimeConfigs {
		t.Run(test.config, func(t *testing.T) {
			config := cliflag.ConfigurationMap{}
			if test.config != "" {
				if err := config.Set(test.config); err != nil {
					t.Fatal(err)
				}
			}
			apis, err := builtin.Enable(config, enablement.Emulation{})
			if words, refused := strings.CutPrefix(test.want, "!"); refused || err != nil {
				if err == nil || err.Error() != words {
					t.Fatalf("got %v, want %s", err, words)
				}
				return
			}
			served := map[schema.GroupVersionResource]bool{}
			for _, d := range builtin.Definitions(builtin.Options{APIs: apis}) {
				for _, v := range d.Versions {
					served[schema.GroupVersionResource{Group: d.Group, Version: v.Name, Resource: d.Plural}] = true
				}
			}
			for _, want := range strings.Fields(test.want) {
				name := strings.Split(want[1:], "/")
				if got := served[schema.GroupVersionResource{Group: name[0], Version: name[1], Resource: name[2]}]; got !=
					(want[0] == '+') {
					t.Errorf("%s is served: %v", want[1:], got)
				}
			}
		})
	}
}

// TestEmulation serves the APIs of older versions, which --emulated-version selects.
func TestEmulation(t *testing.T) {
	for _, test := range []struct {
		name, version, config, want string
		forward, configForward      bool
		gates                       map[string]string // nil: all gates are enabled
	}{
		{name: "this version", version: "1.37", want: "+admissionregistration.k8s.io/v1/mutatingadmissionpolicies"},
		{
			name: "removed by it", version: "1.37", config: "api/beta=true",
			want: "-networking.k8s.io/v1beta1/ipaddresses +resource.k8s.io/v1beta1/deviceclasses",
		},
		{
			name: "removed after it", version: "1.36", config: "api/all=true",
			want: "+networking.k8s.io/v1beta1/ipaddresses +storage.k8s.io/v1beta1/volumeattributesclasses " +
				"+certificates.k8s.io/v1alpha1/clustertrustbundles",
		},
		{
			name: "removed by name", version: "1.37", config: "networking.k8s.io/v1beta1/ipaddresses=true",
			want: "-networking.k8s.io/v1beta1/ipaddresses",
		},
		{
			name: "later introduced", version: "1.35",
			want: "-admissionregistration.k8s.io/v1/mutatingadmissionpolicies +apps/v1/deployments",
		},
		{name: "introduced with it", version: "1.34", want: "+resource.k8s.io/v1/deviceclasses"},
		{name: "introduced after it", version: "1.33", want: "-resource.k8s.io/v1/deviceclasses"},
		{
			name: "the whole version", version: "1.34", config: "storagemigration.k8s.io/v1beta1=true",
			want: "!cannot enable version storagemigration.k8s.io/v1beta1 in runtime-config because all the resources have " +
				"been introduced after the current version 1.34. Consider setting " +
				"--runtime-config-emulation-forward-compatible=true",
		},
		{
			name: "a resource", version: "1.34", config: "storagemigration.k8s.io/v1beta1/storageversionmigrations=true",
			want: "!cannot enable resource storagemigration.k8s.io/v1beta1, Resource=storageversionmigrations in " +
				"runtime-config because it is introduced at 1.35 after the current version 1.34. Consider setting " +
				"--runtime-config-emulation-forward-compatible=true",
		},
		{
			name: "a later resource by name", version: "1.34", config: "storagemigration.k8s.io/v1beta1=true",
			configForward: true,
			want: "+storagemigration.k8s.io/v1beta1/storageversionmigrations " +
				"-admissionregistration.k8s.io/v1/mutatingadmissionpolicies",
		},
		{
			name: "a later version by name without its feature gate", version: "1.36",
			config: "storagemigration.k8s.io/v1=true,certificates.k8s.io/v1/clustertrustbundles=true",
			gates:  map[string]string{}, want: "+apps/v1/deployments",
		},
		{
			name: "a later version by name with its feature gate", version: "1.36",
			config: "storagemigration.k8s.io/v1=true", gates: map[string]string{"StorageVersionMigrator": "true"},
			want: "!cannot enable version storagemigration.k8s.io/v1 in runtime-config because all the resources have " +
				"been introduced after the current version 1.36. Consider setting " +
				"--runtime-config-emulation-forward-compatible=true",
		},
		{
			name: "newer versions of an enabled resource", version: "1.33",
			config: "resource.k8s.io/v1beta1=true", forward: true,
			want: "+resource.k8s.io/v1beta1/deviceclasses +resource.k8s.io/v1beta2/deviceclasses " +
				"+resource.k8s.io/v1/deviceclasses -resource.k8s.io/v1alpha3/devicetaintrules",
		},
		{
			name: "a newer version by name", version: "1.33",
			config: "resource.k8s.io/v1beta1=true,resource.k8s.io/v1beta2=false", forward: true,
			want: "+resource.k8s.io/v1beta1/deviceclasses -resource.k8s.io/v1beta2/deviceclasses " +
				"+resource.k8s.io/v1/deviceclasses",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			effective := utilcompatibility.DefaultBuildEffectiveVersion()
			effective.SetEmulationVersion(version.MustParse(test.version))
			config := cliflag.ConfigurationMap{}
			if test.config != "" {
				if err := config.Set(test.config); err != nil {
					t.Fatal(err)
				}
			}
			emulation := enablement.Emulation{
				Version: effective, ForwardCompatible: test.forward, RuntimeConfigForwardCompatible: test.configForward,
			}
			if test.gates != nil {
				gates, err := builtin.Gates(builtin.Settings{Gates: test.gates, Version: effective})
				if err != nil {
					t.Fatal(err)
				}
				emulation.Gates = gates
			}
			apis, err := builtin.Enable(config, emulation)
			if words, refused := strings.CutPrefix(test.want, "!"); refused || err != nil {
				if err == nil || err.Error() != words {
					t.Fatalf("got %v, want %s", err, words)
				}
				return
			}
			for _, name := range strings.Fields(test.want) {
				group, rest, _ := strings.Cut(name[1:], "/")
				version, resource, _ := strings.Cut(rest, "/")
				gvr := schema.GroupVersionResource{Group: group, Version: version, Resource: resource}
				if apis.Serves(gvr) != (name[0] == '+') {
					t.Errorf("got %v, want %s", apis.Serves(gvr), name)
				}
			}
		})
	}
}

// TestServeRemoved checks that KUBE_APISERVER_SERVE_REMOVED_APIS_FOR_ONE_RELEASE serves the APIs that this version
// removes, and no API that an earlier version has removed.
func TestServeRemoved(t *testing.T) {
	const variable = "KUBE_APISERVER_SERVE_REMOVED_APIS_FOR_ONE_RELEASE"
	beta := map[string]string{"api/beta": "true"}
	addresses := schema.GroupVersionResource{Group: "networking.k8s.io", Version: "v1beta1", Resource: "ipaddresses"}
	policies := schema.GroupVersionResource{
		Group: "admissionregistration.k8s.io", Version: "v1beta1", Resource: "validatingadmissionpolicies",
	}
	for value, want := range map[string]bool{"true": true, "1": true, "false": false} {
		t.Setenv(variable, value)
		apis, err := builtin.Enable(beta, enablement.Emulation{})
		if err != nil {
			t.Fatal(err)
		}
		if got := apis.Serves(addresses); got != want {
			t.Errorf("%s: got %v, want %v", value, got, want)
		}
		if apis.Serves(policies) {
			t.Errorf("%s: an API that an earlier version removed is served", value)
		}
	}
	t.Setenv(variable, "always")
	const want = `strconv.ParseBool: parsing "always": invalid syntax`
	if _, err := builtin.Enable(nil, enablement.Emulation{}); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
