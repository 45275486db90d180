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
	"quorate.dev/apiserver/watchcache"
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

// row is what becomes a table row. object, if set, is the metadata as it is shown beside the cells.
type row struct {
	hub    runtime.Object
	object []byte
}

// rows decodes the entries of a page. Their metadata comes from the encodings that are shared with other clients.
func (c *call) rows(entries []*watchcache.Entry) ([]row, error) {
	shown := *c
	shown.output = output{media: codec.JSON, as: metadataOnly, group: c.output.group}
	e := shown.encoder()
	rows := make([]row, len(entries))
	for i, entry := range entries {
		item, err := e.item(entry)
		if err != nil {
			return nil, err
		}
		rows[i].object = codec.AppendObject(nil, e.head, item)
		if rows[i].hub, err = c.Registry.Hub(c.target, entry); err != nil {
			return nil, err
		}
	}
	return rows, nil
}

// sendTable answers with objects as rows.
func (c *call) sendTable(code int, rows []row, listMeta metav1.ListMeta) error {
	options, err := c.tableOptions()
	if err != nil {
		return err
	}
	body, err := c.table(c.r.Context(), rows, options, listMeta)
	if err != nil {
		return err
	}
	return c.send(code, append(body, '\n'))
}

// table renders rows as the JSON of a table with the version's columns. The pieces are put together by hand: a
// marshaller would copy and check every row's object once more.
func (c *call) table(ctx context.Context, rows []row, options *metav1.TableOptions, listMeta metav1.ListMeta) ([]byte, error) {
	columns := row{hub: c.target.Version.Model.New()}
	if len(rows) > 0 {
		columns = rows[0]
	}
	head, err := c.target.Version.Table.ConvertToTable(ctx, columns.hub, options)
	if err != nil {
		return nil, err
	}
	if listMeta.ResourceVersion != "" {
		head.ListMeta = listMeta
	}
	body, err := c.tableHead(head, options)
	if err != nil {
		return nil, err
	}
	first := true
	for _, r := range rows {
		one, err := c.target.Version.Table.ConvertToTable(ctx, r.hub, options)
		if err != nil {
			return nil, err
		}
		for i := range one.Rows {
			if !first {
				body = append(body, ',')
			}
			first = false
			if body, err = c.appendRow(body, r, &one.Rows[i], options.IncludeObject); err != nil {
				return nil, err
			}
		}
	}
	return append(body, "]}"...), nil
}

// tableHead is the table up to its rows.
func (c *call) tableHead(head *metav1.Table, options *metav1.TableOptions) ([]byte, error) {
	meta, err := json.Marshal(head.ListMeta)
	if err != nil {
		return nil, err
	}
	definitions := head.ColumnDefinitions
	if options.NoHeaders {
		definitions = nil
	}
	columns, err := json.Marshal(definitions)
	if err != nil {
		return nil, err
	}
	body := append(codec.Head(c.output.group.WithKind("Table")), `"metadata":`...)
	body = append(append(body, meta...), `,"columnDefinitions":`...)
	return append(append(body, columns...), `,"rows":[`...), nil
}

// appendRow appends one row.
func (c *call) appendRow(body []byte, r row, cells *metav1.TableRow, include metav1.IncludeObjectPolicy) ([]byte, error) {
	object := r.object
	if object == nil || include == metav1.IncludeNone || include == metav1.IncludeObject {
		var err error
		if object, err = c.rowObject(r.hub, include); err != nil {
			return nil, err
		}
	}
	shown, err := json.Marshal(cells.Cells)
	if err != nil {
		return nil, err
	}
	body = append(append(body, `{"cells":`...), shown...)
	if len(cells.Conditions) > 0 {
		conditions, err := json.Marshal(cells.Conditions)
		if err != nil {
			return nil, err
		}
		body = append(append(body, `,"conditions":`...), conditions...)
	}
	body = append(append(body, `,"object":`...), object...)
	return append(body, '}'), nil
}

// rowObject is what a row shows of its object besides the cells.
func (c *call) rowObject(hub runtime.Object, include metav1.IncludeObjectPolicy) ([]byte, error) {
	switch include {
	case metav1.IncludeNone:
		return []byte("null"), nil
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
