package audit

import "bytes"

// managedFields are the paths of managed fields in a response: in an object, in the items of a list, and in the objects
// of the rows of a table. "*" matches each element of an array.
var managedFields = [][]string{
	{"metadata", "managedFields"},
	{"items", "*", "metadata", "managedFields"},
	{"rows", "*", "object", "metadata", "managedFields"},
}

// omitManagedFields returns a JSON document without managed fields. It keeps all other bytes, so that the result equals
// the encoding of an object without managed fields. It returns invalid JSON unchanged.
func omitManagedFields(json []byte) []byte {
	o := omitter{json: json}
	if !o.value(managedFields) {
		return json
	}
	return append(o.kept, json[o.copied:]...)
}

// omitter copies a JSON document without the members at given paths.
type omitter struct {
	json []byte
	// at is the number of bytes that have been scanned.
	at int
	// kept is the output for json[:copied].
	kept []byte
	// copied is the number of bytes whose output is in kept. Invariant: copied <= at.
	copied int
}

// value scans a value and omits the members at the paths below it. It reports whether the scanned JSON is valid.
func (o *omitter) value(paths [][]string) bool {
	o.space()
	if len(paths) == 0 {
		return o.skip()
	}
	switch o.peek() {
	case '{':
		return o.object(paths)
	case '[':
		return o.array(paths)
	}
	return o.skip()
}

func (o *omitter) object(paths [][]string) bool {
	o.at++
	for separated := false; ; {
		before := o.at
		if o.space(); o.consume('}') {
			return true
		}
		if separated && !o.consume(',') {
			return false
		}
		name, ok := o.name()
		if !ok {
			return false
		}
		below, omitted := descend(paths, name)
		if !o.value(below) {
			return false
		}
		switch {
		case !omitted:
			separated = true
		case separated:
			o.omit(before)
		// The first member is omitted together with the comma that follows it.
		default:
			o.space()
			o.consume(',')
			o.omit(before)
		}
	}
}

// name scans the name of a member and the colon that follows it.
func (o *omitter) name() (string, bool) {
	o.space()
	start := o.at
	if o.peek() != '"' || !o.skip() {
		return "", false
	}
	name := string(o.json[start+1 : o.at-1])
	o.space()
	return name, o.consume(':')
}

// omit omits the bytes that have been scanned since the position before.
func (o *omitter) omit(before int) {
	o.kept = append(o.kept, o.json[o.copied:before]...)
	o.copied = o.at
}

func (o *omitter) array(paths [][]string) bool {
	below, _ := descend(paths, "*")
	o.at++
	for separated := false; ; separated = true {
		if o.space(); o.consume(']') {
			return true
		}
		if (separated && !o.consume(',')) || !o.value(below) {
			return false
		}
	}
}

// descend returns the remaining segments of the paths that begin with name, and reports whether any of these paths
// ends there.
func descend(paths [][]string, name string) (below [][]string, ends bool) {
	for _, path := range paths {
		switch {
		case path[0] != name:
		case len(path) == 1:
			ends = true
		default:
			below = append(below, path[1:])
		}
	}
	return below, ends
}

// skip scans a value of any type. It reports whether the value is valid.
func (o *omitter) skip() bool {
	for depth := 0; o.at < len(o.json); {
		switch char := o.json[o.at]; char {
		case '"':
			if !o.text() {
				return false
			}
		case '{', '[':
			depth++
			o.at++
			continue
		case '}', ']':
			depth--
			o.at++
		case ',', ':', ' ', '\t', '\n', '\r':
			o.at++
			continue
		default:
			o.scalar()
		}
		if depth <= 0 {
			return depth == 0
		}
	}
	return false
}

// text scans a string.
func (o *omitter) text() bool {
	for o.at++; o.at < len(o.json); o.at++ {
		switch o.json[o.at] {
		case '\\':
			o.at++
		case '"':
			o.at++
			return true
		}
	}
	return false
}

// scalar scans a number, true, false or null.
func (o *omitter) scalar() {
	for o.at++; o.at < len(o.json); o.at++ {
		if bytes.IndexByte([]byte(",:{}[]\" \t\n\r"), o.json[o.at]) >= 0 {
			return
		}
	}
}

func (o *omitter) space() {
	for o.at < len(o.json) && bytes.IndexByte([]byte(" \t\n\r"), o.json[o.at]) >= 0 {
		o.at++
	}
}

// peek returns the next byte, or 0 at the end.
func (o *omitter) peek() byte {
	if o.at < len(o.json) {
		return o.json[o.at]
	}
	return 0
}

func (o *omitter) consume(char byte) bool {
	if o.peek() != char {
		return false
	}
	o.at++
	return true
}
