// Package dynamicresource defines the kinds of the API group resource.k8s.io: devices and claims to them.
package dynamicresource

import (
	"context"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	clientv1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/resource/install"
	"k8s.io/kubernetes/pkg/registry/resource/deviceclass"
	"k8s.io/kubernetes/pkg/registry/resource/devicetaintrule"
	"k8s.io/kubernetes/pkg/registry/resource/resourceclaim"
	"k8s.io/kubernetes/pkg/registry/resource/resourceclaimtemplate"
	"k8s.io/kubernetes/pkg/registry/resource/resourcepoolstatusrequest"
	"k8s.io/kubernetes/pkg/registry/resource/resourceslice"

	"quorate.dev/apiserver/builtin/definition"
	"quorate.dev/apiserver/resource"
)

// Definitions returns the kinds of the group. A claim with admin access requires a label of its namespace, which is
// read from objects. authorizer decides whether a client may update the status of a claim.
func Definitions(
	builder *definition.Builder, objects resource.Client, authorizer authorizer.UnconditionalAuthorizer,
) []*resource.Definition {
	group := builder.Group("resource.k8s.io", "v1", "v1beta2", "v1beta1", "v1alpha3")
	stable := []string{"v1", "v1beta2", "v1beta1"}
	beta := schema.GroupVersion{Group: "resource.k8s.io", Version: "v1beta2"}
	alpha := schema.GroupVersion{Group: "resource.k8s.io", Version: "v1alpha3"}
	namespaces := namespaceGetter{objects: objects}
	claim := resourceclaim.NewStrategy(namespaces, authorizer)
	return []*resource.Definition{
		group.Define(definition.Kind{
			Name: "DeviceClass", Versions: stable, ReturnsDeleted: true, Strategy: deviceclass.Strategy,
		}),
		group.Define(definition.Kind{
			Name: "DeviceTaintRule", Versions: []string{"v1", "v1beta2", "v1alpha3"}, Storage: beta,
			ReturnsDeleted: true, ReturnsStatusIn: []string{"v1"},
			Strategy: devicetaintrule.Strategy, Status: devicetaintrule.StatusStrategy, PlainStatus: true,
		}),
		group.Define(definition.Kind{
			Name: "ResourceClaim", Versions: stable, ReturnsDeleted: true, Attributes: resourceclaim.GetAttrs,
			Strategy: claim, Status: resourceclaim.NewStatusStrategy(claim), PlainStatus: true,
		}),
		group.Define(definition.Kind{
			Name: "ResourceClaimTemplate", Versions: stable, ReturnsDeleted: true, Attributes: resourceclaimtemplate.GetAttrs,
			Strategy: resourceclaimtemplate.NewStrategy(namespaces),
		}),
		group.Define(definition.Kind{
			Name: "ResourcePoolStatusRequest", Versions: []string{"v1alpha3"}, Storage: alpha, ReturnsDeleted: true,
			Strategy: resourcepoolstatusrequest.Strategy, Status: resourcepoolstatusrequest.StatusStrategy,
		}),
		group.Define(definition.Kind{
			Name: "ResourceSlice", Versions: stable, ReturnsDeleted: true,
			Strategy: resourceslice.Strategy, Attributes: resourceslice.GetAttrs, Index: definition.NodeNameIndex(3),
		}),
	}
}

// namespaceGetter implements Get of a namespace client, the only method that the strategies call.
type namespaceGetter struct {
	clientv1.NamespaceInterface
	objects resource.Client
}

// Get returns a namespace with only its metadata.
func (g namespaceGetter) Get(ctx context.Context, name string, _ metav1.GetOptions) (*v1.Namespace, error) {
	object, err := g.objects.Get(ctx,
		resource.Key{GroupResource: schema.GroupResource{Resource: "namespaces"}, Name: name}, resource.ReadOptions{})
	if err != nil {
		return nil, err
	}
	return &v1.Namespace{ObjectMeta: object.(*core.Namespace).ObjectMeta}, nil
}
