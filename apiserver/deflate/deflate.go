// Package deflate assembles gzip streams from parts, each of which is compressed once. When a small part of a large
// document changes, only that part is compressed again, and the document is never in memory uncompressed.
package deflate

import (
	"bytes"
	"compress/flate"
	"fmt"
	"hash/crc32"
	"io"
	"sync"
)

// Part is content in compressed form.
type Part struct {
	// blocks are complete deflate blocks that end at a byte boundary. None is marked as the last block of a stream.
	blocks []byte
	// size is the number of bytes of the content.
	size int64
	// sum is the CRC-32 of the content.
	sum uint32
}

// writers is a pool of compressors, because a compressor is larger than most parts.
var writers = sync.Pool{New: func() any {
	writer, err := flate.NewWriter(nil, flate.BestSpeed)
	if err != nil {
		// The level is valid.
		panic(err)
	}
	return writer
}}

// Compress returns content as a Part.
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
	// The blocks lack the last block of a stream, so that the reader must not be read to its end.
	reader := flate.NewReader(bytes.NewReader(p.blocks))
	if _, err := io.ReadFull(reader, content); err != nil {
		return nil, fmt.Errorf("decompress: %w", err)
	}
	return content, nil
}

var (
	// The bytes mean: deflate, no flags, no time, unknown system.
	header = []byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255}
	// The last block of a stream is an empty stored block.
	end = []byte{1, 0, 0, 0xff, 0xff}
)

// Join returns the gzip stream of the concatenated contents.
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

// Size returns the sum of the sizes of the contents.
func Size(parts ...Part) int64 {
	var size int64
	for _, p := range parts {
		size += p.size
	}
	return size
}

// combine returns the CRC-32 of two concatenated contents from their sums and the length of the second content. It
// multiplies the sum of the first content by x^(8*length) modulo the polynomial, as zlib's crc32_combine does.
func combine(first, second uint32, length int64) uint32 {
	// power is x^0. The coefficient of x^0 is the highest bit.
	power := uint32(1) << 31
	square := power >> 8 // x^8
	for ; length > 0; length >>= 1 {
		if length&1 != 0 {
			power = multiply(power, square)
		}
		square = multiply(square, square)
	}
	return multiply(first, power) ^ second
}

// multiply multiplies two polynomials modulo the polynomial of CRC-32.
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
