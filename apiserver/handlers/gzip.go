package handlers

import (
	"compress/gzip"
	"encoding/binary"
	"hash/crc32"
	"io"
)

// storedBelow is the size in bytes below which the events of a compressed watch are sent without compression after the
// initial events: compressing each small event of many watches would cost much more CPU time than it saves bytes.
const storedBelow = 16 << 10

const (
	// gzipHeader begins a member without a name and time.
	gzipHeader = "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
	// emptyBlock is a block without bytes. Decompressors return all bytes before it.
	emptyBlock = "\x00\x00\x00\xff\xff"
	// lastBlock is an empty block that ends a member.
	lastBlock = "\x01\x00\x00\xff\xff"
)

// gzipBody is the compressed body of a watch. It is a sequence of gzip members, as in kube-apiserver: flush completes a
// member, so that the client can decompress all events, and an idle watch holds no compressor.
type gzipBody struct {
	w io.Writer
	// member is the compressor of the incomplete member; nil if there is none.
	member *gzip.Writer
	// live is set when the first member, which has the initial events, is complete.
	live bool
}

// Write implements io.Writer. The bytes are readable for the client after flush.
func (b *gzipBody) Write(p []byte) (int, error) {
	if b.live && b.member == nil && len(p) < storedBelow {
		_, err := b.w.Write(storedMember(p))
		return len(p), err
	}
	if b.member == nil {
		b.member = compressors.Get().(*gzip.Writer)
		b.member.Reset(b.w)
	}
	return b.member.Write(p)
}

// flush completes the member. It writes an empty block before the end of the member, because Go's decompressor would
// otherwise wait for the next member before it returns the last bytes. Its errors mean that the client has
// disconnected, which the next Write reports too.
func (b *gzipBody) flush() {
	if b.member == nil {
		return
	}
	_ = b.member.Flush()
	_ = b.member.Close()
	compressors.Put(b.member)
	b.member, b.live = nil, true
}

// storedMember returns a gzip member with the uncompressed bytes of p, which has less than 64 KiB.
func storedMember(p []byte) []byte {
	member := make([]byte, 0, len(gzipHeader)+len(p)+len(emptyBlock)*3+8)
	member = append(member, gzipHeader...)
	member = append(member, 0)
	member = binary.LittleEndian.AppendUint16(member, uint16(len(p)))
	member = binary.LittleEndian.AppendUint16(member, ^uint16(len(p)))
	member = append(member, p...)
	member = append(member, emptyBlock...)
	member = append(member, lastBlock...)
	member = binary.LittleEndian.AppendUint32(member, crc32.ChecksumIEEE(p))
	return binary.LittleEndian.AppendUint32(member, uint32(len(p)))
}
