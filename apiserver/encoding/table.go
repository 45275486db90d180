package encoding

import (
	"bytes"
	"context"
	"encoding/json"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1beta1 "k8s.io/apimachinery/pkg/apis/meta/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"quorate.dev/apiserver/codec"
	"quorate.dev/apiserver/encoding/row"
	"quorate.dev/apiserver/resource"
)

// Table encodes objects as JSON of a metav1.Table with the columns of a version. Rows are assembled by hand, because
// json.Marshal of a Table copies and validates the object of each row a second time.
type Table struct {
	Resource resource.Match
	Group    schema.GroupVersion // meta.k8s.io/v1 or v1beta1
	Options  *metav1.TableOptions
}

// Metadata returns the format of the metadata in rows, which is also the format for clients that ask for
// PartialObjectMetadata.
func (t Table) Metadata() Format {
	shape := Metadata
	if t.Group == metav1beta1.SchemeGroupVersion {
		shape = MetadataV1beta1
	}
	return Format{Resource: t.Resource, Media: codec.JSON, Shape: shape}
}

// ShowsMetadata reports whether rows contain the metadata of their object, which is the default.
func (t Table) ShowsMetadata() bool {
	return t.Options.IncludeObject == "" || t.Options.IncludeObject == metav1.IncludeMetadata
}

// AppendHead appends the part of the table that precedes the first row. first is the first object, in the internal
// version; the columns may depend on it.
func (t Table) AppendHead(
	ctx context.Context, to []byte, first runtime.Object, listMeta metav1.ListMeta,
) ([]byte, error) {
	head, err := t.Resource.Version.Table.ConvertToTable(ctx, first, t.Options)
	if err != nil {
		return nil, err
	}
	if listMeta.ResourceVersion != "" {
		head.ListMeta = listMeta
	}
	encodedMeta, err := json.Marshal(head.ListMeta)
	if err != nil {
		return nil, err
	}
	definitions := head.ColumnDefinitions
	if t.Options.NoHeaders {
		definitions = nil
	}
	columns, err := json.Marshal(definitions)
	if err != nil {
		return nil, err
	}
	to = append(codec.AppendHead(to, t.Group.WithKind("Table")), `"metadata":`...)
	to = append(append(to, encodedMeta...), `,"columnDefinitions":`...)
	return append(append(to, columns...), `,"rows":[`...), nil
}

// AppendTail appends the part of the table that follows the last row.
func (t Table) AppendTail(to []byte) []byte { return append(to, "]}"...) }

// AppendRows appends the rows of an object in the internal version; upstream's printers return exactly one row.
// metadata is the object's item in the format that Table.Metadata returns; if it is nil, the metadata is encoded from
// the object.
func (t Table) AppendRows(ctx context.Context, to []byte, internal runtime.Object, metadata []byte) ([]byte, error) {
	converted, err := t.Resource.Version.Table.ConvertToTable(ctx, internal, t.Options)
	if err != nil {
		return nil, err
	}
	for i := range converted.Rows {
		if i > 0 {
			to = append(to, ',')
		}
		if to, err = row.Cells(to, &converted.Rows[i]); err != nil {
			return nil, err
		}
		if to, err = t.appendRowObject(to, internal, metadata); err != nil {
			return nil, err
		}
	}
	return to, nil
}

// Rows returns the format of the row.Template of objects, which all requests for tables share.
func (t Table) Rows() Format { return Format{Resource: t.Resource, Media: codec.JSON, Shape: Row} }

// SharesRows reports whether rows are made of Rows and Metadata.
func (t Table) SharesRows() bool { return t.Options.IncludeObject != metav1.IncludeObject }

// AppendShared appends the row of an object with the ages of a moment. metadata is as in AppendRows, except that it
// must not be nil if rows show metadata.
func (t Table) AppendShared(to []byte, template row.Template, metadata []byte, now time.Time) []byte {
	to = append(template.Append(to, now), `,"object":`...)
	if !t.ShowsMetadata() {
		return append(to, "null}"...)
	}
	return append(codec.AppendObject(to, t.Group.WithKind("PartialObjectMetadata"), false, metadata), '}')
}

// AppendList appends the rows of a list in the internal version, in the order in which it is printed.
func (t Table) AppendList(ctx context.Context, to []byte, list runtime.Object) ([]byte, error) {
	converted, err := t.Resource.Version.Table.ConvertToTable(ctx, list, t.Options)
	if err != nil {
		return nil, err
	}
	for i := range converted.Rows {
		if i > 0 {
			to = append(to, ',')
		}
		if to, err = row.Cells(to, &converted.Rows[i]); err != nil {
			return nil, err
		}
		if to, err = t.appendRowObject(to, converted.Rows[i].Object.Object, nil); err != nil {
			return nil, err
		}
	}
	return to, nil
}

// appendRowObject appends the object of a row and ends the row.
func (t Table) appendRowObject(to []byte, internal runtime.Object, metadata []byte) ([]byte, error) {
	to = append(to, `,"object":`...)
	if metadata != nil && t.ShowsMetadata() {
		return append(codec.AppendObject(to, t.Group.WithKind("PartialObjectMetadata"), false, metadata), '}'), nil
	}
	object, err := t.rowObject(internal)
	if err != nil {
		return nil, err
	}
	return append(append(to, object...), '}'), nil
}

// rowObject encodes the part of an object that Options.IncludeObject selects.
func (t Table) rowObject(internal runtime.Object) ([]byte, error) {
	switch t.Options.IncludeObject {
	case metav1.IncludeNone:
		return []byte("null"), nil
	case metav1.IncludeObject:
		external, err := t.Resource.Version.Codec.External(internal)
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
	partial.SetGroupVersionKind(t.Group.WithKind("PartialObjectMetadata"))
	return json.Marshal(partial)
}

// One returns a table of one object, given in the internal version.
func (t Table) One(ctx context.Context, internal runtime.Object) ([]byte, error) {
	table, err := t.AppendHead(ctx, nil, internal, metav1.ListMeta{})
	if err != nil {
		return nil, err
	}
	if table, err = t.AppendRows(ctx, table, internal, nil); err != nil {
		return nil, err
	}
	return t.AppendTail(table), nil
}

// Empty returns a table without rows, with "rows": null for the kinds for which kube-apiserver has it.
func (t Table) Empty(ctx context.Context, listMeta metav1.ListMeta) ([]byte, error) {
	table, err := t.AppendHead(ctx, nil, t.Resource.Version.Codec.New(), listMeta)
	if err != nil {
		return nil, err
	}
	if t.Resource.Version.NullRows {
		return append(bytes.TrimSuffix(table, []byte("[")), "null}"...), nil
	}
	return t.AppendTail(table), nil
}
