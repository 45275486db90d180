package plugin

import (
	"fmt"
	"strings"
)

// progress displays the state of an operation on standard error: one line that is replaced on a terminal, a line per
// change elsewhere.
type progress struct {
	streams
	last string
}

// show displays a state unless it is displayed already.
func (p *progress) show(text string) {
	text, _, _ = strings.Cut(text, "\n")
	if text == p.last {
		return
	}
	p.last = text
	if !p.terminal {
		fmt.Fprintln(p.err, text)
		return
	}
	const width = 120 // a longer line would wrap, and could not be replaced
	if runes := []rune(text); len(runes) > width {
		text = string(runes[:width-3]) + "..."
	}
	fmt.Fprintf(p.err, "\r\x1b[K%s", text)
}

// done ends the line on a terminal.
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
