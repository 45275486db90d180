package builtin_test

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	cliflag "k8s.io/component-base/cli/flag"

	"quorate.dev/apiserver/builtin"
)

// runtimeConfigs are values of --runtime-config with the resources that are served (+) and not served (-), or the error
// (!).
var runtimeConfigs = []struct{ config, want string }{
	{"", "+apps/v1/deployments -resource.k8s.io/v1beta1/deviceclasses -internal.apiserver.k8s.io/v1alpha1/storageversions"},
	{"api/all=true", "+apps/v1/deployments +resource.k8s.io/v1beta1/deviceclasses +internal.apiserver.k8s.io/v1alpha1/storageversions"},
	{"api/beta=true", "+apps/v1/deployments +resource.k8s.io/v1beta1/deviceclasses -internal.apiserver.k8s.io/v1alpha1/storageversions"},
	{"api/all=true,api/alpha=false", "+resource.k8s.io/v1beta1/deviceclasses -internal.apiserver.k8s.io/v1alpha1/storageversions"},
	{"api/all=false,apps/v1=true,apiregistration.k8s.io/v1=true", "+apps/v1/deployments -batch/v1/jobs"},
	{"api/ga=false,/v1=true,apiregistration.k8s.io/v1=true", "+/v1/pods -apps/v1/deployments"},
	{"resource.k8s.io/v1beta1", "+resource.k8s.io/v1beta1/deviceclasses -resource.k8s.io/v1beta2/deviceclasses"},
	{"apps/v1/deployments=false", "-apps/v1/deployments +apps/v1/replicasets"},
	{"apps/v1=false,apps/v1/deployments=true", "+apps/v1/deployments -apps/v1/replicasets"},
	{"networking.k8s.io/v1beta1/ipaddresses=true", "+networking.k8s.io/v1beta1/ipaddresses -networking.k8s.io/v1beta1/servicecidrs"},
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
	{"apps/v1/Deployments=true", `!invalid key apps/v1/Deployments: group/version/resource and resource is always lowercase plural, not "Deployments"`},
}

func TestRuntimeConfig(t *testing.T) {
	for _, test := range runtimeConfigs {
		t.Run(test.config, func(t *testing.T) {
			config := cliflag.ConfigurationMap{}
			if test.config != "" {
				if err := config.Set(test.config); err != nil {
					t.Fatal(err)
				}
			}
			apis, err := builtin.Enable(config)
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
				if got := served[schema.GroupVersionResource{Group: name[0], Version: name[1], Resource: name[2]}]; got != (want[0] == '+') {
					t.Errorf("%s is served: %v", want[1:], got)
				}
			}
		})
	}
}
