package definition_test

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/apps"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	"k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	_ "k8s.io/kubernetes/pkg/apis/lifecycle/install"
	"k8s.io/kubernetes/pkg/registry/apps/deployment"
	"k8s.io/kubernetes/pkg/registry/core/node"
	"k8s.io/kubernetes/pkg/registry/core/pod"
	"k8s.io/kubernetes/pkg/registry/lifecycle/evictionrequest"

	"quorate.dev/apiserver/builtin/definition"
	"quorate.dev/apiserver/resource"
)

// newGroup returns the builder of a group whose kinds are served in the given versions.
func newGroup(name string, served ...string) definition.Group {
	converter := func() (managedfields.TypeConverter, error) { return managedfields.NewDeducedTypeConverter(), nil }
	serves := func(of schema.GroupVersionResource) bool { return slices.Contains(served, of.Version) }
	return definition.NewBuilder(legacyscheme.Scheme, legacyscheme.Codecs, converter, serves).Group(name, "v1", "v1beta2")
}

// TestDefine defines a kind with a status and subresources of each type.
func TestDefine(t *testing.T) {
	t.Parallel()
	action := func(context.Context, resource.Call) (runtime.Object, error) { return &metav1.Status{}, nil }
	scale := schema.GroupVersionKind{Group: "autoscaling", Version: "v1", Kind: "Scale"}
	d := newGroup("apps", "v1", "v1beta2").Define(definition.Kind{
		Name: "Deployment", ShortNames: []string{"deploy"}, Strategy: deployment.Strategy,
		Status: deployment.StatusStrategy, PlainStatus: true, Decorate: func(runtime.Object) {},
		Subresources: []definition.Subresource{
			definition.View("scale", scale, deployment.Strategy, nil).WithoutTable(),
			definition.Action("rollback", schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"},
				action).WithMetadata(),
			definition.Connect("proxy", corev1.SchemeGroupVersion.WithKind("PodProxyOptions"), &resource.Connect{
				Methods: []string{http.MethodPost, http.MethodGet, http.MethodOptions},
			}),
		},
	})
	if d.Plural != "deployments" || d.Singular != "deployment" || d.ListKind != "DeploymentList" || !d.Namespaced ||
		d.StoragePath != "deployments" || d.StorageVersion.String() != "apps/v1" || d.Source != resource.BuiltIn {
		t.Errorf("got %+v", d)
	}
	if len(d.Versions) != 2 || d.Versions[0].Name != "v1" || d.Versions[0].Deprecation != "" ||
		d.Versions[1].Deprecation == "" {
		t.Fatalf("got the versions %+v", d.Versions)
	}
	endpoints := d.Versions[0].Endpoints
	for name, verbs := range map[string][]string{
		"":         {"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"},
		"status":   {"get", "patch", "update"},
		"scale":    {"get", "patch", "update"},
		"rollback": {"create"},
		"proxy":    {"create", "get"},
	} {
		if endpoint := endpoints[name]; endpoint == nil || endpoint.Subresource != name ||
			!slices.Equal(endpoint.Verbs, verbs) {
			t.Errorf("endpoint %q: got %+v, want the verbs %v", name, endpoint, verbs)
		}
	}
	if len(endpoints) != 5 {
		t.Errorf("got the endpoints %v", slices.Sorted(maps.Keys(endpoints)))
	}
	if !endpoints["status"].Undecorated || !endpoints["status"].NoTable || endpoints["scale"].Body == nil ||
		!endpoints["scale"].NoTable || !endpoints["rollback"].KeepsMetadata || endpoints["proxy"].FieldManager != nil {
		t.Error("properties of subresources are lost")
	}
	if _, err := endpoints[""].FieldManager(); err != nil {
		t.Errorf("the field manager: %v", err)
	}
	if _, _, err := d.Versions[0].FieldLabel("metadata.name", "x"); err != nil {
		t.Errorf("the label metadata.name: %v", err)
	}
	set, err := d.Fields(&apps.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "x", Namespace: "n"}})
	if err != nil || set["metadata.name"] != "x" || set["metadata.namespace"] != "n" {
		t.Errorf("got the fields %v, %v", set, err)
	}
	table, err := d.Versions[0].Table.ConvertToTable(t.Context(),
		&apps.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, nil)
	if err != nil || len(table.Rows) != 1 || table.ColumnDefinitions[1].Name != "Ready" {
		t.Errorf("got the table %+v, %v", table, err)
	}
}

