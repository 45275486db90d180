package codec

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

// maxMessageNesting is the maximum depth of nested messages in a protobuf body. Upstream's generated decoders, and
// its validation, recurse without a limit: a CustomResourceDefinition of 500 KB overflows the stack, which ends the
// process. Definitions that contain pod templates have 27 levels of JSON and half as many of protobuf. One level of
// protobuf becomes at most two of JSON, so that a body within the limit stays far below the limit of JSON decoders,
// 10,000.
const maxMessageNesting = 500

// maxJSONNesting is the maximum depth of JSON and YAML for kinds whose type contains itself. The decoders' limit of
// 10,000 protects the stack but not the CPU: each schema scans the schemas inside it again, so that 230 KB with 9,000
// levels take 40 s of CPU for every write and read. It is twice maxMessageNesting, so that both admit the same objects.
const maxJSONNesting = 2 * maxMessageNesting

// maxEmbeddedNesting is the maximum depth of JSON that is stored as bytes: managed fields, and the data of a
// ControllerRevision. Generated protobuf decoders do not parse such bytes. Every response and audit event adds a few
// enclosing levels, and JSON decoders reject more than 10,000 levels.
const maxEmbeddedNesting = 9_900

// maxValues is the maximum number of objects and nulls in a JSON body, and of fields in the checked messages of a
// protobuf body. Each value can become a Go struct of some hundred bytes in two versions: 3 MB of empty containers take
// gigabytes of memory.
const (
	maxValues = 200_000
	maxFields = 500_000
)

var (
	errValues         = fmt.Errorf("the body has more than %d objects and nulls", maxValues)
	errFields         = fmt.Errorf("the body has more than %d fields", maxFields)
	errMessageNesting = fmt.Errorf("messages are nested more than %d deep", maxMessageNesting)
	errJSONNesting    = fmt.Errorf("objects and arrays are nested more than %d deep", maxJSONNesting)
	errEmbedded       = fmt.Errorf("JSON objects and arrays are nested more than %d deep", maxEmbeddedNesting)
	errMapEntry       = errors.New("an entry of a map extends beyond its end")
)

// Guard rejects request bodies that are cheap to send and very expensive to decode:
//
//   - Bodies of kinds whose type contains itself, if they are nested too deeply.
//   - Bodies that contain JSON as bytes, such as managed fields, if the JSON is nested too deeply.
//   - Bodies with quantities that have very many digits, also when their exponents are written out.
//   - Protobuf map entries whose length exceeds their content. Generated decoders read the rest from the bytes after
//     the entry, and then decode these bytes again, so that the cost is out of proportion to the size of the body.
//
// A Guard parses a message exactly as the generated decoders do, so that both agree on where each message begins and
// ends. It does not allocate per message. Bodies that are malformed in other ways pass, and fail to decode.
type Guard struct {
	scheme *runtime.Scheme

	lock       sync.RWMutex
	layouts    map[reflect.Type]*layout       // a nil layout has nothing to check
	quantities map[reflect.Type]*quantityPath // a nil path means that values of the type have no quantities
}

// NewGuard returns a guard for bodies that are decoded into the types of a scheme.
func NewGuard(scheme *runtime.Scheme) *Guard {
	return &Guard{scheme: scheme, layouts: map[reflect.Type]*layout{}, quantities: map[reflect.Type]*quantityPath{}}
}

