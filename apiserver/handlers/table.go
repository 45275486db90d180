package handlers

import (
	"context"
	"encoding/json"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	validation "k8s.io/apimachinery/pkg/apis/meta/v1beta1/validation"
	"k8s.io/apimachinery/pkg/runtime"

	"quorate.dev/apiserver/codec"
)

// tableOptions says what each row carries besides its cells.
func (c *call) tableOptions() (*metav1.TableOptions, error) {
	options := &metav1.TableOptions{}
	if err := decodeQuery(c.record.Query(), options); err != nil {
		return nil, err
	}
	if errs := validation.ValidateTableOptions(options); len(errs) > 0 {
		return nil, apierrors.NewBadRequest("Unable to convert to Table as requested: " + errs[0].Error())
	}
	return options, nil
}

// sendTable answers with hub objects as rows.
func (c *call) sendTable(code int, hubs []runtime.Object, listMeta metav1.ListMeta) error {
	options, err := c.tableOptions()
	if err != nil {
		return err
	}
	rows, err := c.table(c.r.Context(), hubs, options)
	if err != nil {
		return err
	}
	if listMeta.ResourceVersion != "" {
		rows.ListMeta = listMeta
	}
	body, err := json.Marshal(rows)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	return c.send(code, append(body, '\n'))
}

// table renders hub objects with the version's columns.
func (c *call) table(ctx context.Context, hubs []runtime.Object, options *metav1.TableOptions) (*metav1.Table, error) {
	all := &metav1.Table{ColumnDefinitions: []metav1.TableColumnDefinition{}, Rows: []metav1.TableRow{}}
	if len(hubs) == 0 {
		hubs = []runtime.Object{} // the columns are wanted all the same
		empty, err := c.target.Version.Table.ConvertToTable(ctx, c.target.Version.Model.New(), options)
		if err != nil {
			return nil, err
		}
		all.ColumnDefinitions = empty.ColumnDefinitions
	}
	for i, hub := range hubs {
		one, err := c.target.Version.Table.ConvertToTable(ctx, hub, options)
		if err != nil {
			return nil, err
		}
		if i == 0 {
			all.ListMeta, all.ColumnDefinitions = one.ListMeta, one.ColumnDefinitions
		}
		for _, row := range one.Rows {
			if row.Object.Raw, err = c.rowObject(hub, options.IncludeObject); err != nil {
				return nil, err
			}
			row.Object.Object = nil
			all.Rows = append(all.Rows, row)
		}
	}
	all.SetGroupVersionKind(c.output.group.WithKind("Table"))
	if options.NoHeaders {
		all.ColumnDefinitions = nil
	}
	return all, nil
}

// rowObject is what a row shows of its object besides the cells.
func (c *call) rowObject(hub runtime.Object, include metav1.IncludeObjectPolicy) ([]byte, error) {
	switch include {
	case metav1.IncludeNone:
		return nil, nil
	case metav1.IncludeObject:
		external, err := c.target.Version.Model.External(hub)
		if err != nil {
			return nil, err
		}
		return json.Marshal(external)
	}
	accessor, err := meta.Accessor(hub)
	if err != nil {
		return nil, err
	}
	partial := codec.Metadata(accessor)
	partial.SetGroupVersionKind(c.output.group.WithKind("PartialObjectMetadata"))
	return json.Marshal(partial)
}
