// Package terminal writes texts that come from clusters, such as messages, events and log lines, to terminals.
//
// A terminal executes control sequences in what it displays: an escape sequence can change the title of the window or
// the clipboard, hide lines, or rewrite earlier ones, and a bidirectional override displays characters in another
// order. A user who can write a condition, an event or a log line could therefore deceive the administrator. A Writer
// escapes such characters. All commands write through a Writer; test/architecture rejects the use of os.Stdout and
// os.Stderr elsewhere.
package terminal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"
)

// Writer writes text to a terminal, and escapes all unsafe characters in the text except newlines and tabs. Only the
// Writer's own methods send control sequences to the terminal. Each call of Write must contain whole characters.
type Writer struct {
	out io.Writer
}

// NewWriter returns a Writer that writes to out, or out itself if out is a Writer.
func NewWriter(out io.Writer) *Writer {
	if w, ok := out.(*Writer); ok {
		return w
	}
	return &Writer{out}
}

// Stdout returns a Writer for standard output.
func Stdout() *Writer { return &Writer{os.Stdout} }

// Stderr returns a Writer for standard error.
func Stderr() *Writer { return &Writer{os.Stderr} }

// Write implements io.Writer.
func (w *Writer) Write(content []byte) (int, error) {
	if _, err := w.out.Write(escape(content, func(r rune) bool { return r == '\n' || r == '\t' })); err != nil {
		return 0, err
	}
	return len(content), nil
}

// ReplaceLine replaces the line with the cursor by a text.
func (w *Writer) ReplaceLine(text string) {
	fmt.Fprintf(w.out, "\r\x1b[K%s", Line(text))
}

// EraseLines moves the cursor up by a number of lines, and erases everything from there to the end of the screen.
func (w *Writer) EraseLines(count int) {
	fmt.Fprintf(w.out, "\x1b[%dA\x1b[J", count)
}

// IsTerminal reports whether the Writer's output is a terminal.
func (w *Writer) IsTerminal() bool {
	file, ok := w.out.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// Width returns the number of columns of the terminal, or 0 if the number is unknown.
func (w *Writer) Width() int {
	file, ok := w.out.(*os.File)
	if !ok {
		return 0
	}
	columns, _, err := term.GetSize(int(file.Fd()))
	if err != nil {
		return 0
	}
	return columns
}

// Line returns a text as one line: newlines, tabs and everything that a Writer escapes are escaped.
func Line(text string) string {
	return string(escape([]byte(text), func(rune) bool { return false }))
}

// Table writes rows in columns that are separated by at least gap spaces. Newlines and tabs in cells are escaped.
func Table(out io.Writer, rows [][]string, gap int) error {
	table := tabwriter.NewWriter(out, 0, 0, gap, ' ', 0)
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = Line(cell)
		}
		fmt.Fprintln(table, strings.Join(cells, "\t"))
	}
	return table.Flush()
}

// PrintJSON writes a value as indented JSON without unsafe characters. Decoding the text yields the same value.
func PrintJSON(out io.Writer, value any, indent string) error {
	document, err := json.MarshalIndent(value, "", indent)
	if err != nil {
		return err
	}
	_, err = out.Write(append(JSON(document), '\n'))
	return err
}

// JSON replaces the unsafe characters in a JSON document by escape sequences of JSON, so that the document keeps its
// value. JSON allows unsafe characters only in strings, except newlines, tabs and carriage returns, which stay as they
// are.
func JSON(document []byte) []byte {
	var out bytes.Buffer
	for _, r := range string(document) {
		switch {
		case !unsafe(r) || r == '\n' || r == '\t' || r == '\r':
			out.WriteRune(r)
		case r > 0xffff:
			r -= 0x10000
			fmt.Fprintf(&out, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		default:
			fmt.Fprintf(&out, `\u%04x`, r)
		}
	}
	return out.Bytes()
}

// Plain reports whether a Writer writes a text unchanged.
func Plain(text []byte) bool {
	return utf8.Valid(text) && bytes.IndexFunc(text, func(r rune) bool { return unsafe(r) && r != '\n' && r != '\t' }) < 0
}

// unsafe reports whether a terminal may interpret a character instead of displaying it. Unsafe characters are the
// control characters C0, DEL and C1, the separators of lines and paragraphs, and the characters of Unicode's category
// Cf, which change the order of text or are invisible.
func unsafe(r rune) bool {
	return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp)
}

// escape replaces bytes that are not UTF-8, and unsafe characters that are not allowed, by escape sequences of Go.
func escape(content []byte, allowed func(rune) bool) []byte {
	var out bytes.Buffer
	out.Grow(len(content))
	for len(content) > 0 {
		r, size := utf8.DecodeRune(content)
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&out, `\x%02x`, content[0])
		case !unsafe(r) || allowed(r):
			out.Write(content[:size])
		case r == '\n':
			out.WriteString(`\n`)
		case r == '\t':
			out.WriteString(`\t`)
		case r == '\r':
			out.WriteString(`\r`)
		case r < 0x80:
			fmt.Fprintf(&out, `\x%02x`, r)
		case r > 0xffff:
			fmt.Fprintf(&out, `\U%08x`, r)
		default:
			fmt.Fprintf(&out, `\u%04x`, r)
		}
		content = content[size:]
	}
	return out.Bytes()
}
