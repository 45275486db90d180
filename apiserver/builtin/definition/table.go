package definition

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
)

// listOf returns a function that makes a list of an internal kind.
func (b *Builder) listOf(kind schema.GroupVersionKind) func([]runtime.Object) (runtime.Object, error) {
	return func(objects []runtime.Object) (runtime.Object, error) {
		list, err := b.scheme.New(kind)
		if err != nil {
			return nil, err
		}
		return list, meta.SetList(list, objects)
	}
}

// lazyTable registers all printers on first use.
type lazyTable func() rest.TableConvertor

// ConvertToTable implements rest.TableConvertor.
func (t lazyTable) ConvertToTable(ctx context.Context, object, options runtime.Object) (*metav1.Table, error) {
	return t().ConvertToTable(ctx, object, options)
}
