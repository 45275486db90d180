package handlers

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"

	"quorate.dev/apiserver/audit"
	"quorate.dev/apiserver/encoding"
	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/watchcache"
)

// chunkedResponse is a response that is sent in chunks and never held as a whole, unless it is reformatted. It buffers
// up to request.CompressAbove bytes before it sends the header, because compression depends on the size, and because
// until then an error can still be sent as a Status.
type chunkedResponse struct {
	call *call
	code int
	// to is the writer of the body: the compressor or the response; nil until the header is sent.
	to         io.Writer
	compressor *gzip.Writer
	// audited is a copy of the body for the audit event; nil if the body is not recorded.
	audited *bytes.Buffer
}

// audit makes the response part of the audit event if the event's level includes responses.
func (p *chunkedResponse) audit(t encoding.Table, entries []*watchcache.Entry) error {
	if !audit.LogsResponse(p.call.record) {
		return nil
	}
	p.audited = &bytes.Buffer{}
	return p.call.acquireAuditMemory(t.Metadata(), entries)
}

// record appends bytes of the body to the audit event's copy. last is set for the last bytes.
func (p *chunkedResponse) record(body []byte, last bool) {
	if p.audited == nil {
		return
	}
	limit := p.call.record.Audit.MaxObject
	if !p.call.record.Audit.OmitManagedFields && limit > 0 && int64(p.audited.Len()+len(body)) > limit {
		p.audited = nil
		audit.LogTooLarge(p.call.record)
		return
	}
	p.audited.Write(body)
	if last {
		p.call.auditJSON(p.audited.Bytes())
	}
}

// full reports whether the bytes of body, which have not been sent, must be sent now. A body that is reformatted is
// sent only at its end.
func (p *chunkedResponse) full(body []byte) bool {
	if p.to != nil {
		return len(body) >= chunkSize
	}
	return len(body) > request.CompressAbove && !p.call.output.reformatted()
}

// write sends a chunk. It panics with http.ErrAbortHandler if the client has disconnected.
func (p *chunkedResponse) write(body []byte) {
	p.record(body, false)
	p.send(body)
}

func (p *chunkedResponse) send(body []byte) {
	if p.to == nil {
		p.begin(len(body))
	}
	if _, err := p.to.Write(body); err != nil {
		panic(http.ErrAbortHandler)
	}
}

// begin sends the header of a response whose body has at least size bytes.
func (p *chunkedResponse) begin(size int) {
	p.to = p.call.w
	p.call.w.Header()["Content-Type"] = []string{p.call.output.contentType(false)}
	if request.Compresses(p.call.r, size) {
		p.compressor = p.call.compressor(p.code)
		p.to = p.compressor
		return
	}
	p.call.w.WriteHeader(p.code)
}

// end sends the last chunk, or the whole response if no part of it has been sent.
func (p *chunkedResponse) end(body []byte) error {
	p.record(body, true)
	if p.to == nil {
		return p.call.send(p.code, body)
	}
	p.send(body)
	return nil
}

// close returns the compressor to its pool. It must be called exactly once.
func (p *chunkedResponse) close() {
	if p.compressor != nil {
		_ = p.compressor.Close()
		compressors.Put(p.compressor)
	}
}

// abort returns err if no part of the response has been sent, so that err can become a Status. Otherwise it breaks the
// connection, because a response that ends early must not look complete to the client.
func (p *chunkedResponse) abort(err error) error {
	if p.to != nil {
		panic(http.ErrAbortHandler)
	}
	return err
}
