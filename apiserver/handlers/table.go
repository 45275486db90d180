package handlers

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"

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

// row is what becomes a table row: a hub object, or an entry that is decoded when its turn comes, so that only one
// object of a long list is in memory at a time.
type row struct {
	hub   runtime.Object
	entry *watchcache.Entry
}

// rows are the rows of a page.
func rows(entries []*watchcache.Entry) []row {
	all := make([]row, len(entries))
	for i, entry := range entries {
		all[i].entry = entry
	}
	return all
}

// decoded returns the row's object.
func (c *call) decoded(r row) (runtime.Object, error) {
	if r.hub != nil {
		return r.hub, nil
	}
	return c.Registry.Hub(c.target, r.entry)
}

// metadataEncoder makes what is shown beside cells, in encodings that are shared with clients who ask for metadata only.
func (c *call) metadataEncoder() encoder {
	shown := *c
	shown.output = output{media: codec.JSON, as: metadataOnly, group: c.output.group}
	return shown.encoder()
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
	if len(rows) == 0 {
		body, err := c.tableHead(ctx, c.target.Version.Model.New(), options, listMeta)
		if c.target.Version.Plain {
			return append(bytes.TrimSuffix(body, []byte("[")), "null}"...), err
		}
		return append(body, "]}"...), err
	}
	var body []byte
	metadata := c.metadataEncoder()
	for i, r := range rows {
		if i == 1 {
			// Objects of one kind are alike: room for all, so that a long table is not copied again and again.
			body = slices.Grow(body, (len(rows)-1)*len(body)*9/8)
		}
		hub, err := c.decoded(r)
		if err != nil {
			return nil, err
		}
		if i == 0 {
			if body, err = c.tableHead(ctx, hub, options, listMeta); err != nil {
				return nil, err
			}
		}
		one, err := c.target.Version.Table.ConvertToTable(ctx, hub, options)
		if err != nil {
			return nil, err
		}
		for j := range one.Rows {
			if i+j > 0 {
				body = append(body, ',')
			}
			if body, err = appendRow(body, &one.Rows[j]); err != nil {
				return nil, err
			}
			if body, err = c.appendRowObject(body, &metadata, r.entry, hub, options.IncludeObject); err != nil {
				return nil, err
			}
		}
	}
	return append(body, "]}"...), nil
}

// tableHead is the table up to its rows.
func (c *call) tableHead(ctx context.Context, first runtime.Object, options *metav1.TableOptions, listMeta metav1.ListMeta) ([]byte, error) {
	head, err := c.target.Version.Table.ConvertToTable(ctx, first, options)
	if err != nil {
		return nil, err
	}
	if listMeta.ResourceVersion != "" {
		head.ListMeta = listMeta
	}
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

// appendRow appends a row up to its object.
func appendRow(body []byte, cells *metav1.TableRow) ([]byte, error) {
	shown, err := json.Marshal(cells.Cells)
	if err != nil {
		return nil, err
	}
	body = append(append(body, `{"cells":`...), shown...)
	if len(cells.Conditions) == 0 {
		return body, nil
	}
	conditions, err := json.Marshal(cells.Conditions)
	if err != nil {
		return nil, err
	}
	return append(append(body, `,"conditions":`...), conditions...), nil
}

// appendRowObject appends what a row shows beside its cells, and ends the row.
func (c *call) appendRowObject(body []byte, metadata *encoder, entry *watchcache.Entry, hub runtime.Object, include metav1.IncludeObjectPolicy) ([]byte, error) {
	body = append(body, `,"object":`...)
	if entry != nil && (include == "" || include == metav1.IncludeMetadata) {
		item, err := metadata.item(entry)
		if err != nil {
			return nil, err
		}
		return append(codec.AppendObject(body, metadata.head, item), '}'), nil
	}
	object, err := c.rowObject(hub, include)
	if err != nil {
		return nil, err
	}
	return append(append(body, object...), '}'), nil
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
