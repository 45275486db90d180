// Package schema has the structured-merge-diff schema of the built-in kinds: list keys, sets and atomic fields. The
// schema is generated from Kubernetes' OpenAPI documents, embedded compressed, and decoded on first use.
package schema

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"encoding/gob"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

//go:generate go run ./generate

//go:embed schema.gob.gz
var embedded []byte

// unstable has the types used only by alpha and beta versions.
//
//go:embed unstable.gob.gz
var unstable []byte

// Loader decodes the schema on first use. It is safe for concurrent use.
type Loader struct {
	parser func() (*typed.Parser, error)
}

// NewLoader returns a loader for the schema of stable versions.
func NewLoader() *Loader {
	return &Loader{parser: sync.OnceValues(func() (*typed.Parser, error) { return decode(embedded) })}
}

// NewLoaderForAllVersions returns a loader for the schema of all versions.
func NewLoaderForAllVersions() *Loader {
	return &Loader{parser: sync.OnceValues(func() (*typed.Parser, error) { return decode(embedded, unstable) })}
}

// For returns a function that returns the type converter for the kinds of a scheme.
func (l *Loader) For(scheme *runtime.Scheme) func() (managedfields.TypeConverter, error) {
	return sync.OnceValues(func() (managedfields.TypeConverter, error) {
		parser, err := l.parser()
		if err != nil {
			return nil, err
		}
		return &converter{managedfields.NewSchemeTypeConverter(scheme, parser), scheme, parser}, nil
	})
}

// decode decodes and merges files with schemas, which may refer to each other.
func decode(files ...[]byte) (*typed.Parser, error) {
	parser := &typed.Parser{}
	for _, file := range files {
		reader, err := gzip.NewReader(bytes.NewReader(file))
		if err != nil {
			return nil, fmt.Errorf("decompress the schema of built-in kinds: %w", err)
		}
		var part schema.Schema
		if err := gob.NewDecoder(reader).Decode(&part); err != nil {
			return nil, fmt.Errorf("decode the schema of built-in kinds: %w", err)
		}
		parser.Schema.Types = append(parser.Schema.Types, part.Types...)
	}
	return parser, nil
}
