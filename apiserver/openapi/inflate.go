package openapi

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// inflater is an io.ReadSeeker on the content of a gzip stream, which it never holds completely. Seeking back reads
// the stream again from its beginning.
type inflater struct {
	compressed []byte
	size       int64 // size of the content
	at         int64
	reader     *gzip.Reader // the stream, at offset readerAt of the content; nil before the first Read
	readerAt   int64
}

var _ io.ReadSeeker = &inflater{}

// newInflater returns a reader of the content. It takes the size from the end of the gzip stream, where it is modulo
// 4 GiB.
func newInflater(compressed []byte) *inflater {
	return &inflater{compressed: compressed, size: int64(binary.LittleEndian.Uint32(compressed[len(compressed)-4:]))}
}

// Read implements io.Reader.
func (i *inflater) Read(p []byte) (int, error) {
	if err := i.position(); err != nil {
		return 0, err
	}
	n, err := i.reader.Read(p)
	i.at += int64(n)
	i.readerAt = i.at
	return n, err
}

// position brings the reader to the offset at.
func (i *inflater) position() (err error) {
	if i.reader == nil || i.readerAt > i.at {
		if i.reader, err = gzip.NewReader(bytes.NewReader(i.compressed)); err != nil {
			return fmt.Errorf("decompress: %w", err)
		}
		i.readerAt = 0
	}
	skipped, err := io.CopyN(io.Discard, i.reader, i.at-i.readerAt)
	i.readerAt += skipped
	return err
}

// Seek implements io.Seeker. It does not read from the stream.
func (i *inflater) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += i.at
	case io.SeekEnd:
		offset += i.size
	}
	if offset < 0 {
		return 0, errors.New("seek: negative offset")
	}
	i.at = offset
	return offset, nil
}
