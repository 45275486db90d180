// Package apiextensions defines the kind of the API group apiextensions.k8s.io.
package apiextensions

import (
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/install"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresourcedefinition"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresourcedefinition/tableconvertor"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/builtin/definition"
	builtinschema "quorate.dev/apiserver/builtin/schema"
	"quorate.dev/apiserver/resource"
)

// NewScheme returns a scheme with the types of the group.
func NewScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	return scheme
}

// Definitions returns the kinds of the group.
func Definitions(
	loader *builtinschema.Loader, clock clock.PassiveClock, serves func(schema.GroupVersionResource) bool,
) []*resource.Definition {
	scheme := NewScheme()
	builder := definition.NewBuilder(scheme, serializer.NewCodecFactory(scheme), loader.For(scheme),
		serves).StoredAs(runtime.ContentTypeJSON)
	return []*resource.Definition{builder.Group("apiextensions.k8s.io", "v1").Define(definition.Kind{
		Name: "CustomResourceDefinition", ShortNames: []string{"crd", "crds"}, Categories: []string{"api-extensions"},
		Strategy: customresourcedefinition.NewStrategy(scheme),
		Delete:   deletion{scheme, clock},
		Status:   customresourcedefinition.NewStatusStrategy(scheme), PlainStatus: true,
		Attributes: customresourcedefinition.GetAttrs,
		Path:       "apiextensions.k8s.io/customresourcedefinitions",
		Storage:    schema.GroupVersion{Group: "apiextensions.k8s.io", Version: "v1beta1"},
		Columns:    tableconvertor.New(), NullRows: true,
	})}
}
