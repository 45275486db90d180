package openapi

import (
	"archive/zip"
	"bytes"
	"compress/gzip"
	_ "embed"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"

	"quorate.dev/apiserver/lazy"
	"quorate.dev/apiserver/openapi/reduction"
)

//go:embed builtin.zip
var builtIn []byte

// archive has the documents of the built-in kinds, which the generator has written.
type archive struct {
	files map[string]*zip.File
	index archiveIndex

	shared lazy.Value[*template]
}

// template returns the parts that all documents of custom resources share.
func (a *archive) template(idle *lazy.Set) (*template, error) {
	return a.shared.Get(idle, func() (*template, error) {
		t := &template{}
		if err := a.decode("template.json", t); err != nil {
			return nil, err
		}
		return t, t.compress()
	})
}

// archiveIndex is the index of the archive; see the generator.
type archiveIndex struct {
	V2        string              `json:"v2"`
	Places    reduction.Places    `json:"places"`
	V3        map[string]string   `json:"v3"`
	Resources map[string][]string `json:"resources"`
	// noEnumerations is set if the documents of group versions are served without enumerations.
	noEnumerations bool
}

// removeEnumerations marks the archive as served without enumerations, and changes the tags of the documents of
// group versions. Only these documents have enumerations.
func (i *archiveIndex) removeEnumerations() {
	const suffix = " without enumerations"
	i.noEnumerations = true
	i.V2 += suffix
	for path, tag := range i.V3 {
		if isVersionPath(path) {
			i.V3[path] = tag + suffix
		}
	}
}

func openArchive(content []byte) (*archive, error) {
	reader, err := zip.NewReader(bytes.NewReader(content), int64(len(content)))
	if err != nil {
		return nil, fmt.Errorf("open OpenAPI archive: %w", err)
	}
	a := &archive{files: make(map[string]*zip.File, len(reader.File))}
	for _, file := range reader.File {
		a.files[file.Name] = file
	}
	return a, a.decode("index.json", &a.index)
}

func (a *archive) decode(name string, into any) error {
	content, err := a.read(name)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(content, into); err != nil {
		return fmt.Errorf("decode %s of OpenAPI archive: %w", name, err)
	}
	return nil
}

func (a *archive) read(name string) ([]byte, error) {
	compressed, err := a.gzipped(name)
	if err != nil {
		return nil, err
	}
	return decompress(compressed)
}

// gzipped returns a file as a gzip stream. ZIP and gzip share the deflate format, so that the content is not
// compressed again.
func (a *archive) gzipped(name string) ([]byte, error) {
	file, ok := a.files[name]
	if !ok {
		return nil, fmt.Errorf("no %s in OpenAPI archive", name)
	}
	raw, err := file.OpenRaw()
	if err != nil {
		return nil, fmt.Errorf("open %s of OpenAPI archive: %w", name, err)
	}
	stream := make([]byte, 0, file.CompressedSize64+18)
	stream = append(stream, 0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255) // header: deflate, no flags, no time, unknown system
	deflated, err := io.ReadAll(raw)
	if err != nil {
		return nil, fmt.Errorf("read %s of OpenAPI archive: %w", name, err)
	}
	stream = append(stream, deflated...)
	stream = binary.LittleEndian.AppendUint32(stream, file.CRC32)
	return binary.LittleEndian.AppendUint32(stream, uint32(file.UncompressedSize64)), nil
}

func decompress(compressed []byte) ([]byte, error) {
	reader, err := gzip.NewReader(bytes.NewReader(compressed))
	if err != nil {
		return nil, fmt.Errorf("decompress: %w", err)
	}
	content, err := io.ReadAll(reader)
	if err != nil {
		return nil, fmt.Errorf("decompress: %w", err)
	}
	return content, nil
}
