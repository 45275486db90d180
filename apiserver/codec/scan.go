package codec

import (
	"bytes"
	"encoding/json"

	"k8s.io/apimachinery/pkg/runtime/schema"
	upstream "k8s.io/apimachinery/pkg/runtime/serializer/json"
)

// scanMembers calls handle with the name and the value of each member of a JSON object, until handle returns false. It
// skips the values without decoding them. It returns false if the text is not an object, or if it finds a syntax error.
// It does not detect all syntax errors.
func scanMembers(text []byte, handle func(name, value []byte) bool) bool {
	text, ok := bytes.CutPrefix(skipSpace(text), []byte{'{'})
	if !ok {
		return false
	}
	if text = skipSpace(text); len(text) > 0 && text[0] == '}' {
		return true
	}
	for {
		name, rest := splitValue(skipSpace(text))
		if len(name) < 2 || name[0] != '"' || bytes.IndexByte(name, '\\') >= 0 {
			return false
		}
		if rest, ok = bytes.CutPrefix(skipSpace(rest), []byte{':'}); !ok {
			return false
		}
		value, rest := splitValue(skipSpace(rest))
		if len(value) == 0 {
			return false
		}
		if !handle(name[1:len(name)-1], value) {
			return true
		}
		if rest = skipSpace(rest); len(rest) == 0 {
			return false
		}
		if rest[0] == '}' {
			return true
		}
		if rest[0] != ',' {
			return false
		}
		text = rest[1:]
	}
}

func skipSpace(text []byte) []byte {
	for len(text) > 0 && (text[0] == ' ' || text[0] == '\n' || text[0] == '\t' || text[0] == '\r') {
		text = text[1:]
	}
	return text
}

// splitValue splits a value off a text. It returns nil if the text has no complete value.
func splitValue(text []byte) (value, rest []byte) {
	depth := 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '"':
			length := stringLength(text[i:])
			if length == 0 {
				return nil, nil
			}
			if i += length - 1; depth == 0 {
				return text[:i+1], text[i+1:]
			}
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth < 0 {
				return text[:i], text[i:] // the end of a number or literal
			}
			if depth == 0 {
				return text[:i+1], text[i+1:]
			}
		case ',', ' ', '\n', '\t', '\r':
			if depth == 0 {
				return text[:i], text[i:]
			}
		}
	}
	return nil, nil
}

// stringLength returns the length of the string at the beginning of a text, 0 if it does not end.
func stringLength(text []byte) int {
	for i := 1; i < len(text); i++ {
		quote := bytes.IndexByte(text[i:], '"')
		if quote < 0 {
			return 0
		}
		escapes := 0
		for end := i + quote - 1; end > 0 && text[end] == '\\'; end-- {
			escapes++
		}
		if i += quote; escapes%2 == 0 {
			return i + 1
		}
	}
	return 0
}

// storedKind reads the kind of a stored object from its first members, whereas upstream's SimpleMetaFactory parses the
// whole object.
type storedKind struct{ upstream.SimpleMetaFactory }

// Interpret implements json.MetaFactory.
func (k storedKind) Interpret(text []byte) (*schema.GroupVersionKind, error) {
	var apiVersion, kind *string
	scanMembers(text, func(name, value []byte) bool {
		switch string(name) {
		case "apiVersion":
			apiVersion = new(string)
			return json.Unmarshal(value, apiVersion) == nil && kind == nil
		case "kind":
			kind = new(string)
			return json.Unmarshal(value, kind) == nil && apiVersion == nil
		}
		return true
	})
	if apiVersion == nil || kind == nil {
		return k.SimpleMetaFactory.Interpret(text)
	}
	gv, err := schema.ParseGroupVersion(*apiVersion)
	if err != nil {
		return k.SimpleMetaFactory.Interpret(text)
	}
	found := gv.WithKind(*kind)
	return &found, nil
}
