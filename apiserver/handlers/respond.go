package handlers

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"quorate.dev/apiserver/audit"
	"quorate.dev/apiserver/codec"
	"quorate.dev/apiserver/encoding"
	"quorate.dev/apiserver/registry"
	"quorate.dev/apiserver/request"
)

// chunkSize is the size in bytes of the writes of a list. Few large writes cost much less than many small ones.
const chunkSize = 64 << 10

// initialChunkSize is the size in bytes from which the initial events of a watch are written. The buffer for them is
// smaller than for lists, because many watches whose clients do not read may hold one each.
const initialChunkSize = 16 << 10

// A buffer may return to its pool as soon as Write has returned, even with an error: the HTTP/2 server does not use the
// bytes any more. The pools are global, because no caller can observe their state.
var (
	chunks      = sync.Pool{New: func() any { b := make([]byte, 0, chunkSize+chunkSize/2); return &b }}
	initials    = sync.Pool{New: func() any { b := make([]byte, 0, 2*initialChunkSize); return &b }}
	compressors = sync.Pool{New: func() any { w, _ := gzip.NewWriterLevel(nil, gzip.BestSpeed); return w }}
)

// send sends a response with the given body in JSON, protobuf or CBOR, after reformatting JSON if the client asks for
// that.
func (c *call) send(code int, body []byte) error {
	if err := c.acquireMemory(int64(len(body)) * (1 + c.output.reformatFactor())); err != nil {
		return err
	}
	body, err := c.reformat(body)
	if err != nil {
		return err
	}
	c.shrinkMemory(int64(len(body)))
	c.span.Event(eventWriting)
	defer c.span.Event(eventWritten)
	defer c.span.Start(spanSerialize).End()
	header := c.w.Header()
	header["Content-Type"] = []string{c.output.contentType(false)}
	if request.Compresses(c.r, len(body)) {
		return c.compressed(code, func(w io.Writer) { _, _ = w.Write(body) })
	}
	c.record.ReleaseSeat()
	c.w.WriteHeader(code)
	_, _ = c.w.Write(body) // an error means that the client has disconnected
	return nil
}

// reformat returns the body indented or converted to YAML if the output requires it.
func (c *call) reformat(body []byte) ([]byte, error) {
	switch {
	case c.output.media == codec.YAML:
		return yaml.JSONToYAML(body)
	case c.output.pretty:
		return codec.Indent(body)
	}
	return body, nil
}

// compressed sends a response whose body is the gzip encoding of what write writes.
func (c *call) compressed(code int, write func(io.Writer)) error {
	w := c.compressor(code)
	defer compressors.Put(w)
	write(w)
	_ = w.Close()
	return nil
}

// compressor sends the header of a compressed response and returns the writer for its body. The caller must Close the
// writer and return it to the pool.
func (c *call) compressor(code int) *gzip.Writer {
	header := c.w.Header()
	header.Set("Content-Encoding", "gzip")
	header.Add("Vary", "Accept-Encoding")
	c.w.WriteHeader(code)
	w := compressors.Get().(*gzip.Writer)
	w.Reset(c.w)
	return w
}

// sendList sends a list of shared items in chunks. Only a reformatted list is held in memory as a whole.
func (c *call) sendList(body *codec.ListBody) error {
	if c.output.reformatted() {
		whole := bytes.NewBuffer(make([]byte, 0, body.Size()))
		writeChunks(whole, body)
		return c.send(http.StatusOK, whole.Bytes())
	}
	c.w.Header()["Content-Type"] = []string{c.output.contentType(false)}
	if request.Compresses(c.r, body.Size()) {
		return c.compressed(http.StatusOK, func(w io.Writer) { writeChunks(w, body) })
	}
	c.w.WriteHeader(http.StatusOK)
	writeChunks(c.w, body)
	return nil
}

// writeChunks writes a list in chunks of about chunkSize bytes. It stops at the first error, which means that the
// client has disconnected.
func writeChunks(w io.Writer, body *codec.ListBody) {
	pooled := chunks.Get().(*[]byte)
	defer chunks.Put(pooled)
	chunk := body.AppendHead((*pooled)[:0])
	for i := range body.Len() {
		chunk = body.AppendItem(chunk, i)
		if len(chunk) < chunkSize {
			continue
		}
		if _, err := w.Write(chunk); err != nil {
			return
		}
		chunk = chunk[:0]
	}
	_, _ = w.Write(body.AppendTail(chunk))
	// The pool must not collect buffers that have grown for a very large item.
	if cap(chunk) <= 4*chunkSize {
		*pooled = chunk[:0]
	}
}

// sendStatus responds with a Status in the negotiated media type.
func (c *call) sendStatus(code int, status *metav1.Status) error {
	kind := metav1.Unversioned.WithKind("Status")
	item, err := codec.Item(c.output.media, status)
	if err != nil {
		return err
	}
	audit.LogResponse(c.record, status, func() ([]byte, error) {
		item, err := codec.Item(codec.JSON, status)
		if err != nil {
			return nil, err
		}
		return encoding.Envelope{Media: codec.JSON, Kind: kind}.Body(item), nil
	})
	return c.send(code, encoding.Envelope{Media: c.output.media, Kind: kind}.Body(item))
}

// sendResult responds with the object that a write has stored, and offers its encoding to the watch cache.
func (c *call) sendResult(code int, result *registry.Result) error {
	if result.Stored == nil {
		if status, ok := result.Object.(*metav1.Status); ok && status.Code == 0 {
			status.Code = int32(code)
		}
		return c.sendObject(code, result.Object)
	}
	if c.target.Endpoint.View != nil || c.output.as == table {
		internal, err := c.Registry.DecodeResult(c.r.Context(), c.target, result)
		if err != nil {
			return err
		}
		return c.sendView(code, internal)
	}
	c.output.undecorated = c.output.undecorated || result.Outcome.Undecorated()
	f := c.format()
	item, err := f.Encode(c.r.Context(), result.Stored, result.Revision)
	if err != nil {
		return err
	}
	c.Registry.Offer(c.target, result, f, f.Trim(item, result.Stored, result.Revision))
	c.auditItem(f, func(f encoding.Format) ([]byte, error) {
		return f.Encode(c.r.Context(), result.Stored, result.Revision)
	})
	return c.send(code, f.Envelope().Body(item))
}

// sendView responds with a stored object, after converting it with the endpoint's View if there is one.
func (c *call) sendView(code int, internal runtime.Object) error {
	if view := c.target.Endpoint.View; view != nil {
		var err error
		if internal, err = view.Get(internal); err != nil {
			return err
		}
	}
	return c.sendObject(code, internal)
}

// sendObject responds with an internal object of the endpoint's kind.
func (c *call) sendObject(code int, internal runtime.Object) error {
	if status, ok := internal.(*metav1.Status); ok {
		return c.sendStatus(code, status)
	}
	if c.output.as == table {
		return c.sendRow(code, internal)
	}
	external, err := c.codec().External(internal)
	if err != nil {
		return err
	}
	f := c.format()
	envelope := f.Envelope()
	if c.target.Endpoint.Body != nil && c.output.as == whole {
		envelope.Kind, envelope.Complete = c.target.Endpoint.Kind, false
	}
	item, err := f.Item(external)
	if err != nil {
		return err
	}
	body := envelope.Body(item)
	audit.LogResponse(c.record, nil, func() ([]byte, error) {
		f.Media, envelope.Media = codec.JSON, codec.JSON
		item, err := f.Item(external)
		if err != nil {
			return nil, err
		}
		return envelope.Body(item), nil
	})
	return c.send(code, body)
}
