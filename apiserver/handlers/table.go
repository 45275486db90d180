package handlers

import (
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	validation "k8s.io/apimachinery/pkg/apis/meta/v1beta1/validation"
	"k8s.io/apimachinery/pkg/runtime"

	"quorate.dev/apiserver/encoding"
	"quorate.dev/apiserver/encoding/row"
	"quorate.dev/apiserver/registry"
	"quorate.dev/apiserver/watchcache"
)

// tableFormat returns the format of a table response, with the TableOptions of the query.
func (c *call) tableFormat() (encoding.Table, error) {
	t := encoding.Table{Resource: c.target.Match, Group: c.output.group, Options: &metav1.TableOptions{}}
	if err := decodeQuery(c.record.Query(), t.Options); err != nil {
		return t, err
	}
	if errs := validation.ValidateTableOptions(t.Options); len(errs) > 0 {
		return t, apierrors.NewBadRequest("Unable to convert to Table as requested: " + errs[0].Error())
	}
	return t, nil
}

// sendTable responds with a table that has the rows of all entries of a page.
func (c *call) sendTable(page *registry.List, listMeta metav1.ListMeta) error {
	t, err := c.tableFormat()
	if err != nil {
		return err
	}
	listMeta.ShardInfo = nil // as in kube-apiserver, whose printers do not copy the field
	out := &chunkedResponse{call: c, code: http.StatusOK}
	defer out.close()
	body, err := c.writeRows(out, t, page, listMeta)
	if err != nil {
		return out.abort(err)
	}
	return out.end(append(body, '\n'))
}

// sendRow responds with a table of one object, given in the internal version.
func (c *call) sendRow(code int, internal runtime.Object) error {
	t, err := c.tableFormat()
	if err != nil {
		return err
	}
	body, err := t.One(c.r.Context(), internal)
	if err != nil {
		return err
	}
	body = append(body, '\n')
	c.auditJSON(body)
	return c.send(code, body)
}

// writeRows writes the rows of a page to out and returns the bytes that have not been written. Of the decoded objects,
// only one is in memory at a time.
func (c *call) writeRows(
	out *chunkedResponse, t encoding.Table, page *registry.List, listMeta metav1.ListMeta,
) ([]byte, error) {
	ctx, entries := c.r.Context(), page.Entries
	if err := out.audit(t, entries); err != nil {
		return nil, err
	}
	if len(entries) == 0 {
		return t.Empty(ctx, listMeta)
	}
	if err := c.encodeMetadata(t, page); err != nil {
		return nil, err
	}
	first, err := c.Registry.Decode(ctx, c.target, entries[0])
	if err != nil {
		return nil, err
	}
	body, err := t.AppendHead(ctx, nil, first, listMeta)
	if err != nil {
		return nil, err
	}
	if c.target.Version.PrintedList != nil {
		return c.appendList(body, t, entries)
	}
	for i, entry := range entries {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if i > 0 {
			body = append(body, ',')
		}
		if body, err = c.appendRows(body, t, entry); err != nil {
			return nil, err
		}
		if out.full(body) {
			out.write(body)
			body = body[:0]
		}
	}
	return t.AppendTail(body), nil
}

// appendList appends the rows of all entries, printed together, and the end of the table.
func (c *call) appendList(body []byte, t encoding.Table, entries []*watchcache.Entry) ([]byte, error) {
	objects := make([]runtime.Object, len(entries))
	for i, entry := range entries {
		var err error
		if objects[i], err = c.Registry.Decode(c.r.Context(), c.target, entry); err != nil {
			return nil, err
		}
	}
	list, err := c.target.Version.PrintedList(objects)
	if err != nil {
		return nil, err
	}
	if body, err = t.AppendList(c.r.Context(), body, list); err != nil {
		return nil, err
	}
	return t.AppendTail(body), nil
}

// encodeMetadata encodes the metadata of all entries before the first row is sent: an object that cannot be decoded
// must fail the request while the response can still be a Status.
func (c *call) encodeMetadata(t encoding.Table, page *registry.List) error {
	entries := page.Entries
	if err := c.acquireMemory(c.tableMemory(t, entries)); err != nil {
		return err
	}
	if _, err := page.Encoded(c.r.Context(), t.Metadata()); err != nil {
		return err
	}
	if c.memory != nil {
		// The metadata is in the watch cache now.
		c.shrinkMemory(c.tableMemory(t, entries))
	}
	return nil
}

// appendRows appends the rows of an entry. The metadata in the rows is the encoding shared with clients that ask for
// PartialObjectMetadata.
func (c *call) appendRows(body []byte, t encoding.Table, entry *watchcache.Entry) ([]byte, error) {
	var metadata []byte
	if t.ShowsMetadata() {
		item, err := entry.Encoded(c.r.Context(), t.Metadata())
		if err != nil {
			return nil, err
		}
		metadata = item.Bytes()
	}
	template, err := c.sharedRow(t, entry)
	if err != nil {
		return nil, err
	}
	if !template.IsNone() {
		return t.AppendShared(body, template, metadata, c.Clock.Now()), nil
	}
	internal, err := c.Registry.Decode(c.r.Context(), c.target, entry)
	if err != nil {
		return nil, err
	}
	return t.AppendRows(c.r.Context(), body, internal, metadata)
}

// sharedRow returns the template of the row of an entry. The template is none, so that the row must be printed for
// this request, if the table shows whole objects, if the row depends on more than the stored bytes, if no other
// request uses the entry, or if no template can show the row.
func (c *call) sharedRow(t encoding.Table, entry *watchcache.Entry) (row.Template, error) {
	format := t.Rows()
	version := c.target.Version
	if !t.SharesRows() || version.UnsharedRows || c.target.Endpoint.Undecorated || !entry.KeepsEncodings() ||
		format.Remote(entry.Stored()) {
		return nil, nil
	}
	item, err := entry.Encoded(c.r.Context(), format)
	if err != nil {
		return nil, err
	}
	return row.Template(item.Bytes()), nil
}

// tableMemory returns the approximate bytes that a table holds in addition to the watch cache. Only a reformatted table
// is held in memory as a whole.
func (c *call) tableMemory(t encoding.Table, entries []*watchcache.Entry) int64 {
	const cells = 512
	_, uncached := estimate(t.Metadata(), entries)
	shown := t.Metadata()
	if t.Options.IncludeObject == metav1.IncludeObject {
		shown = c.format()
	}
	objects, _ := estimate(shown, entries)
	return uncached + (cells*int64(len(entries))+objects)*c.output.reformatFactor()
}
