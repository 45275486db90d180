package handlers

import (
	"bytes"
	"encoding/json"
	"net/http"

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

// metadataEncoder makes what is shown beside cells, in encodings that are shared with clients who ask for metadata only.
func (c *call) metadataEncoder() encoder {
	shown := *c
	shown.output = output{media: codec.JSON, as: metadataOnly, group: c.output.group}
	return shown.encoder()
}

// sendTable answers with objects as rows.
func (c *call) sendTable(entries []*watchcache.Entry, listMeta metav1.ListMeta) error {
	options, err := c.tableOptions()
	if err != nil {
		return err
	}
	out := &chunkedResponse{call: c, code: http.StatusOK}
	defer out.close()
	body, err := c.table(out, entries, options, listMeta)
	if err != nil {
		return out.failed(err)
	}
	return out.end(append(body, '\n'))
}

// sendRow answers with a internal version object as a table of one row.
func (c *call) sendRow(code int, internal runtime.Object) error {
	options, err := c.tableOptions()
	if err != nil {
		return err
	}
	body, err := c.tableOfOne(internal, options)
	if err != nil {
		return err
	}
	return c.send(code, append(body, '\n'))
}

// table renders objects as the JSON of a table with the version's columns, and returns the end of it, which is still to
// be sent. Only one object of a long list is in memory at a time. The pieces are put together by hand: a marshaller
// would copy and check every row's object once more.
func (c *call) table(out *chunkedResponse, entries []*watchcache.Entry, options *metav1.TableOptions, listMeta metav1.ListMeta) ([]byte, error) {
	if len(entries) == 0 {
		return c.tableOfNone(options, listMeta)
	}
	metadata := c.metadataEncoder()
	if err := c.takeRoom(c.tableRoom(&metadata, entries, options.IncludeObject)); err != nil {
		return nil, err
	}
	// Whether all can be decoded is found out before the first row is sent.
	if _, err := metadata.items(entries); err != nil {
		return nil, err
	}
	if c.room != nil {
		c.leaveRoom(c.tableRoom(&metadata, entries, options.IncludeObject))
	}
	ctx := c.r.Context()
	var body []byte
	for i, entry := range entries {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		internal, err := c.Registry.Decode(c.target, entry)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			body = append(body, ',')
		} else if body, err = c.tableHead(internal, options, listMeta); err != nil {
			return nil, err
		}
		if body, err = c.appendRows(body, &metadata, entry, internal, options); err != nil {
			return nil, err
		}
		if out.full(body) {
			out.write(body)
			body = body[:0]
		}
	}
	return append(body, "]}"...), nil
}

// tableRoom is about how many bytes a table holds of its own. It is in memory as a whole only if it is laid out anew.
func (c *call) tableRoom(metadata *encoder, entries []*watchcache.Entry, include metav1.IncludeObjectPolicy) int64 {
	const cells = 512
	rows := cells * int64(len(entries))
	shown := metadata
	if include == metav1.IncludeObject {
		whole := c.encoder()
		shown = &whole
	}
	for _, entry := range entries {
		rows += shown.estimate(entry)
	}
	return metadata.room(entries) + rows*c.output.layoutFactor()
}

// tableOfNone is a table without rows.
func (c *call) tableOfNone(options *metav1.TableOptions, listMeta metav1.ListMeta) ([]byte, error) {
	body, err := c.tableHead(c.target.Version.Codec.New(), options, listMeta)
	if c.target.Version.Plain {
		return append(bytes.TrimSuffix(body, []byte("[")), "null}"...), err
	}
	return append(body, "]}"...), err
}

// tableOfOne is a table of one internal version object.
func (c *call) tableOfOne(internal runtime.Object, options *metav1.TableOptions) ([]byte, error) {
	body, err := c.tableHead(internal, options, metav1.ListMeta{})
	if err != nil {
		return nil, err
	}
	if body, err = c.appendRows(body, nil, nil, internal, options); err != nil {
		return nil, err
	}
	return append(body, "]}"...), nil
}

// tableHead is the table up to its rows.
func (c *call) tableHead(first runtime.Object, options *metav1.TableOptions, listMeta metav1.ListMeta) ([]byte, error) {
	head, err := c.target.Version.Table.ConvertToTable(c.r.Context(), first, options)
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

// appendRows appends the rows that stand for a internal version object: one, with all printers there are. entry is nil for what has
// none.
func (c *call) appendRows(body []byte, metadata *encoder, entry *watchcache.Entry, internal runtime.Object, options *metav1.TableOptions) ([]byte, error) {
	shown, err := c.target.Version.Table.ConvertToTable(c.r.Context(), internal, options)
	if err != nil {
		return nil, err
	}
	for i := range shown.Rows {
		if i > 0 {
			body = append(body, ',')
		}
		if body, err = appendCells(body, &shown.Rows[i]); err != nil {
			return nil, err
		}
		if body, err = c.appendRowObject(body, metadata, entry, internal, options.IncludeObject); err != nil {
			return nil, err
		}
	}
	return body, nil
}

// appendCells appends a row up to its object.
func appendCells(body []byte, cells *metav1.TableRow) ([]byte, error) {
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
func (c *call) appendRowObject(body []byte, metadata *encoder, entry *watchcache.Entry, internal runtime.Object, include metav1.IncludeObjectPolicy) ([]byte, error) {
	body = append(body, `,"object":`...)
	if entry != nil && (include == "" || include == metav1.IncludeMetadata) {
		item, err := metadata.item(entry)
		if err != nil {
			return nil, err
		}
		return append(codec.AppendObject(body, metadata.head, item), '}'), nil
	}
	object, err := c.rowObject(internal, include)
	if err != nil {
		return nil, err
	}
	return append(append(body, object...), '}'), nil
}

// rowObject is what a row shows of its object besides the cells.
func (c *call) rowObject(internal runtime.Object, include metav1.IncludeObjectPolicy) ([]byte, error) {
	switch include {
	case metav1.IncludeNone:
		return []byte("null"), nil
	case metav1.IncludeObject:
		external, err := c.target.Version.Codec.External(internal)
		if err != nil {
			return nil, err
		}
		return json.Marshal(external)
	}
	accessor, err := meta.Accessor(internal)
	if err != nil {
		return nil, err
	}
	partial := codec.Metadata(accessor)
	partial.SetGroupVersionKind(c.output.group.WithKind("PartialObjectMetadata"))
	return json.Marshal(partial)
}
