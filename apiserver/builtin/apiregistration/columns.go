package apiregistration

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metatable "k8s.io/apimachinery/pkg/api/meta/table"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
)

// columns renders APIService objects as table rows.
type columns struct{}

// ConvertToTable implements rest.TableConvertor.
func (columns) ConvertToTable(_ context.Context, object, _ runtime.Object) (*metav1.Table, error) {
	descriptions := metav1.ObjectMeta{}.SwaggerDoc()
	table := &metav1.Table{ColumnDefinitions: []metav1.TableColumnDefinition{
		{Name: "Name", Type: "string", Format: "name", Description: descriptions["name"]},
		{Name: "Service", Type: "string", Description: "The reference to the service that hosts this API endpoint."},
		{Name: "Available", Type: "string", Description: "Whether this service is available."},
		{Name: "Age", Type: "string", Description: descriptions["creationTimestamp"]},
	}}
	if list, err := meta.ListAccessor(object); err == nil {
		table.ResourceVersion = list.GetResourceVersion()
		table.Continue = list.GetContinue()
		table.RemainingItemCount = list.GetRemainingItemCount()
	} else if single, err := meta.CommonAccessor(object); err == nil {
		table.ResourceVersion = single.GetResourceVersion()
	}
	var err error
	table.Rows, err = metatable.MetaToTableRow(object, row)
	return table, err
}

func row(object runtime.Object, _ metav1.Object, name, age string) ([]any, error) {
	service := object.(*apiregistration.APIService)
	place := "Local"
	if service.Spec.Service != nil {
		place = service.Spec.Service.Namespace + "/" + service.Spec.Service.Name
	}
	return []any{name, place, availability(service.Status.Conditions), age}, nil
}

func availability(conditions []apiregistration.APIServiceCondition) string {
	for _, condition := range conditions {
		if condition.Type != apiregistration.Available {
			continue
		}
		if condition.Status != apiregistration.ConditionTrue && condition.Reason != "" {
			return fmt.Sprintf("%s (%s)", condition.Status, condition.Reason)
		}
		return string(condition.Status)
	}
	return string(apiregistration.ConditionUnknown)
}
