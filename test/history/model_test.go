package history

import (
	"encoding/json"
	"fmt"
	"testing"

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

// TestModel: the model accepts possible results and rejects impossible ones.
func TestModel(t *testing.T) {
	type call struct {
		in         input
		out        output
		begin, end int64
	}
	write := func(k kind, from, to string, r result, begin, end int64) call {
		return call{input{Kind: k, From: from, To: to}, output{result: r}, begin, end}
	}
	read := func(value string, begin, end int64) call {
		if value == "" {
			return call{input{Kind: get}, output{result: absent}, begin, end}
		}
		return call{input{Kind: get}, output{result: done, Value: value}, begin, end}
	}
	for name, test := range map[string]struct {
		calls []call
		want  bool
	}{
		"in order": {[]call{write(create, "", "a", done, 1, 2), read("a", 3, 4),
			write(update, "a", "b", done, 5, 6), read("b", 7, 8)}, true},
		"a lost write": {[]call{write(create, "", "a", done, 1, 2), read("", 3, 4)}, false},
		"an old read": {[]call{write(create, "", "a", done, 1, 2), write(patch, "", "b", done, 3, 4),
			read("a", 5, 6)}, false},
		"a read beside the write": {[]call{write(create, "", "a", done, 1, 2), write(patch, "", "b", done, 3, 6),
			read("a", 4, 5)}, true},
		"two winners": {[]call{write(create, "", "a", done, 1, 2), write(update, "a", "b", done, 3, 9),
			write(update, "a", "c", done, 4, 8)}, false},
		"a false conflict": {[]call{write(create, "", "a", done, 1, 2), write(update, "a", "b", conflict, 3, 4)},
			false},
		"unknown, and done":     {[]call{write(create, "", "a", unknown, 1, 99), read("", 3, 4), read("a", 5, 6)}, true},
		"unknown, and not done": {[]call{write(create, "", "a", unknown, 1, 99), read("", 3, 4)}, true},
		"unknown, and undone":   {[]call{write(create, "", "a", unknown, 1, 99), read("a", 3, 4), read("", 5, 6)}, false},
		"removed": {[]call{write(create, "", "a", done, 1, 2), write(removeExact, "a", "", done, 3, 4),
			write(remove, "", "", absent, 5, 6)}, true},
		"created twice": {[]call{write(create, "", "a", done, 1, 2), write(create, "", "b", done, 3, 4)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			var history []porcupine.Operation
			for i, c := range test.calls {
				history = append(history, porcupine.Operation{ClientId: i, Input: c.in, Call: c.begin, Output: c.out,
					Return: c.end})
			}
			if got := porcupine.CheckOperations(model.ToModel(), history); got != test.want {
				t.Errorf("linearizable: %v", got)
			}
		})
	}
}