// Check returns an error if a body must not be decoded. kind is the default for a protobuf body without a kind.
func (g *Guard) Check(body []byte, mediaType string, kind schema.GroupVersionKind) error {
	if mediaType == runtime.ContentTypeProtobuf {
		return g.checkProtobuf(body, kind)
	}
	if mediaType == runtime.ContentTypeCBOR {
		return g.checkCBOR(body, kind)
	}
	if mediaType == runtime.ContentTypeJSON && len(body) > maxEmbeddedNesting &&
		jsonNestsDeeper(body, maxEmbeddedNesting) {
		return errEmbedded
	}
	if mediaType == runtime.ContentTypeJSON && len(body) > maxValues && hasMoreValues(body, maxValues) {
		return errValues
	}
	nests, quantities := g.layoutOf(kind).nests(), g.pathsOf(kind)
	if quantities != nil && !mayHaveLongQuantities(body) &&
		(mediaType != runtime.ContentTypeYAML || !bytes.ContainsAny(body, yamlEscapes)) {
		quantities = nil
	}
	if !nests && quantities == nil {
		return nil
	}
	if mediaType == runtime.ContentTypeYAML {
		converted, err := yaml.YAMLToJSON(body)
		if err != nil {
			return nil
		}
		body = converted
	}
	if nests && jsonNestsDeeper(body, maxJSONNesting) {
		return errJSONNesting
	}
	if quantities == nil {
		return nil
	}
	return quantities.checkQuantities(body)
}

// yamlEscapes has the characters that begin escapes and tags in YAML. A YAML text with one of these can contain a
// number that is not visible in its bytes.
const yamlEscapes = `\!`

func (g *Guard) checkProtobuf(body []byte, kind schema.GroupVersionKind) error {
	body, ok := bytes.CutPrefix(body, protobufMagic)
	if !ok {
		return nil
	}
	declared, message, ok := openEnvelope(body)
	if !ok {
		return nil
	}
	if declared.Kind == "" {
		declared.Kind = kind.Kind
	}
	if declared.Version == "" && kind.Version != "" {
		declared.Group, declared.Version = kind.Group, kind.Version
	}
	return g.layoutOf(declared).check(message, maxMessageNesting, &counts{})
}

// openEnvelope returns the kind and the message of a runtime.Unknown. Of repeated fields, it uses the last one.
func openEnvelope(body []byte) (kind schema.GroupVersionKind, message []byte, ok bool) {
	var apiVersion, name string
	ok = eachDelimited(body, func(number int32, content []byte) bool {
		switch number {
		case unknownTypeMeta:
			return eachDelimited(content, func(number int32, content []byte) bool {
				switch number {
				case 1:
					apiVersion = string(content)
				case 2:
					name = string(content)
				}
				return true
			})
		case unknownRaw:
			message = content
		}
		return true
	})
	return schema.FromAPIVersionAndKind(apiVersion, name), message, ok
}

// eachDelimited calls handle with the content of every length-delimited field. It reports whether the message is valid
// and handle always returned true.
func eachDelimited(message []byte, handle func(number int32, content []byte) bool) bool {
	for len(message) > 0 {
		tag, content, ok := varint(message)
		if !ok {
			return false
		}
		if tag&7 != uint64(protowire.BytesType) {
			if message, ok = skip(message); !ok {
				return false
			}
			continue
		}
		if content, message, ok = delimited(content); !ok || !handle(int32(tag>>3), content) {
			return false
		}
	}
	return true
}

// layoutOf returns the layout of a kind's type, or nil if the type has nothing to check.
func (g *Guard) layoutOf(kind schema.GroupVersionKind) *layout {
	of, ok := g.scheme.AllKnownTypes()[kind]
	if !ok {
		return nil
	}
	g.lock.RLock()
	known, ok := g.layouts[of]
	g.lock.RUnlock()
	if ok {
		return known
	}
	g.lock.Lock()
	defer g.lock.Unlock()
	return g.analyze(of)
}

// pathsOf returns the fields in which values of a kind have quantities, or nil if they have no quantities.
func (g *Guard) pathsOf(kind schema.GroupVersionKind) *quantityPath {
	of, ok := g.scheme.AllKnownTypes()[kind]
	if !ok {
		return nil
	}
	g.lock.RLock()
	known, ok := g.quantities[of]
	g.lock.RUnlock()
	if ok {
		return known
	}
	g.lock.Lock()
	defer g.lock.Unlock()
	return g.quantitiesOf(of)
}

