// Package deflate puts gzip streams together from parts, each of which is compressed once. A large document of which a
// small part has changed is then compressed again at the cost of that part, and never exists uncompressed.
package deflate

import (
	"bytes"
	"compress/flate"
	"fmt"
	"hash/crc32"
	"io"
	"sync"
)

// Part is compressed content.
type Part struct {
	blocks []byte // complete deflate blocks up to a byte boundary; none is marked as the last of a stream
	size   int64  // of the content
	sum    uint32 // CRC-32 of the content
}

// writers are compressors, which are larger than most parts.
var writers = sync.Pool{New: func() any {
	writer, err := flate.NewWriter(nil, flate.BestSpeed)
	if err != nil {
		panic(err) // the level is valid
	}
	return writer
}}

// Compress compresses content.
func Compress(content []byte) (Part, error) {
	writer, _ := writers.Get().(*flate.Writer)
	defer writers.Put(writer)
	var blocks bytes.Buffer
	writer.Reset(&blocks)
	if _, err := writer.Write(content); err != nil {
		return Part{}, fmt.Errorf("compress: %w", err)
	}
	if err := writer.Flush(); err != nil {
		return Part{}, fmt.Errorf("compress: %w", err)
	}
	return Part{blocks: bytes.Clone(blocks.Bytes()), size: int64(len(content)), sum: crc32.ChecksumIEEE(content)}, nil
}

// Content decompresses a part.
func (p Part) Content() ([]byte, error) {
	content := make([]byte, p.size)
	reader := flate.NewReader(bytes.NewReader(p.blocks)) // lacks the last block of a stream, and is not read to its end
	if _, err := io.ReadFull(reader, content); err != nil {
		return nil, fmt.Errorf("decompress: %w", err)
	}
	return content, nil
}

var (
	header = []byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255} // deflate, no flags, no time, unknown system
	end    = []byte{1, 0, 0, 0xff, 0xff}                  // an empty stored block, the last
)

// Join returns the gzip stream of the contents one after the other.
func Join(parts ...Part) []byte {
	length := len(header) + len(end) + 8
	for _, p := range parts {
		length += len(p.blocks)
	}
	stream := append(make([]byte, 0, length), header...)
	var sum uint32
	var size int64
	for _, p := range parts {
		stream = append(stream, p.blocks...)
		sum = combine(sum, p.sum, p.size)
		size += p.size
	}
	stream = append(stream, end...)
	for _, trailer := range []uint32{sum, uint32(size)} {
		stream = append(stream, byte(trailer), byte(trailer>>8), byte(trailer>>16), byte(trailer>>24))
	}
	return stream
}

// Size returns the length of the contents together.
func Size(parts ...Part) int64 {
	var size int64
	for _, p := range parts {
		size += p.size
	}
	return size
}

// combine returns the CRC-32 of two contents one after the other, given the sums of both and the length of the second.
// The sum of the first is multiplied by x^(8*length) modulo the polynomial, as in zlib's crc32_combine.
func combine(first, second uint32, length int64) uint32 {
	power := uint32(1) << 31 // x^0; the coefficient of x^0 is the highest bit
	square := power >> 8     // x^8
	for ; length > 0; length >>= 1 {
		if length&1 != 0 {
			power = multiply(power, square)
		}
		square = multiply(square, square)
	}
	return multiply(first, power) ^ second
}

// multiply multiplies two polynomials modulo that of CRC-32.
func multiply(a, b uint32) (product uint32) {
	for ; a != 0; a <<= 1 {
		if a>>31 != 0 {
			product ^= b
		}
		if b&1 != 0 {
			b = b>>1 ^ crc32.IEEE
		} else {
			b >>= 1
		}
	}
	return product
}
