package apiregistration_test

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	api "k8s.io/kube-aggregator/pkg/apis/apiregistration"

	"quorate.dev/apiserver/builtin/apiregistration"
	"quorate.dev/apiserver/builtin/builtintest"
	"quorate.dev/apiserver/builtin/schema"
	"quorate.dev/apiserver/resource"
)

func definitions() []*resource.Definition {
	return apiregistration.Definitions(schema.NewLoader(), builtintest.ServesAll)
}

func TestServed(t *testing.T) {
	t.Parallel()
	builtintest.CheckServed(t, definitions(), []builtintest.Served{
		{
			Resource: "apiservices", Kind: "APIService", Versions: "v1", Categories: "api-extensions",
			Stored:  "apiregistration.k8s.io/apiservices apiregistration.k8s.io/v1",
			Columns: "Service, Available, Age", Subresources: []string{"status (no table)"},
		},
	})
}

const apiService = `
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.metrics.example.com, labels: {team: a}}
spec:
  group: metrics.example.com
  version: v1
  groupPriorityMinimum: 100
  versionPriority: 15
  insecureSkipTLSVerify: true
  service: {namespace: metrics, name: server}
`

func TestAPIServices(t *testing.T) {
	t.Parallel()
	builtintest.CheckWrites(t, definitions(), map[string]builtintest.Write{
		"create sets the port and drops the status": {
			Endpoint: "apiservices", Object: apiService, With: "status: {conditions: [{type: Available, status: 'True'}]}",
			Want: map[string]string{"spec.service.port": "443", "status": "{}"},
		},
		"a local API is available": {
			Endpoint: "apiservices", Object: apiService, With: "spec: {service: null, insecureSkipTLSVerify: null}",
			Want: map[string]string{
				"status.conditions[0].type": "Available", "status.conditions[0].status": "True",
				"status.conditions[0].reason": "Local",
			},
		},
		"the name is that of the API": {
			Endpoint: "apiservices", Object: apiService, With: "metadata: {name: other}",
			Errors: []string{
				"metadata.name: Invalid value: \"other\": must be `spec.version+\".\"+spec.group`: \"v1.metrics.example.com\"",
			},
		},
		"priorities have ranges": {
			Endpoint: "apiservices", Object: apiService, With: "spec: {groupPriorityMinimum: 0, versionPriority: 1001}",
			Errors: []string{
				"spec.groupPriorityMinimum: Invalid value: 0: must be positive and less than 20000",
				"spec.versionPriority: Invalid value: 1001: must be positive and less than 1000",
			},
		},
		"a Service is verified or not": {
			Endpoint: "apiservices", Object: apiService, With: "spec: {caBundle: eA==}",
			Errors: []string{
				"spec.insecureSkipTLSVerify: Invalid value: true: may not be true if caBundle is present",
			},
		},
		"an update keeps the status": {
			Endpoint: "apiservices", Object: apiService, Stored: "status: {conditions: [{type: Available, status: 'False'}]}",
			Update: "{spec: {versionPriority: 20}, status: {conditions: []}}",
			Want:   map[string]string{"spec.versionPriority": "20", "status.conditions[0].status": "False"},
		},
		"a status update keeps the spec": {
			Endpoint: "apiservices/status", Object: apiService,
			Update: "{metadata: {labels: {team: b}}, spec: {versionPriority: 20}, " +
				"status: {conditions: [{type: Available, status: 'False'}]}}",
			Want: map[string]string{
				"metadata.labels.team": "a", "spec.versionPriority": "15", "status.conditions[0].status": "False",
			},
		},
	})
}

// TestRows: kubectl shows the Service of an API, and why the API is not available.
func TestRows(t *testing.T) {
	t.Parallel()
	target := builtintest.FindTarget(t, definitions(), "apiservices", "")
	for want, change := range map[string]func(*api.APIService){
		"metrics/server Unknown": func(s *api.APIService) {
			s.Status.Conditions = []api.APIServiceCondition{{Type: "Other", Status: api.ConditionTrue}}
		},
		"metrics/server True": func(s *api.APIService) {
			s.Status.Conditions = []api.APIServiceCondition{{Type: api.Available, Status: api.ConditionTrue, Reason: "Passed"}}
		},
		"metrics/server False": func(s *api.APIService) {
			s.Status.Conditions = []api.APIServiceCondition{{Type: api.Available, Status: api.ConditionFalse}}
		},
		"metrics/server False (MissingEndpoints)": func(s *api.APIService) {
			s.Status.Conditions = []api.APIServiceCondition{
				{Type: api.Available, Status: api.ConditionFalse, Reason: "MissingEndpoints"},
			}
		},
		"Local Unknown": func(s *api.APIService) { s.Spec.Service = nil },
	} {
		service := builtintest.Decode(t, target, apiService).(*api.APIService)
		service.ResourceVersion = "7"
		change(service)
		table, err := target.Version.Table.ConvertToTable(t.Context(), service, nil)
		if err != nil || len(table.Rows) != 1 {
			t.Fatalf("%s: got %+v, %v", want, table, err)
		}
		cells := table.Rows[0].Cells
		if got := fmt.Sprint(cells[1], " ", cells[2]); got != want || cells[0] != service.Name || len(cells) != 4 {
			t.Errorf("got the cells %v, want %s", cells, want)
		}
		if table.ResourceVersion != "7" {
			t.Errorf("got the resource version %q", table.ResourceVersion)
		}
	}
}

// TestTableOfList: the table of a list has the list's resource version and position.
func TestTableOfList(t *testing.T) {
	t.Parallel()
	target := builtintest.FindTarget(t, definitions(), "apiservices", "")
	service := builtintest.Decode(t, target, apiService).(*api.APIService)
	left := int64(3)
	list := &api.APIServiceList{
		ListMeta: metav1.ListMeta{ResourceVersion: "9", Continue: "next", RemainingItemCount: &left},
		Items:    []api.APIService{*service, *service},
	}
	table, err := target.Version.Table.ConvertToTable(t.Context(), list, nil)
	if err != nil || len(table.Rows) != 2 || table.ResourceVersion != "9" || table.Continue != "next" ||
		table.RemainingItemCount == nil || *table.RemainingItemCount != left {
		t.Errorf("got %+v, %v", table, err)
	}
	if _, err := target.Version.Table.ConvertToTable(t.Context(), &runtime.Unknown{}, nil); err == nil {
		t.Error("an object without metadata has a table")
	}
}
