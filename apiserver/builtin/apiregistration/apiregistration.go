// Package apiregistration defines the kind of the API group apiregistration.k8s.io.
package apiregistration

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/install"
	"k8s.io/kube-aggregator/pkg/registry/apiservice"

	"quorate.dev/apiserver/builtin/definition"
	builtinschema "quorate.dev/apiserver/builtin/schema"
	"quorate.dev/apiserver/resource"
)

// APIServices is the group and resource of APIServices.
var APIServices = schema.GroupResource{Group: "apiregistration.k8s.io", Resource: "apiservices"}

// NewScheme returns a scheme with the types of the group.
func NewScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	return scheme
}

// Definitions returns the kinds of the group.
func Definitions(loader *builtinschema.Loader, serves func(schema.GroupVersionResource) bool) []*resource.Definition {
	scheme := NewScheme()
	builder := definition.NewBuilder(scheme, serializer.NewCodecFactory(scheme), loader.For(scheme),
		serves).StoredAs(runtime.ContentTypeJSON)
	return []*resource.Definition{builder.Group(APIServices.Group, "v1").Define(definition.Kind{
		Name: "APIService", Categories: []string{"api-extensions"},
		Strategy: apiservice.NewStrategy(scheme),
		Status:   apiservice.NewStatusStrategy(scheme), PlainStatus: true,
		Attributes: apiservice.GetAttrs,
		Path:       "apiregistration.k8s.io/apiservices",
		Columns:    columns{},
	})}
}
