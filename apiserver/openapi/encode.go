package openapi

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"k8s.io/kube-openapi/pkg/validation/spec"

	"quorate.dev/apiserver/deflate"
)

// members encodes the members of an object, without its braces.
func members(of object) (deflate.Part, error) {
	encoded, err := appendValue(nil, of)
	if err != nil {
		return deflate.Part{}, err
	}
	return deflate.Compress(encoded[1 : len(encoded)-1])
}

// appendValue appends the JSON of a value with sorted keys, like json.Marshal, but may leave <, > and & unescaped.
// Most of a document consists of objects of type map, which json.Marshal encodes several times slower.
func appendValue(to []byte, value any) (_ []byte, err error) {
	switch value := value.(type) {
	case object:
		return appendObject(to, value)
	case string:
		return appendString(to, value)
	case bool:
		return strconv.AppendBool(to, value), nil
	case []object:
		return appendList(to, value)
	case []string:
		return appendList(to, value)
	case []any:
		return appendList(to, value)
	case json.RawMessage:
		return append(to, value...), nil
	case *spec.Schema:
		encoded, err := value.MarshalJSON()
		return append(to, encoded...), wrapEncoding(err)
	}
	encoded, err := json.Marshal(value)
	return append(to, encoded...), wrapEncoding(err)
}

func wrapEncoding(err error) error {
	if err != nil {
		return fmt.Errorf("encode OpenAPI: %w", err)
	}
	return nil
}

func appendObject(to []byte, value object) (_ []byte, err error) {
	to = append(to, '{')
	for i, name := range slices.Sorted(maps.Keys(value)) {
		if i > 0 {
			to = append(to, ',')
		}
		if to, err = appendString(to, name); err != nil {
			return nil, err
		}
		if to, err = appendValue(append(to, ':'), value[name]); err != nil {
			return nil, err
		}
	}
	return append(to, '}'), nil
}

func appendList[T any](to []byte, list []T) (_ []byte, err error) {
	to = append(to, '[')
	for i, value := range list {
		if i > 0 {
			to = append(to, ',')
		}
		if to, err = appendValue(to, value); err != nil {
			return nil, err
		}
	}
	return append(to, ']'), nil
}

func appendString(to []byte, text string) ([]byte, error) {
	for i := range len(text) {
		if c := text[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			encoded, err := json.Marshal(text)
			return append(to, encoded...), wrapEncoding(err)
		}
	}
	return append(append(append(to, '"'), text...), '"'), nil
}
