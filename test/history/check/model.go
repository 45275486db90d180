package check

import (
	"encoding/json"
	"fmt"

	"github.com/anishathalye/porcupine"
)

// A kind is the kind of an operation on one object. Values are unique among all writes.
type kind string

const (
	get         kind = "get"
	create      kind = "create"
	update      kind = "update"       // changes From to To, with a precondition on the resourceVersion
	patch       kind = "patch"        // writes To without a precondition
	remove      kind = "remove"       // deletes the object without a precondition
	removeExact kind = "remove exact" // deletes the object if its value is From, by a precondition on the resourceVersion
)

// A result is the response to an operation, as far as it matters for the model.
type result string

const (
	done     result = "done"
	absent   result = "absent"
	present  result = "present"
	conflict result = "conflict"
	unknown  result = "unknown" // no response: the operation may take effect at any later time, or never
)

type input struct {
	Kind kind
	Key  string
	From string // value that the object must have before the operation
	To   string // value that the operation writes
}

type output struct {
	result   result
	Value    string // value in the response to a get
	Revision int64  // revision that was read or written; 0: unknown
}

// MarshalJSON implements json.Marshaler. It includes result, which is not exported.
func (o output) MarshalJSON() ([]byte, error) {
	return json.Marshal(map[string]any{"result": o.result, "value": o.Value, "revision": o.Revision})
}

// apply returns the value of an object after an operation, and the result. The value "" means that the object does not
// exist.
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

// step implements porcupine's Step: it returns the values that the object may have after an operation, or none if the
// result is impossible.
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

// model describes one object for porcupine. The state is the value of the object, and "" if it does not exist.
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
