package definition

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
)

// lazyTable registers all printers on first use.
type lazyTable func() rest.TableConvertor

// ConvertToTable implements rest.TableConvertor.
func (t lazyTable) ConvertToTable(ctx context.Context, object, options runtime.Object) (*metav1.Table, error) {
	return t().ConvertToTable(ctx, object, options)
}