// TestKindsThatAreNotServed defines kinds whose versions or feature gates are disabled: their objects may be stored.
func TestKindsThatAreNotServed(t *testing.T) {
	t.Parallel()
	kind := definition.Kind{Name: "Deployment", Strategy: deployment.Strategy}
	if d := newGroup("apps").Define(kind); len(d.Versions) != 0 || d.StoragePath == "" {
		t.Errorf("without versions: %+v", d)
	}
	gated := definition.Kind{
		Name: "EvictionRequest", Versions: []string{"v1alpha1"}, Strategy: evictionrequest.NewStrategy(),
	}
	if d := newGroup("lifecycle.k8s.io", "v1alpha1").Define(gated); len(d.Versions) != 0 {
		t.Errorf("with a disabled gate: %+v", d)
	}
}

// TestPlainKind defines a kind with the columns Name and Age only, a strategy for deletions and its own path.
func TestPlainKind(t *testing.T) {
	t.Parallel()
	d := newGroup("", "v1").Define(definition.Kind{
		Name: "Node", Strategy: node.Strategy, Delete: node.Strategy, Plain: true, Path: "minions", Verbs: []string{"get"},
	})
	table, err := d.Versions[0].Table.ConvertToTable(t.Context(),
		&core.Node{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, nil)
	if err != nil || len(table.ColumnDefinitions) != 2 || d.Namespaced || d.StoragePath != "minions" {
		t.Errorf("got %+v with the table %+v, %v", d, table, err)
	}
}

// TestKindsThatAreNotStored defines reviews, which can only be created, and component statuses, which are computed.
func TestKindsThatAreNotStored(t *testing.T) {
	t.Parallel()
	action := newGroup("", "v1").DefineAction("Binding", true, nil)
	if e := action.Versions[0].Endpoints[""]; action.Plural != "bindings" || action.StoragePath != "" ||
		!slices.Equal(e.Verbs, []string{"create"}) || e.Body == nil {
		t.Errorf("got %+v", action)
	}
	computed := newGroup("", "v1").DefineComputed("ComponentStatus", "componentstatuses", []string{"cs"}, nil)
	if e := computed.Versions[0].Endpoints[""]; !slices.Equal(e.Verbs, []string{"get", "list"}) ||
		computed.Versions[0].Deprecation == "" {
		t.Errorf("got %+v", computed)
	}
	for _, d := range []*resource.Definition{
		newGroup("").DefineAction("Binding", true, nil),
		newGroup("").DefineComputed("ComponentStatus", "componentstatuses", nil, nil),
	} {
		if len(d.Versions) != 0 {
			t.Errorf("%s is served in %+v", d.Plural, d.Versions)
		}
	}
}

// TestNodeNameIndex reads the node of a pod from its stored bytes.
func TestNodeNameIndex(t *testing.T) {
	t.Parallel()
	const nodeName protowire.Number = 10
	d := newGroup("", "v1").Define(definition.Kind{
		Name: "Pod", Strategy: pod.Strategy, Index: definition.NodeNameIndex(nodeName),
		Subresources: []definition.Subresource{
			definition.Update("resize", pod.ResizeStrategy),
		},
	})
	stored, err := d.Versions[0].Codec.Store(t.Context(), &core.Pod{Spec: core.PodSpec{NodeName: "worker"}})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := d.Index.Value(stored); err != nil || got != "worker" || d.Index.Field != "spec.nodeName" {
		t.Errorf("got %q for %s, %v", got, d.Index.Field, err)
	}
}
