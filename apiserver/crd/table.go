package crd

import (
	"context"
	"regexp"
	"slices"
	"strings"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource/tableconvertor"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"

	"quorate.dev/apiserver/lazy"
)

// table renders custom resources and their scales by printer columns. Columns are parsed on first use, and dropped when
// they are idle. Requests share the parsed columns, as in crdHandler.
type table struct {
	columns []apiextensionsv1.CustomResourceColumnDefinition
	idle    *lazy.Set
	parsed  lazy.Value[rest.TableConvertor]
	scale   lazy.Value[rest.TableConvertor]
}

func newTable(columns []apiextensionsv1.CustomResourceColumnDefinition, idle *lazy.Set) *table {
	return &table{columns: columns, idle: idle}
}

// ConvertToTable implements rest.TableConvertor. If a column cannot be parsed, the table has the columns before that
// one: as in crdHandler, the partial result of tableconvertor.New is used despite its error.
func (t *table) ConvertToTable(ctx context.Context, object, options runtime.Object) (*metav1.Table, error) {
	if _, ok := object.(*autoscalingv1.Scale); ok {
		convertor, _ := t.scale.Get(t.idle, func() (rest.TableConvertor, error) { return tableconvertor.New(scaleColumns()) })
		return convertor.ConvertToTable(ctx, object, options)
	}
	convertor, _ := t.parsed.Get(t.idle, func() (rest.TableConvertor, error) {
		if len(t.columns) == 0 {
			return tableconvertor.New(defaultColumns())
		}
		return tableconvertor.New(t.columns)
	})
	return convertor.ConvertToTable(ctx, object, options)
}

// plainFilter matches a filter of a JSONPath that compares a field with a constant that cannot be a time, such as
// ?(@.type=="Ready"). It selects the same elements of a list if times in the object are replaced by others.
var plainFilter = regexp.MustCompile(
	`\?\(\s*@[\w.-]+\s*[=!]=\s*("([^"\d][^"]*)?"|'([^'\d][^']*)?'|true|false|\d+)\s*\)`,
)

// comparesTimes reports whether the JSONPath of a column may select elements of a list by times in them.
func comparesTimes(columns []apiextensionsv1.CustomResourceColumnDefinition) bool {
	return slices.ContainsFunc(columns, func(c apiextensionsv1.CustomResourceColumnDefinition) bool {
		return strings.Contains(plainFilter.ReplaceAllString(c.JSONPath, ""), "?")
	})
}

func defaultColumns() []apiextensionsv1.CustomResourceColumnDefinition {
	return []apiextensionsv1.CustomResourceColumnDefinition{{
		Name: "Age", Type: "date", JSONPath: ".metadata.creationTimestamp",
		Description: metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"],
	}}
}

func scaleColumns() []apiextensionsv1.CustomResourceColumnDefinition {
	return append([]apiextensionsv1.CustomResourceColumnDefinition{
		{Name: "Desired", Type: "integer", JSONPath: ".spec.replicas", Description: "Number of desired replicas"},
		{Name: "Available", Type: "integer", JSONPath: ".status.replicas", Description: "Number of actual replicas"},
	}, defaultColumns()...)
}
