package plugins

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/kubernetes/pkg/kubeapiserver/options"
)

func TestOrderIsUpstreams(t *testing.T) {
	off := options.DefaultOffAdmissionPlugins()
	var names []string
	for _, p := range order {
		names = append(names, p.name)
		if p.on == off.Has(p.name) {
			t.Errorf("%s: on is %v", p.name, p.on)
		}
	}
	if !slices.Equal(names, options.AllOrderedPlugins) {
		t.Errorf("got %v, want %v", names, options.AllOrderedPlugins)
	}
}

func TestEveryPluginCanBeMade(t *testing.T) {
	registered := upstream().Registered()
	for _, p := range order {
		if slices.Contains(registered, p.name) == slices.Contains(notMade, p.name) {
			t.Errorf("%s", p.name)
		}
	}
}

func TestEnabled(t *testing.T) {
	for name, test := range map[string]struct {
		selection  Selection
		on, off    []string
		complaints []string
	}{
		"defaults": {
			on: []string{"NamespaceLifecycle", "LimitRanger", "ResourceQuota"}, off: []string{"NodeRestriction", "AlwaysDeny"},
		},
		"enabled": {
			selection: Selection{Enable: []string{"NodeRestriction"}}, on: []string{"NodeRestriction", "LimitRanger"},
		},
		"disabled": {
			selection: Selection{Disable: []string{"LimitRanger"}}, on: []string{"ServiceAccount"}, off: []string{"LimitRanger"},
		},
		"all named": {
			selection: Selection{Control: []string{"AlwaysDeny"}}, on: []string{"AlwaysDeny"}, off: []string{"LimitRanger"},
		},
		"none at all": {selection: Selection{Control: []string{}}, off: []string{"NamespaceLifecycle"}},
		"unknown": {
			selection: Selection{Enable: []string{"X"}, Disable: []string{"Y"}}, complaints: []string{
				`enable-admission-plugins plugin "X" is unknown`, `disable-admission-plugins plugin "Y" is unknown`,
			},
		},
		"unknown, old": {
			selection: Selection{Control: []string{"X"}}, complaints: []string{`admission-control plugin "X" is unknown`},
		},
		"both": {
			selection:  Selection{Enable: []string{"Priority", "LimitRanger"}, Disable: []string{"LimitRanger", "Priority"}},
			complaints: []string{"[LimitRanger Priority] in enable-admission-plugins and disable-admission-plugins overlapped"},
		},
		"of an extension server": {
			selection: Selection{Of: OfExtensions}, on: []string{NamespaceLifecycle, ValidatingAdmissionWebhook},
			off: []string{"LimitRanger", "OwnerReferencesPermissionEnforcement"},
		},
		"more of an extension server": {
			selection: Selection{Of: OfExtensions, Enable: []string{"OwnerReferencesPermissionEnforcement"}},
			on:        []string{"OwnerReferencesPermissionEnforcement"},
		},
		"not of an extension server": {
			selection:  Selection{Of: OfExtensions, Enable: []string{"LimitRanger"}},
			complaints: []string{`enable-admission-plugins plugin "LimitRanger" is unknown`},
		},
		"old and new": {
			selection: Selection{Enable: []string{"Priority"}, Control: []string{"Priority"}},
			complaints: []string{
				"admission-control and enable-admission-plugins/disable-admission-plugins flags are mutually exclusive",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			names, err := Enabled(test.selection)
			if want := strings.Join(test.complaints, "\n"); (err == nil) != (want == "") || err != nil && err.Error() != want {
				t.Errorf("got %v, want %s", err, want)
			}
			for _, name := range test.on {
				if !slices.Contains(names, name) {
					t.Errorf("%s is off", name)
				}
			}
			for _, name := range test.off {
				if slices.Contains(names, name) {
					t.Errorf("%s is on", name)
				}
			}
		})
	}
}
