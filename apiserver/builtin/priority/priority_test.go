package priority_test

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	controlplane "k8s.io/kubernetes/pkg/controlplane/apiserver"

	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/builtin/enablement"
	"quorate.dev/apiserver/builtin/priority"
)

// TestPrioritiesOfUpstream compares the priorities of groups and versions with kube-apiserver's priorities.
func TestPrioritiesOfUpstream(t *testing.T) {
	t.Parallel()
	for gv, upstream := range controlplane.DefaultGenericAPIServicePriorities() {
		// kube-apiserver replaces this priority.
		if gv.Group == "resource.k8s.io" {
			continue
		}
		want := priority.Priority{Group: upstream.Group, Version: upstream.Version}
		if got, ok := priority.BuiltIn(gv); !ok || got != want {
			t.Errorf("%s: got %+v, %t, want %+v", gv, got, ok, want)
		}
	}
}

// TestServedVersionsHavePriorities: an APIService is registered for each version that has a priority.
func TestServedVersionsHavePriorities(t *testing.T) {
	t.Parallel()
	apis, err := builtin.Enable(map[string]string{"api/all": "true"}, enablement.Emulation{})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range builtin.Definitions(builtin.Options{APIs: apis}) {
		for _, v := range d.Versions {
			gv := v.Kind.GroupVersion()
			got, ok := priority.BuiltIn(gv)
			// The server registers no APIService for the group of APIServices.
			if registered := gv.Group != "apiregistration.k8s.io"; ok != registered {
				t.Errorf("%s: got a priority: %t", gv, ok)
			} else if registered && (got.Version <= 0 || got.Group != priority.OfGroup(gv.Group)) {
				t.Errorf("%s: got %+v", gv, got)
			}
		}
	}
}

// TestOrderOfGroups: discovery lists groups by their priorities.
func TestOrderOfGroups(t *testing.T) {
	t.Parallel()
	want := []string{
		"apiregistration.k8s.io", "", "apps", "events.k8s.io", "authentication.k8s.io", "authorization.k8s.io", "autoscaling",
		"batch", "certificates.k8s.io", "networking.k8s.io", "policy", "rbac.authorization.k8s.io", "storage.k8s.io",
		"admissionregistration.k8s.io", "scheduling.k8s.io", "coordination.k8s.io", "node.k8s.io", "discovery.k8s.io",
		"flowcontrol.apiserver.k8s.io", "internal.apiserver.k8s.io", "storagemigration.k8s.io", "example.com",
	}
	got := slices.Clone(want)
	slices.SortStableFunc(got, func(a, b string) int { return int(priority.OfGroup(b) - priority.OfGroup(a)) })
	if !slices.Equal(got, want) {
		t.Errorf("got the order %s", strings.Join(got, " "))
	}
	if got := priority.OfGroup("example.com"); got != priority.Custom.Group {
		t.Errorf("custom resources: got the priority %d, want %d", got, priority.Custom.Group)
	}
	if _, ok := priority.BuiltIn(schema.GroupVersion{Group: "apps", Version: "v9"}); ok {
		t.Error("an unknown version of a known group is built-in")
	}
}
