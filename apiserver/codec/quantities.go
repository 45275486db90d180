package codec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Upstream parses a quantity into a number of any length. An exponent of ten digits yields a number of two billion
// digits, and the time to format a number grows with the square of its length: a pod that requests
// 12345678901234567890e100000 takes a minute of CPU.
const (
	// MaxQuantityDigits is the maximum number of digits of a quantity when its exponent is written out.
	MaxQuantityDigits = 5_000
	// maxLongSquares is the maximum sum of the squares of the numbers of digits of all long quantities in a body.
	maxLongSquares = MaxQuantityDigits * MaxQuantityDigits
	// shortDigits is the number of digits up to which a quantity is not long. An int64 has 19, and the largest suffix
	// adds 18.
	shortDigits = 40
)

var (
	errQuantity = fmt.Errorf("quantities must not have more than %d digits when their exponents are written out",
		MaxQuantityDigits)
	errLong = fmt.Errorf("there are too many quantities of more than %d digits when their exponents are written out",
		shortDigits)
)

// longQuantities counts the digits of the long quantities in a body.
type longQuantities struct {
	squares int
}

// add returns an error if a quantity makes the quantities of the body too long.
func (q *longQuantities) add(text []byte) error {
	digits := QuantityDigits(bytes.TrimSpace(text))
	if digits <= shortDigits {
		return nil
	}
	if digits > MaxQuantityDigits {
		return errQuantity
	}
	if q.squares += digits * digits; q.squares > maxLongSquares {
		return errLong
	}
	return nil
}

// QuantityDigits returns the number of digits of a quantity when its exponent is written out, 0 for a text that is not
// a quantity.
func QuantityDigits(text []byte) int {
	number := bytes.TrimLeft(text, "+-")
	if len(text)-len(number) > 1 {
		return 0
	}
	number = bytes.TrimLeft(number, "0")
	end := 0
	for end < len(number) && (number[end] == '.' || isDigit(number[end])) {
		end++
	}
	suffix := number[end:]
	if len(suffix) < 2 || suffix[0] != 'e' && suffix[0] != 'E' {
		return end
	}
	exponent, err := strconv.ParseInt(string(suffix[1:]), 10, 64)
	if err != nil {
		return 0 // upstream's parser rejects the text before it parses the digits
	}
	shift := int64(int32(exponent)) // as in upstream's parser
	return end + int(max(shift, -shift))
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// isWord reports whether a byte can be a part of a longer word.
func isWord(c byte) bool { return isDigit(c) || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' }

// exponentDigits is the minimum number of digits of an exponent with which a quantity can have more than shortDigits
// digits.
const exponentDigits = 2

// mayHaveLongQuantities reports whether a text can contain a quantity of more than shortDigits digits. It is a fast
// check, which skips the parser for most bodies: they contain no such number, not even in strings that are not
// quantities.
func mayHaveLongQuantities(text []byte) bool {
	for i := 0; i < len(text); i++ {
		if !isDigit(text[i]) {
			if text[i] == '\\' && escapesNumber(text[i+1:]) {
				return true
			}
			continue
		}
		start := i
		for i < len(text) && (isDigit(text[i]) || text[i] == '.') {
			i++
		}
		if i-start > shortDigits || (start == 0 || !isWord(text[start-1])) && beginsWithExponent(text[i:]) {
			return true
		}
		i--
	}
	return false
}

// beginsWithExponent reports whether a text begins with an exponent of at least exponentDigits digits, followed by the
// end of the word.
func beginsWithExponent(text []byte) bool {
	if len(text) == 0 || text[0] != 'e' && text[0] != 'E' {
		return false
	}
	text = bytes.TrimLeft(text[1:], "+-")
	digits := 0
	for digits < len(text) && isDigit(text[digits]) {
		digits++
	}
	return digits >= exponentDigits && (digits == len(text) || !isWord(text[digits]))
}

// escapesNumber reports whether the text after a backslash completes a JSON escape of a character that a quantity may
// contain.
func escapesNumber(text []byte) bool {
	if !bytes.HasPrefix(text, []byte("u00")) || len(text) < len("u0030") {
		return false
	}
	code, err := strconv.ParseUint(string(text[1:5]), 16, 16)
	return err == nil && strings.ContainsRune("0123456789.+-eE", rune(code))
}

// quantityPath is the tree of the fields in which values of a type have quantities. A nil *quantityPath means that they
// have none.
type quantityPath struct {
	isQuantity bool
	fields     map[string]*quantityPath // by name in JSON
	element    *quantityPath            // of lists and maps
}

// quantitiesOf returns the fields in which values of a type have quantities. The caller holds the lock of the Guard.
func (g *Guard) quantitiesOf(of reflect.Type) *quantityPath {
	for of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	if known, ok := g.quantities[of]; ok {
		return known
	}
	p := &quantityPath{isQuantity: of == reflect.TypeFor[resource.Quantity](), fields: map[string]*quantityPath{}}
	g.quantities[of] = p
	switch {
	case p.isQuantity:
		return p
	case of.Kind() == reflect.Map, of.Kind() == reflect.Slice:
		p.element = g.quantitiesOf(of.Elem())
	case of.Kind() == reflect.Struct:
		g.addFields(p, of)
	}
	if p.element == nil && len(p.fields) == 0 {
		p, g.quantities[of] = nil, nil
	}
	return p
}

// addFields adds the fields of a struct that contain quantities, including the fields of inlined structs.
func (g *Guard) addFields(p *quantityPath, of reflect.Type) {
	for field := range of.Fields() {
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		inner := g.quantitiesOf(field.Type)
		switch {
		case inner == nil || name == "-":
		case name != "":
			p.fields[name] = inner
		case field.Anonymous || options == "inline":
			for name, inner := range inner.fields {
				p.fields[name] = inner
			}
		}
	}
}

// checkQuantities returns an error if the quantities in a JSON body are too long. Invalid JSON passes.
func (p *quantityPath) checkQuantities(body []byte) error {
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	err := (&quantityReader{decoder: decoder}).value(p)
	if errors.Is(err, errQuantity) || errors.Is(err, errLong) {
		return err
	}
	return nil
}

// quantityReader reads the quantities of a JSON body in the order of the text. It counts each value of a repeated key,
// because decoders parse all of them.
type quantityReader struct {
	decoder *json.Decoder
	found   longQuantities
}

// value reads a value. p describes which parts of the value are quantities.
func (r *quantityReader) value(p *quantityPath) error {
	if p == nil {
		var skipped json.RawMessage
		return r.decoder.Decode(&skipped)
	}
	token, err := r.decoder.Token()
	if err != nil {
		return err
	}
	switch token := token.(type) {
	case json.Delim:
		return r.children(p, token)
	case string:
		return r.scalar(p, token)
	case json.Number:
		return r.scalar(p, token.String())
	}
	return nil
}

// scalar counts a string or number if it is a quantity.
func (r *quantityReader) scalar(p *quantityPath, text string) error {
	if !p.isQuantity {
		return nil
	}
	return r.found.add([]byte(text))
}

// children reads the rest of an object or a list.
func (r *quantityReader) children(p *quantityPath, opening json.Delim) error {
	for r.decoder.More() {
		inner := p.element
		if opening == '{' {
			key, err := r.decoder.Token()
			if err != nil {
				return err
			}
			if name, ok := key.(string); ok && p.fields[name] != nil {
				inner = p.fields[name]
			}
		}
		if err := r.value(inner); err != nil {
			return err
		}
	}
	_, err := r.decoder.Token() // the closing delimiter
	return err
}
