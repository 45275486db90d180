package dynamicresource_test

import (
	"context"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/kubernetes/pkg/apis/core"

	"quorate.dev/apiserver/builtin/builtintest"
	"quorate.dev/apiserver/builtin/dynamicresource"
	"quorate.dev/apiserver/registry/strategy"
	"quorate.dev/apiserver/resource"
)

// namespaces is a client with the namespace "admins", whose claims may have admin access, and the namespace "team".
type namespaces struct{ resource.Client }

func (namespaces) Get(_ context.Context, key resource.Key, _ resource.ReadOptions) (runtime.Object, error) {
	namespace := &core.Namespace{ObjectMeta: metav1.ObjectMeta{Name: key.Name}}
	switch {
	case key.Resource != "namespaces":
		return nil, apierrors.NewBadRequest("got a request for " + key.Resource)
	case key.Name == "admins":
		namespace.Labels = map[string]string{"resource.kubernetes.io/admin-access": "true"}
	case key.Name != "team":
		return nil, apierrors.NewNotFound(key.GroupResource, key.Name)
	}
	return namespace, nil
}

func definitions() []*resource.Definition {
	return dynamicresource.Definitions(builtintest.NewBuilder(), namespaces{},
		authorizerfactory.NewAlwaysAllowAuthorizer())
}

func TestServed(t *testing.T) {
	t.Parallel()
	builtintest.CheckServed(t, definitions(), []builtintest.Served{
		{
			Resource: "deviceclasses", Kind: "DeviceClass", Versions: "v1 v1beta2 v1beta1",
			Stored: "deviceclasses resource.k8s.io/v1", ReturnsDeleted: true, Columns: "Age",
		},
		{
			Resource: "devicetaintrules", Kind: "DeviceTaintRule", Versions: "v1 v1beta2 v1alpha3",
			Stored: "devicetaintrules resource.k8s.io/v1beta2", ReturnsDeleted: true, ReturnsStatusIn: "v1",
			Columns: "Key, Value, Effect, TimeAdded, Age", Subresources: []string{"status (no table)"},
		},
		{
			Resource: "resourceclaims", Kind: "ResourceClaim", Versions: "v1 v1beta2 v1beta1",
			Namespaced: true, Stored: "resourceclaims resource.k8s.io/v1", ReturnsDeleted: true,
			Columns: "State, Age", Subresources: []string{"status (no table)"},
		},
		{
			Resource: "resourceclaimtemplates", Kind: "ResourceClaimTemplate",
			Versions: "v1 v1beta2 v1beta1", Namespaced: true,
			Stored: "resourceclaimtemplates resource.k8s.io/v1", ReturnsDeleted: true, Columns: "Age",
		},
		{
			Resource: "resourcepoolstatusrequests", Kind: "ResourcePoolStatusRequest", Versions: "v1alpha3",
			Stored: "resourcepoolstatusrequests resource.k8s.io/v1alpha3", ReturnsDeleted: true,
			Columns:      "Driver, Total, Available, Allocated, Unavailable, Errors, Pools, Status, Completed",
			Subresources: []string{"status"},
		},
		{
			Resource: "resourceslices", Kind: "ResourceSlice", Versions: "v1 v1beta2 v1beta1",
			Stored: "resourceslices resource.k8s.io/v1", ReturnsDeleted: true,
			Fields: "spec.driver spec.nodeName spec.pool.name", Columns: "Node, Driver, Pool, Age",
		},
	})
}

const (
	spec = "{devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.example.com}}]}}"
	// admin is a patch of the requests of a claim.
	admin = "{devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.example.com, adminAccess: true}}]}}"
	claim = `
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: gpu, namespace: team}
spec: ` + spec
	template = `
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: gpu, namespace: team}
spec: {spec: ` + spec + "}"
	slice = `
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: one-gpu, generation: 7}
spec: {driver: gpu.example.com, nodeName: one, pool: {name: one, generation: 1, resourceSliceCount: 1}, devices: [{name: gpu0}]}
`
	class = "{apiVersion: resource.k8s.io/v1, kind: DeviceClass, metadata: {name: gpu.example.com, generation: 7}}"
)

