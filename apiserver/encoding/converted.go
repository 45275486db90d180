package encoding

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"quorate.dev/apiserver/codec"
	"quorate.dev/apiserver/resource"
)

// Remote reports whether a conversion webhook converts stored bytes before they can be encoded in this format.
func (f Format) Remote(stored []byte) bool { return f.Resource.Version.Codec.Remote(stored) }

// Converted returns the format in which the watch cache keeps objects that a conversion webhook has converted. Derive
// makes the items of all other formats of the version from items in this format.
func Converted(m resource.Match) Format { return Format{Resource: m, Media: codec.JSON} }

// IsConverted reports whether items in this format are equal to items in the format Converted.
func (f Format) IsConverted() bool { return f.Media == codec.JSON && !f.metadataOnly() }

// Source is a stored object to encode.
type Source struct {
	Stored   []byte
	Revision int64
}

// EncodeAll returns the items of many objects, which a conversion webhook converts in few calls. With an error, it
// returns the items of the objects before the first one that failed.
func (f Format) EncodeAll(ctx context.Context, sources []Source) ([][]byte, error) {
	stored := make([][]byte, len(sources))
	for i, source := range sources {
		stored[i] = source.Stored
	}
	objects, failure := f.Resource.Version.Codec.LoadAll(ctx, stored)
	items := make([][]byte, 0, len(objects))
	for i, object := range objects {
		item, err := f.itemAt(object, sources[i].Revision)
		if err != nil {
			return items, err
		}
		items = append(items, item)
	}
	return items, failure
}

// DecodeConverted decodes an item in the format Converted.
func DecodeConverted(item []byte) (*unstructured.Unstructured, error) {
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(item); err != nil {
		return nil, fmt.Errorf("decode a converted object: %w", err)
	}
	return object, nil
}

// Derive returns the item in this format for an item in the format Converted. The object gets the given revision.
func (f Format) Derive(converted []byte, revision int64) ([]byte, error) {
	object, err := DecodeConverted(converted)
	if err != nil {
		return nil, err
	}
	return f.itemAt(object, revision)
}
