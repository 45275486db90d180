package check

import (
	"encoding/json"
	"fmt"

	"github.com/anishathalye/porcupine"
)

// kind of an operation on one object. Values are unique among all writes.
type kind string

const (
	get         kind = "get"
	create      kind = "create"
	update      kind = "update"       // from one value to another, by resourceVersion
	patch       kind = "patch"        // to a value, unconditionally
	remove      kind = "remove"       // unconditionally
	removeExact kind = "remove exact" // one value, by a precondition
)

// result of an operation.
type result string

const (
	done     result = "done"
	absent   result = "absent"
	present  result = "present"
	conflict result = "conflict"
	unknown  result = "unknown" // it may take effect at any later time, or never
)

type input struct {
	Kind kind
	Key  string
	From string // value required before
	To   string // value written
}

type output struct {
	result   result
	Value    string // of a get
	Revision int64  // read or written; 0: unknown
}

// MarshalJSON includes the result.
func (o output) MarshalJSON() ([]byte, error) {
	return json.Marshal(map[string]any{"result": o.result, "value": o.Value, "revision": o.Revision})
}

// apply applies an operation to an object with a value; "" means that the object does not exist.
func (i input) apply(value string) (next string, answer result) {
	switch i.Kind {
	case create:
		if value != "" {
			return value, present
		}
		return i.To, done
	case update, removeExact:
		switch value {
		case i.From:
			return i.To, done
		case "":
			return value, absent
		}
		return value, conflict
	}
	if value == "" {
		return value, absent
	}
	switch i.Kind {
	case patch:
		return i.To, done
	case remove:
		return "", done
	}
	return value, done
}

// step returns the values that the object may have after an operation with a result; none: the result is impossible.
func step(state, in, out any) []any {
	value, i, o := state.(string), in.(input), out.(output)
	next, answer := i.apply(value)
	switch {
	case o.result == unknown && next != value:
		return []any{value, next}
	case o.result == unknown:
		return []any{value}
	case answer != o.result, i.Kind == get && o.result == done && o.Value != value:
		return nil
	}
	return []any{next}
}

// model is one object.
var model = porcupine.NondeterministicModel{
	Init: func() []any { return []any{""} },
	Step: step,
	DescribeOperation: func(in, out any) string {
		i, o := in.(input), out.(output)
		text := string(i.Kind)
		if i.From != "" {
			text += " " + i.From
		}
		if i.To != "" {
			text += " to " + i.To
		}
		return fmt.Sprintf("%s: %s %s", text, o.result, o.Value)
	},
	DescribeState: func(state any) string { return fmt.Sprint(state) },
}