// counts has the number of fields and the long quantities that a check has found in a protobuf body.
type counts struct {
	fields     int
	quantities longQuantities
}

// layout describes the fields of a protobuf message that must be checked: maps, and messages that contain maps or
// messages of their own type. It is immutable once analyze has returned.
type layout struct {
	fields   []field // indexed by field number
	contains bool    // set if the type is, or contains, a type that contains itself
	open     bool    // set while analyze builds the layout
	embedded bool    // set if field 1 is JSON
	quantity bool    // set if field 1 is a quantity
}

// nests reports whether objects of the type can be nested without limit.
func (l *layout) nests() bool { return l != nil && l.contains }

type field struct {
	message *layout  // layout of the field's messages, or of the map's values; nil: nothing to check
	entry   bool     // the field is a map, encoded as messages with a key and a value
	forms   [3]uint8 // wire types that generated decoders assume for fields 1 and 2 of an entry
}

// of returns the field with a number, and reports whether the field must be checked.
func (l *layout) of(number int32) (field, bool) {
	if int(number) >= len(l.fields) || number < 0 {
		return field{}, false
	}
	f := l.fields[number]
	return f, f.entry || f.message != nil
}

// analyze returns the layout of a type. A type whose layout is still open contains itself. The caller holds the lock.
func (g *Guard) analyze(of reflect.Type) *layout {
	if known, ok := g.layouts[of]; ok {
		if known != nil && known.open {
			known.contains = true
		}
		return known
	}
	if of == reflect.TypeFor[metav1.FieldsV1]() || of == reflect.TypeFor[runtime.RawExtension]() {
		g.layouts[of] = &layout{embedded: true}
		return g.layouts[of]
	}
	if of == reflect.TypeFor[resource.Quantity]() {
		g.layouts[of] = &layout{quantity: true}
		return g.layouts[of]
	}
	l := &layout{open: true}
	g.layouts[of] = l
	for i := range of.NumField() {
		number, ok := fieldNumber(of.Field(i).Tag.Get("protobuf"))
		if !ok {
			continue
		}
		f := field{}
		element := of.Field(i).Type
		if element.Kind() == reflect.Map {
			f.entry, f.forms = true, [3]uint8{1: formOf(element.Key()), 2: formOf(element.Elem())}
			element = element.Elem()
		}
		if element = message(element); element != nil {
			f.message = g.analyze(element)
		}
		if !f.entry && f.message == nil {
			continue
		}
		for len(l.fields) <= number {
			l.fields = append(l.fields, field{})
		}
		l.fields[number] = f
	}
	return g.keep(of, l)
}

// keep completes a layout. It returns nil if there is nothing to check.
func (g *Guard) keep(of reflect.Type, l *layout) *layout {
	l.open = false
	if len(l.fields) == 0 {
		g.layouts[of] = nil
		return nil
	}
	for _, f := range l.fields {
		l.contains = l.contains || f.message.nests()
	}
	return l
}

// message returns the type of the messages in a field, nil for other fields.
func message(of reflect.Type) reflect.Type {
	for of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice {
		of = of.Elem()
	}
	if of.Kind() != reflect.Struct {
		return nil
	}
	return of
}

// fieldNumber parses the tag of a field: "bytes,3,opt,name=metadata".
func fieldNumber(tag string) (int, bool) {
	_, rest, _ := strings.Cut(tag, ",")
	text, _, _ := strings.Cut(rest, ",")
	number, err := strconv.Atoi(text)
	return number, err == nil
}

// formOf returns the wire type of a map's keys or values.
func formOf(of reflect.Type) uint8 {
	switch of.Kind() {
	case reflect.Bool, reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint32, reflect.Uint64:
		return uint8(protowire.VarintType)
	}
	return uint8(protowire.BytesType)
}

