package builtin_test

import (
	"context"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/registry/rest"

	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/resource"
)

func unusedAction(resource.Client) resource.Action {
	return func(context.Context, resource.Call) (runtime.Object, error) { return nil, nil }
}

func TestFieldManagersOfAllKinds(t *testing.T) {
	for _, d := range everything(t) {
		for _, v := range d.Versions {
			for name, e := range v.Endpoints {
				if e.FieldManager == nil {
					continue
				}
				if _, err := e.FieldManager(); err != nil {
					t.Errorf("%s/%s %s: %v", d.Plural, name, v.Name, err)
				}
			}
		}
	}
}

func TestTablesOfAllKinds(t *testing.T) {
	for _, d := range everything(t) {
		if d.StoragePath == "" {
			continue
		}
		for _, v := range d.Versions {
			table, err := v.Table.ConvertToTable(t.Context(), v.Codec.New(), nil)
			if err != nil {
				t.Errorf("%s %s: %v", d.Plural, v.Name, err)
				continue
			}
			if len(table.Rows) != 1 || len(table.ColumnDefinitions) < 2 {
				t.Errorf("%s %s: %d rows of %d columns for one object", d.Plural, v.Name, len(table.Rows),
					len(table.ColumnDefinitions))
			}
		}
	}
}

// selectors are field selectors of clients and the selected internal fields; "" if rejected.
var selectors = []struct{ group, version, plural, label, field string }{
	{"", "v1", "pods", "spec.nodeName", "spec.nodeName"},
	{"", "v1", "pods", "status.phase", "status.phase"},
	{"", "v1", "pods", "spec.image", ""},
	{"", "v1", "nodes", "spec.unschedulable", "spec.unschedulable"},
	{"", "v1", "secrets", "type", "type"},
	{"", "v1", "namespaces", "status.phase", "status.phase"},
	{"", "v1", "services", "spec.clusterIP", "spec.clusterIP"},
	{"", "v1", "configmaps", "metadata.name", "metadata.name"},
	{"", "v1", "configmaps", "data", ""},
	{"", "v1", "events", "involvedObject.kind", "involvedObject.kind"},
	{"events.k8s.io", "v1", "events", "regarding.kind", "involvedObject.kind"},
	{"events.k8s.io", "v1", "events", "involvedObject.kind", ""},
	{"apps", "v1", "replicasets", "metadata.namespace", "metadata.namespace"},
	{"batch", "v1", "jobs", "status.successful", "status.successful"},
	{"certificates.k8s.io", "v1", "certificatesigningrequests", "spec.signerName", "spec.signerName"},
	{"resource.k8s.io", "v1", "resourceslices", "spec.driver", "spec.driver"},
	{"apiextensions.k8s.io", "v1", "customresourcedefinitions", "metadata.name", "metadata.name"},
	{"rbac.authorization.k8s.io", "v1", "clusterroles", "metadata.name", "metadata.name"},
}

func TestFieldSelectors(t *testing.T) {
	catalog := resource.NewCatalog(definitions()...)
	for _, test := range selectors {
		match, ok := catalog.Lookup(test.group, test.version, test.plural)
		if !ok {
			t.Fatalf("no %s in %s/%s", test.plural, test.group, test.version)
		}
		field, _, err := match.Version.FieldLabel(test.label, "x")
		if (err != nil) != (test.field == "") || field != test.field {
			t.Errorf("%s in %s: %q, %v; want %q", test.label, test.plural, field, err, test.field)
			continue
		}
		set, err := match.Fields(match.Version.Codec.New())
		if err != nil {
			t.Fatal(err)
		}
		if test.field != "" && !set.Has(test.field) {
			t.Errorf("%s: objects have no field %s: %v", test.plural, test.field, set)
		}
	}
}

func TestDeprecatedKindsWarn(t *testing.T) {
	for _, d := range definitions() {
		deprecated := d.Group == "" && (d.Plural == "endpoints" || d.Plural == "componentstatuses")
		for _, v := range d.Versions {
			if (v.Deprecation != "") != deprecated {
				t.Errorf("%s %s: warning %q", d.Plural, v.Name, v.Deprecation)
			}
		}
	}
}

// TestDeclarativeValidation checks that no strategy hides the declarative validation of upstream's strategy, which
// would be lost without an error.
func TestDeclarativeValidation(t *testing.T) {
	// Upstream's strategies have none, and bindings update a pod without a strategy.
	none := sets.New("customresourcedefinitions/", "customresourcedefinitions/status", "apiservices/",
		"apiservices/status", "pods/binding")
	for _, d := range definitions() {
		for _, v := range d.Versions {
			for name, endpoint := range v.Endpoints {
				_, creates := endpoint.Create.(rest.DeclarativeValidationStrategy)
				_, updates := endpoint.Update.(rest.DeclarativeValidationStrategy)
				if (endpoint.Create == nil || creates) && (endpoint.Update == nil || updates) || none.Has(d.Plural+"/"+name) {
					continue
				}
				t.Errorf("%s %s/%s: %T, %T", v.Name, d.Plural, name, endpoint.Create, endpoint.Update)
			}
		}
	}
}

func TestConfigureRejectsGates(t *testing.T) {
	for name, gates := range map[string]map[string]string{
		"a wrong value": {"AllAlpha": "perhaps"}, "a wrong name": {"NoSuchGate": "true"},
		"alpha features without a beta one":       {"AllAlpha": "true"},
		"a feature without the one it depends on": {"StorageVersionAPI": "true", "APIServerIdentity": "false"},
	} {
		if err := builtin.Configure(builtin.Settings{Gates: gates}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func BenchmarkDefinitions(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		builtin.Definitions(builtin.Options{})
	}
}