func TestWrites(t *testing.T) {
	t.Parallel()
	builtintest.CheckWrites(t, definitions(), map[string]builtintest.Write{
		"a claim has defaults and no status": {
			Endpoint: "resourceclaims", Object: claim, With: "status: {reservedFor: [{resource: pods, name: web, uid: u}]}",
			Want: map[string]string{
				"spec.devices.requests[0].exactly.allocationMode": "ExactCount",
				"spec.devices.requests[0].exactly.count":          "1", "status": "{}",
			},
		},
		"a claim is served in v1beta1": {
			Endpoint: "resourceclaims", Version: "v1beta1",
			Object: "{apiVersion: resource.k8s.io/v1beta1, kind: ResourceClaim, metadata: {name: gpu, namespace: team}, " +
				"spec: {devices: {requests: [{name: gpu, deviceClassName: gpu.example.com}]}}}",
			Want: map[string]string{
				"apiVersion": "resource.k8s.io/v1beta1", "spec.devices.requests[0].deviceClassName": "gpu.example.com",
			},
		},
		"admin access needs a label of the namespace": {
			Endpoint: "resourceclaims", Object: claim, With: "spec: " + admin,
			Errors: []string{
				"spec.devices.requests[0].adminAccess: Forbidden: admin access to devices requires the " +
					"`resource.kubernetes.io/admin-access: true` label on the containing namespace",
			},
		},
		"admin access in a namespace with the label": {
			Endpoint: "resourceclaims", Object: claim, With: "{metadata: {namespace: admins}, spec: " + admin + "}",
			Want: map[string]string{"spec.devices.requests[0].exactly.adminAccess": "true"},
		},
		"admin access in a template": {
			Endpoint: "resourceclaimtemplates", Object: template, With: "spec: {spec: " + admin + "}",
			Errors: []string{
				"spec.devices.requests[0].adminAccess: Forbidden: admin access to devices requires the " +
					"`resource.kubernetes.io/admin-access: true` label on the containing namespace",
			},
		},
		"a template can be used": {
			Endpoint: "resourceclaimtemplates", Object: template,
			Want: map[string]string{"spec.spec.devices.requests[0].name": "gpu"},
		},
		"a slice has a generation": {
			Endpoint: "resourceslices", Object: slice, Update: "spec: {devices: [{name: gpu1}]}",
			Want: map[string]string{"metadata.generation": "2", "spec.devices[0].name": "gpu1"},
		},
		"the driver of a slice is immutable": {
			Endpoint: "resourceslices", Object: slice, Update: "spec: {driver: other.example.com}",
			Errors: []string{`spec.driver: Invalid value: "other.example.com": field is immutable`},
		},
		"selectors of a class are compiled": {
			Endpoint: "deviceclasses", Object: class, With: "spec: {selectors: [{cel: {expression: '1'}}]}",
			Errors: []string{`spec.selectors[0].cel.expression: Invalid value: "1": must evaluate to bool or the unknown type, not int`},
		},
		"a class has a generation": {
			Endpoint: "deviceclasses", Object: class, Update: "spec: {selectors: [{cel: {expression: 'true'}}]}",
			Want: map[string]string{"metadata.generation": "2"},
		},
	})
}

// TestUnknownNamespace: a claim with admin access in a namespace that cannot be read is rejected.
func TestUnknownNamespace(t *testing.T) {
	t.Parallel()
	errs := builtintest.Write{
		Endpoint: "resourceclaims", Object: claim, With: "{metadata: {namespace: other}, spec: " + admin + "}",
	}.Errs(t, definitions())
	if len(errs) != 1 || !strings.Contains(errs[0], `namespaces "other" not found`) {
		t.Errorf("got the errors %q", errs)
	}
}

// TestSlicesAreIndexedByNode: kubelets watch the slices of their node.
func TestSlicesAreIndexedByNode(t *testing.T) {
	t.Parallel()
	target := builtintest.FindTarget(t, definitions(), "resourceslices", "")
	stored, err := target.Version.Codec.Store(t.Context(), builtintest.Decode(t, target, slice))
	if err != nil {
		t.Fatal(err)
	}
	if node, err := target.Index.Value(stored); err != nil || node != "one" || target.Index.Field != "spec.nodeName" {
		t.Errorf("got %s=%q, %v", target.Index.Field, node, err)
	}
}

// TestUnconditionalUpdates checks that updates of taint rules without a resourceVersion are allowed in v1beta2 and
// v1alpha3, and not in v1.
func TestUnconditionalUpdates(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]bool{"v1": false, "v1beta2": true, "v1alpha3": true} {
		target := builtintest.FindTarget(t, definitions(), "devicetaintrules", version)
		ctx := request.WithRequestInfo(t.Context(), &request.RequestInfo{
			IsResourceRequest: true, APIGroup: target.Group, APIVersion: target.Version.Name, Resource: target.Plural,
		})
		if got := strategy.ForUpdate(target).AllowUnconditionalUpdate(ctx); got != want {
			t.Errorf("%s: unconditional updates are allowed: %t, want %t", version, got, want)
		}
	}
}
