package codec

import (
	"cmp"
	"encoding/json"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// Field is a field of a message: its name in JSON and its number in protobuf.
type Field struct {
	Name   string
	Number protowire.Number
}

// String returns the string under a path in a stored object without decoding the rest of the object, "" if there is
// none.
func String(stored []byte, path []Field) (string, error) {
	if !IsProtobuf(stored) {
		text, err := asJSON(stored)
		if err != nil {
			return "", fmt.Errorf("read %s: %w", path[len(path)-1].Name, err)
		}
		return jsonString(text, path)
	}
	message, err := messageField(stored[len(protobufMagic):], unknownRaw)
	for i := 0; err == nil && i < len(path); i++ {
		message, err = messageField(message, path[i].Number)
	}
	if err != nil {
		return "", fmt.Errorf("read %s: %w", path[len(path)-1].Name, err)
	}
	return string(message), nil
}

func jsonString(text []byte, path []Field) (found string, err error) {
	object := true
	for i, field := range path {
		var value []byte
		object = object && scanMembers(text, func(name, member []byte) bool {
			if string(name) != field.Name {
				return true
			}
			value = member
			return false
		})
		if value == nil || string(value) == "null" {
			break
		}
		if text = value; i == len(path)-1 {
			err = json.Unmarshal(value, &found)
		}
	}
	if !object || err != nil {
		return "", fmt.Errorf("read %s: %w", path[len(path)-1].Name, cmp.Or(err, errMalformedJSON))
	}
	return found, nil
}
