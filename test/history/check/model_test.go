package check

import (
	"testing"

	"github.com/anishathalye/porcupine"
)

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
