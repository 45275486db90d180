package terminal

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode"
)

// hostile has control characters of every kind: C0 and DEL, C1 as a character and as a byte, a bidirectional override
// and isolate, separators, invisible characters, and bytes that are not UTF-8.
const hostile = "a\x1b]0;title\x07\x00\r\x7f\u009b31m\x9b\u202e\u2066\u2028\u200b\ufeff\U000e0041\xff\xc3z"

const escaped = `a\x1b]0;title\x07\x00\r\x7f\u009b31m\x9b\u202e\u2066\u2028\u200b\ufeff\U000e0041\xff\xc3z`

func TestWriter(t *testing.T) {
	var out strings.Builder
	w := NewWriter(NewWriter(&out))
	text := hostile + "\tä 世界 ✓\n"
	if n, err := w.Write([]byte(text)); n != len(text) || err != nil {
		t.Errorf("got %d, %v, want %d", n, err, len(text))
	}
	if want := escaped + "\tä 世界 ✓\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
	if Plain([]byte(text)) || Plain([]byte("\xff")) || !Plain([]byte(out.String())) {
		t.Error("Plain does not agree with Writer")
	}
	if w.IsTerminal() || w.Width() != 0 {
		t.Error("a strings.Builder is no terminal")
	}
}

func TestControlSequencesOfMethods(t *testing.T) {
	var out strings.Builder
	w := NewWriter(&out)
	w.ReplaceLine("50 %\n\x1b[2J")
	w.EraseLines(3)
	if want := "\r\x1b[K" + `50 %\n\x1b[2J` + "\x1b[3A\x1b[J"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}

// TestTable checks that a cell can neither add a row nor a column, and that escaped cells are aligned.
func TestTable(t *testing.T) {
	var out strings.Builder
	if err := Table(NewWriter(&out), [][]string{{"NAME", "STATE"}, {"a\nb", "x\ty"}, {"\x1b[31m", "ok"}}, 2); err != nil {
		t.Fatal(err)
	}
	if want := "NAME      STATE\n" + `a\nb      x\ty` + "\n" + `\x1b[31m  ok` + "\n"; out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

// TestJSON checks that an escaped document has the same value, and contains nothing that a Writer would escape.
func TestJSON(t *testing.T) {
	value := map[string]string{"message": strings.ToValidUTF8(hostile, "?") + "\n\t\"\\"}
	document, err := json.MarshalIndent(value, "", "\t")
	if err != nil {
		t.Fatal(err)
	}
	text := JSON(document)
	decoded := map[string]string{}
	if err := json.Unmarshal(text, &decoded); err != nil || decoded["message"] != value["message"] {
		t.Errorf("got %q, %v, want %q", decoded, err, value)
	}
	if !Plain(text) {
		t.Errorf("%q needs escapes", text)
	}
}

// FuzzWriter checks that no input leads to output with a character that terminals interpret.
func FuzzWriter(f *testing.F) {
	f.Add([]byte(hostile))
	f.Fuzz(func(t *testing.T, content []byte) {
		var out strings.Builder
		if _, err := NewWriter(&out).Write(content); err != nil {
			t.Fatal(err)
		}
		for _, r := range out.String() {
			if r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r)) {
				t.Fatalf("%q became %q", content, out.String())
			}
		}
	})
}
