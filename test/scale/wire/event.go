package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"
)

// Annotations that ParseMetadata recognizes.
const (
	// Sent is the annotation with the time at which an object was sent, in nanoseconds since 1970.
	Sent = "scale.quorate.dev/sent"
	// initialEventsEnd is the annotation of the bookmark after the initial events of a watch.
	initialEventsEnd = "k8s.io/initial-events-end"
)

var (
	magic        = []byte("k8s\x00") // opens an encoded object; runtime.Unknown follows
	errTruncated = errors.New("a protobuf message is truncated")
)

// Frames splits the body of a watch into its frames. The zero value is ready for use.
type Frames struct {
	rest []byte // the beginning of a frame whose end has not been received
}

// Split calls each with every frame that a part of the body completes.
func (f *Frames) Split(part []byte, each func(frame []byte) error) error {
	body := part
	if len(f.rest) > 0 {
		body = append(f.rest, part...)
	}
	for len(body) >= 4 {
		size := int(binary.BigEndian.Uint32(body))
		if len(body) < 4+size {
			break
		}
		if err := each(body[4 : 4+size]); err != nil {
			return err
		}
		body = body[4+size:]
	}
	f.rest = nil
	if len(body) > 0 {
		f.rest = bytes.Clone(body)
	}
	return nil
}

// ParseEvent returns the type of a watch event, and the encoded object without its envelope.
func ParseEvent(frame []byte) (kind string, object []byte, err error) {
	err = fields(frame, func(number protowire.Number, value []byte) error {
		switch number {
		case 1:
			kind = eventType(value)
		case 2: // runtime.RawExtension
			return fields(value, func(number protowire.Number, value []byte) (err error) {
				if number == 1 {
					object, err = ParseObject(value)
				}
				return err
			})
		}
		return nil
	})
	return kind, object, err
}

// eventType returns the type without an allocation.
func eventType(value []byte) string {
	for _, known := range [...]string{"ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"} {
		if string(value) == known {
			return known
		}
	}
	return string(value)
}

// ParseObject returns an encoded object without its envelope.
func ParseObject(encoded []byte) (object []byte, err error) {
	unknown, ok := bytes.CutPrefix(encoded, magic)
	if !ok {
		return nil, fmt.Errorf("parse %d bytes: not an object in protobuf", len(encoded))
	}
	err = fields(unknown, func(number protowire.Number, value []byte) error {
		if number == 2 {
			object = value
		}
		return nil
	})
	return object, err
}

// Metadata holds the fields of an object's metadata that hollow nodes need. Its slices are parts of the object.
type Metadata struct {
	Name, Namespace, UID []byte
	Revision             uint64
	Deleting             bool  // a deletion timestamp is set
	Sent                 int64 // value of the annotation Sent, or 0
	InitialEventsEnd     bool
}

// ParseMetadata returns the metadata of an object.
func ParseMetadata(object []byte) (m Metadata, err error) {
	encoded, err := Field(object, 1)
	if err != nil {
		return m, err
	}
	err = fields(encoded, func(number protowire.Number, value []byte) (err error) {
		switch number {
		case 1:
			m.Name = value
		case 3:
			m.Namespace = value
		case 5:
			m.UID = value
		case 6:
			m.Revision, err = strconv.ParseUint(string(value), 10, 64)
		case 9:
			m.Deleting = true
		case 12:
			err = m.annotate(value)
		}
		return err
	})
	return m, err
}

// annotate reads one annotation.
func (m *Metadata) annotate(entry []byte) error {
	var key, text []byte
	err := fields(entry, func(number protowire.Number, value []byte) error {
		if number == 1 {
			key = value
		} else {
			text = value
		}
		return nil
	})
	if err != nil {
		return err
	}
	switch string(key) {
	case Sent:
		m.Sent, err = strconv.ParseInt(string(text), 10, 64)
	case initialEventsEnd:
		m.InitialEventsEnd = true
	}
	return err
}

// Field returns a field of a message, or the field of a field. It returns nil if there is no such field.
func Field(message []byte, path ...protowire.Number) (found []byte, err error) {
	found = message
	for _, wanted := range path {
		message, found = found, nil
		err = fields(message, func(number protowire.Number, value []byte) error {
			if number == wanted {
				found = value
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

// fields calls each with the fields of a message that are strings, bytes or messages, and skips the others.
func fields(message []byte, each func(number protowire.Number, value []byte) error) error {
	for len(message) > 0 {
		number, kind, size := protowire.ConsumeTag(message)
		if size < 0 {
			return errTruncated
		}
		message = message[size:]
		if kind != protowire.BytesType {
			if size = protowire.ConsumeFieldValue(number, kind, message); size < 0 {
				return errTruncated
			}
			message = message[size:]
			continue
		}
		value, size := protowire.ConsumeBytes(message)
		if size < 0 {
			return errTruncated
		}
		if err := each(number, value); err != nil {
			return err
		}
		message = message[size:]
	}
	return nil
}
