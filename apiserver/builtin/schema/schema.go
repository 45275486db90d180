// Package schema holds the structured-merge-diff schema of the built-in kinds: which fields are keys, sets or
// atoms. It is generated from Kubernetes' OpenAPI documents, embedded compressed and decoded on first use.
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
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

//go:generate go run ./generate

//go:embed schema.gob.gz
var embedded []byte

// Loader decodes the schema once, on first use. It is safe for concurrent use.
type Loader struct {
	parser func() (*typed.Parser, error)
}

// NewLoader returns a loader that has decoded nothing yet.
func NewLoader() *Loader {
	return &Loader{parser: sync.OnceValues(decode)}
}

// For returns a function that returns the converter to typed values for the kinds of a scheme.
func (l *Loader) For(scheme *runtime.Scheme) func() (managedfields.TypeConverter, error) {
	return sync.OnceValues(func() (managedfields.TypeConverter, error) {
		parser, err := l.parser()
		if err != nil {
			return nil, err
		}
		return managedfields.NewSchemeTypeConverter(scheme, parser), nil
	})
}

func decode() (*typed.Parser, error) {
	reader, err := gzip.NewReader(bytes.NewReader(embedded))
	if err != nil {
		return nil, fmt.Errorf("decompress the schema of built-in kinds: %w", err)
	}
	parser := &typed.Parser{}
	if err := gob.NewDecoder(reader).Decode(&parser.Schema); err != nil {
		return nil, fmt.Errorf("decode the schema of built-in kinds: %w", err)
	}
	return parser, nil
}
