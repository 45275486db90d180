package crd

import (
	"context"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource/tableconvertor"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
)

// table renders custom resources by their printer columns, which are parsed on first use.
type table struct {
	columns []apiextensionsv1.CustomResourceColumnDefinition
	parsed  lazy[rest.TableConvertor]
}

func newTable(columns []apiextensionsv1.CustomResourceColumnDefinition) *table {
	return &table{columns: columns}
}

func (t *table) ConvertToTable(ctx context.Context, object, options runtime.Object) (*metav1.Table, error) {
	// A column that cannot be parsed ends the columns; the convertor for those before it is good.
	convertor, _ := t.parsed.get(func() (rest.TableConvertor, error) {
		columns := t.columns
		if len(columns) == 0 {
			columns = defaultColumns()
		}
		return tableconvertor.New(columns)
	})
	return convertor.ConvertToTable(ctx, object, options)
}

func defaultColumns() []apiextensionsv1.CustomResourceColumnDefinition {
	return []apiextensionsv1.CustomResourceColumnDefinition{{
		Name: "Age", Type: "date", JSONPath: ".metadata.creationTimestamp",
		Description: metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"],
	}}
}