// check checks a message that may contain at most the given number of levels of messages, and counts its fields and
// quantities.
func (l *layout) check(message []byte, levels int, counted *counts) (err error) {
	if l == nil {
		return nil
	}
	if levels == 0 {
		return errMessageNesting
	}
	if l.embedded {
		return checkEmbedded(message)
	}
	if l.quantity {
		return checkQuantity(message, counted)
	}
	for len(message) > 0 {
		if counted.fields++; counted.fields > maxFields {
			return errFields
		}
		tag, content, ok := varint(message)
		if !ok {
			return nil
		}
		f, found := l.of(int32(tag >> 3))
		if !found || tag&7 != uint64(protowire.BytesType) {
			if message, ok = skip(message); !ok {
				return nil
			}
			continue
		}
		if content, message, ok = delimited(content); !ok {
			return nil
		}
		if f.entry {
			err = f.checkEntry(content, levels-1, counted)
		} else {
			err = f.message.check(content, levels-1, counted)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// checkEmbedded checks a message whose field 1 is JSON.
func checkEmbedded(message []byte) (err error) {
	eachDelimited(message, func(number int32, content []byte) bool {
		if number == 1 && jsonNestsDeeper(content, maxEmbeddedNesting) {
			err = errEmbedded
		}
		return err == nil
	})
	return err
}

// checkQuantity counts a quantity. Decoders parse each occurrence of its only field.
func checkQuantity(message []byte, counted *counts) (err error) {
	eachDelimited(message, func(number int32, content []byte) bool {
		if number == 1 {
			err = counted.quantities.add(content)
		}
		return err == nil
	})
	return err
}

// checkEntry checks an entry of a map. Like generated decoders, it ignores the wire types of keys and values.
func (f field) checkEntry(entry []byte, levels int, counted *counts) error {
	for len(entry) > 0 {
		tag, content, ok := varint(entry)
		if !ok {
			return errMapEntry
		}
		number := int32(tag >> 3)
		switch {
		case number != 1 && number != 2:
			entry, ok = skip(entry)
		case f.forms[number] == uint8(protowire.VarintType):
			_, entry, ok = varint(content)
		default:
			if content, entry, ok = delimited(content); ok && number == 2 {
				if err := f.message.check(content, levels, counted); err != nil {
					return err
				}
			}
		}
		if !ok {
			return errMapEntry
		}
	}
	return nil
}

// varint reads a number of up to ten bytes. Like generated decoders, it ignores bits beyond 64.
func varint(message []byte) (number uint64, rest []byte, ok bool) {
	for i := 0; i < len(message) && i < 10; i++ {
		number |= uint64(message[i]&0x7f) << (7 * i)
		if message[i] < 0x80 {
			return number, message[i+1:], true
		}
	}
	return 0, nil, false
}

// delimited reads a length and that many bytes.
func delimited(message []byte) (content, rest []byte, ok bool) {
	length, rest, ok := varint(message)
	if !ok || length > math.MaxInt || int(length) > len(rest) {
		return nil, nil, false
	}
	return rest[:length], rest[length:], true
}

// skip skips a field as generated decoders skip unknown ones: a group including its contents.
func skip(message []byte) (rest []byte, ok bool) {
	for depth := 0; ; {
		var tag uint64
		if tag, message, ok = varint(message); !ok {
			return nil, false
		}
		switch protowire.Type(tag & 7) {
		case protowire.VarintType:
			_, message, ok = varint(message)
		case protowire.Fixed64Type:
			message, ok = after(message, 8)
		case protowire.BytesType:
			_, message, ok = delimited(message)
		case protowire.StartGroupType:
			depth++
		case protowire.EndGroupType:
			depth--
		case protowire.Fixed32Type:
			message, ok = after(message, 4)
		default:
			return nil, false
		}
		if !ok || depth < 0 {
			return nil, false
		}
		if depth == 0 {
			return message, true
		}
	}
}

func after(message []byte, count int) ([]byte, bool) {
	if count > len(message) {
		return nil, false
	}
	return message[count:], true
}
