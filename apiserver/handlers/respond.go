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

	"quorate.dev/apiserver/codec"
	"quorate.dev/apiserver/encoding"
	"quorate.dev/apiserver/registry"
	"quorate.dev/apiserver/request"
)

// chunkSize is how much of a list is put together before it is handed to the connection: few large writes cost
// much less than many small ones.
const chunkSize = 64 << 10

// pools recycle what large responses are made with; a package-wide pool holds no state that could be observed.
var (
	chunks      = sync.Pool{New: func() any { b := make([]byte, 0, chunkSize+chunkSize/2); return &b }}
	compressors = sync.Pool{New: func() any { w, _ := gzip.NewWriterLevel(nil, gzip.BestSpeed); return w }}
)

// send writes a complete body.
func (c *call) send(code int, body []byte) error {
	if c.output.reformatted() {
		if err := c.acquireMemory(int64(len(body)) * c.output.reformatFactor()); err != nil {
			return err
		}
	}
	body, err := c.present(body)
	if err != nil {
		return err
	}
	c.shrinkMemory(int64(len(body)))
	header := c.w.Header()
	header["Content-Type"] = []string{c.output.contentType(false)}
	if request.Compresses(c.r, len(body)) {
		return c.compressed(code, func(w io.Writer) { _, _ = w.Write(body) })
	}
	c.w.WriteHeader(code)
	_, _ = c.w.Write(body) // the client is gone if this fails
	return nil
}

// present lays a JSON body out for people, or turns it into YAML.
func (c *call) present(body []byte) ([]byte, error) {
	switch {
	case c.output.media == codec.YAML:
		return yaml.JSONToYAML(body)
	case c.output.pretty:
		return codec.Indent(body)
	}
	return body, nil
}

// compressed sends what write produces as gzip.
func (c *call) compressed(code int, write func(io.Writer)) error {
	w := c.compressor(code)
	defer compressors.Put(w)
	write(w)
	_ = w.Close()
	return nil
}

// compressor sends the head of a compressed response and returns what to write the body to. Who has it closes it and puts
// it back.
func (c *call) compressor(code int) *gzip.Writer {
	header := c.w.Header()
	header.Set("Content-Encoding", "gzip")
	header.Add("Vary", "Accept-Encoding")
	c.w.WriteHeader(code)
	w := compressors.Get().(*gzip.Writer)
	w.Reset(c.w)
	return w
}

// sendList writes a list from shared pieces, without ever having it in one piece.
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

// writeChunks stops at the first failure: the client is gone.
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
	if cap(chunk) <= 4*chunkSize {
		*pooled = chunk[:0]
	}
}

// sendStatus answers with a Status, however the client wanted to see the object.
func (c *call) sendStatus(code int, status *metav1.Status) error {
	kind := metav1.Unversioned.WithKind("Status")
	item, err := codec.Item(c.output.media, status)
	if err != nil {
		return err
	}
	return c.send(code, encoding.Envelope{Media: c.output.media, Kind: kind}.Body(item))
}

// sendResult responds with the object that a write left in storage, and offers its encoding to the watch cache.
func (c *call) sendResult(code int, result *registry.Result) error {
	if result.Stored == nil {
		if status, ok := result.Object.(*metav1.Status); ok && status.Code == 0 {
			status.Code = int32(code)
		}
		return c.sendObject(code, result.Object)
	}
	if c.target.Endpoint.View != nil || c.output.as == table {
		internal, err := c.Registry.Stored(c.target, result)
		if err != nil {
			return err
		}
		return c.sendView(code, internal)
	}
	c.output.undecorated = c.output.undecorated || result.Undecorated
	f := c.format()
	item, err := f.Encode(result.Stored, result.Revision)
	if err != nil {
		return err
	}
	c.Registry.Offer(c.target, result, f, f.Trim(item, result.Stored, result.Revision))
	return c.send(code, f.Envelope().Body(item))
}

// sendView answers with a stored object, through the endpoint's view if it has one.
func (c *call) sendView(code int, internal runtime.Object) error {
	if view := c.target.Endpoint.View; view != nil {
		var err error
		if internal, err = view.Get(internal); err != nil {
			return err
		}
	}
	return c.sendObject(code, internal)
}

// sendObject answers with a internal version object of the endpoint's kind.
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
	return c.send(code, envelope.Body(item))
}
