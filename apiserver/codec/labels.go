package codec

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"sigs.k8s.io/yaml"
)

// protobufMagic begins every object stored as protobuf; a runtime.Unknown message follows.
var protobufMagic = []byte("k8s\x00")

// Field numbers of the messages that contain an object's labels.
const (
	unknownTypeMeta  = 1  // runtime.Unknown.typeMeta
	unknownRaw       = 2  // runtime.Unknown.raw
	objectMetadata   = 1  // the metadata of every kind
	objectMetaLabels = 11 // metav1.ObjectMeta.labels
	mapKey, mapValue = 1, 2
)

// IsProtobuf reports whether an object is stored as protobuf; others are JSON, YAML or CBOR.
func IsProtobuf(stored []byte) bool { return bytes.HasPrefix(stored, protobufMagic) }

// isYAML reports whether stored bytes that are neither protobuf nor CBOR are YAML and not JSON.
func isYAML(stored []byte) bool {
	text := skipSpace(stored)
	return len(text) > 0 && text[0] != '{'
}

// asJSON converts stored bytes from YAML to JSON. It returns JSON unchanged.
func asJSON(stored []byte) ([]byte, error) {
	if !isYAML(stored) {
		return stored, nil
	}
	return yaml.YAMLToJSON(stored)
}

var (
	errMalformed     = errors.New("malformed protobuf")
	errMalformedJSON = errors.New("malformed JSON")
)

// Labels returns the labels of a stored object without decoding the rest of the object, nil if there are none.
func Labels(stored []byte) (labels map[string]string, err error) {
	if IsCBOR(stored) {
		if err := decodeCBORPath(stored, &labels, "metadata", "labels"); err != nil {
			return nil, fmt.Errorf("read labels: %w", err)
		}
		return labels, nil
	}
	if !IsProtobuf(stored) {
		text, err := asJSON(stored)
		if err != nil {
			return nil, fmt.Errorf("read labels: %w", err)
		}
		return jsonLabels(text)
	}
	metadata, err := protobufMetadata(stored)
	if err != nil {
		return nil, err
	}
	return metadataLabels(metadata)
}

// protobufMetadata returns the message with the metadata of an object that is stored as protobuf.
func protobufMetadata(stored []byte) ([]byte, error) {
	raw, err := messageField(stored[len(protobufMagic):], unknownRaw)
	if err != nil {
		return nil, fmt.Errorf("read the envelope: %w", err)
	}
	metadata, err := messageField(raw, objectMetadata)
	if err != nil {
		return nil, fmt.Errorf("read metadata: %w", err)
	}
	return metadata, nil
}

func jsonLabels(stored []byte) (labels map[string]string, err error) {
	if err := jsonMetadata(stored, "labels", &labels); err != nil {
		return nil, fmt.Errorf("read labels: %w", err)
	}
	return labels, nil
}

// jsonMetadata decodes a member of the metadata of an object that is stored as JSON. It leaves value unchanged if the
// object does not have the member.
func jsonMetadata(stored []byte, member string, value any) (err error) {
	object := scanMembers(stored, func(name, metadata []byte) bool {
		if string(name) != "metadata" {
			return true
		}
		scanMembers(metadata, func(name, text []byte) bool {
			if string(name) != member {
				return true
			}
			err = json.Unmarshal(text, value)
			return false
		})
		return false
	})
	if !object {
		return cmp.Or(err, errMalformedJSON)
	}
	return err
}

// messageField returns the bytes of the last length-delimited field with a number, nil if there is none.
func messageField(message []byte, number protowire.Number) ([]byte, error) {
	var found []byte
	for len(message) > 0 {
		field, value, rest, err := nextField(message)
		if err != nil {
			return nil, err
		}
		if field == number {
			found = value
		}
		message = rest
	}
	return found, nil
}

// nextField splits the first field off a message. value is nil unless the field is length-delimited.
func nextField(message []byte) (field protowire.Number, value, rest []byte, err error) {
	field, kind, n := protowire.ConsumeTag(message)
	if n < 0 {
		return 0, nil, nil, errMalformed
	}
	message = message[n:]
	if kind != protowire.BytesType {
		if n = protowire.ConsumeFieldValue(field, kind, message); n < 0 {
			return 0, nil, nil, errMalformed
		}
		return field, nil, message[n:], nil
	}
	value, n = protowire.ConsumeBytes(message)
	if n < 0 {
		return 0, nil, nil, errMalformed
	}
	return field, value, message[n:], nil
}

func metadataLabels(metadata []byte) (map[string]string, error) {
	var labels map[string]string
	for len(metadata) > 0 {
		field, entry, rest, err := nextField(metadata)
		if err != nil {
			return nil, err
		}
		metadata = rest
		if field != objectMetaLabels {
			continue
		}
		key, err := messageField(entry, mapKey)
		if err != nil {
			return nil, err
		}
		value, err := messageField(entry, mapValue)
		if err != nil {
			return nil, err
		}
		if labels == nil {
			labels = make(map[string]string, 4)
		}
		labels[string(key)] = string(value)
	}
	return labels, nil
}
