package plugin

import (
	"fmt"
	"strings"

	"quorate.dev/terminal"
)

// standardWidth is the assumed number of columns of a terminal whose width is unknown.
const standardWidth = 80

// progress displays the progress of an operation on standard error: as one line that is replaced on a terminal, and as
// a line for each change elsewhere.
type progress struct {
	streams
	last string
}

// show displays a state, unless it is already displayed.
func (p *progress) show(text string) {
	text, _, _ = strings.Cut(text, "\n")
	text = terminal.Line(text) // before the text is shortened
	if text == p.last {
		return
	}
	p.last = text
	if !p.terminal {
		fmt.Fprintln(p.err, text)
		return
	}
	width := standardWidth
	if p.width != nil && p.width() > 3 {
		width = p.width()
	}
	width-- // a line that fills the terminal would wrap, and could not be replaced
	if runes := []rune(text); len(runes) > width {
		text = string(runes[:width-3]) + "..."
	}
	p.err.ReplaceLine(text)
}

// done ends the replaced line on a terminal.
func (p *progress) done() {
	if p.terminal && p.last != "" {
		fmt.Fprintln(p.err)
	}
	p.last = ""
}

// note prints a line on standard error.
func (t *tool) note(format string, args ...any) {
	fmt.Fprintf(t.err, format+"\n", args...)
}
