package handlers

import (
	"compress/gzip"
	"io"
	"net/http"

	"quorate.dev/apiserver/request"
)

// pieces is a response that is made a piece at a time and never held as a whole. Its beginning is kept until there are
// more bytes than are sent uncompressed to everybody: until then a failure is still answered with a Status, and until then
// it is not known whether to compress.
type chunkedResponse struct {
	call       *call
	code       int
	to         io.Writer // nil until the beginning is sent
	compressor *gzip.Writer
}

// full reports whether what has been made since the last write is to be written now. What is laid out anew for people
// has to be there as a whole.
func (p *chunkedResponse) full(body []byte) bool {
	if p.to != nil {
		return len(body) >= chunkSize
	}
	return len(body) > request.CompressAbove && !p.call.output.rewritten()
}

// write sends a piece. A client that is gone ends the request.
func (p *chunkedResponse) write(body []byte) {
	if p.to == nil {
		p.begin(len(body))
	}
	if _, err := p.to.Write(body); err != nil {
		panic(http.ErrAbortHandler)
	}
}

// begin sends the head of a response that has at least size bytes.
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

// end sends the last piece, or all if nothing was sent yet.
func (p *chunkedResponse) end(body []byte) error {
	if p.to == nil {
		return p.call.send(p.code, body)
	}
	p.write(body)
	return nil
}

// close gives back what the response was made with.
func (p *chunkedResponse) close() {
	if p.compressor != nil {
		_ = p.compressor.Close()
		compressors.Put(p.compressor)
	}
}

// failed is the error to answer with. A response that has begun cannot be taken back: it is cut off, so that the client
// does not take it for all.
func (p *chunkedResponse) failed(err error) error {
	if p.to != nil {
		panic(http.ErrAbortHandler)
	}
	return err
}
