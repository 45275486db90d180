// Package progress shows how a sandbox comes up: a few lines that change in place on a terminal, plain lines
// elsewhere, or one JSON object per line for scripts.
package progress

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"golang.org/x/term"
)

// Event is something worth telling. Its JSON form is what scripts read.
type Event struct {
	Event      string            `json:"event"` // management, cluster, note, stopping or ready
	Name       string            `json:"name,omitempty"`
	State      string            `json:"state,omitempty"`
	Available  bool              `json:"available,omitempty"`
	Replicas   int32             `json:"replicas,omitempty"`
	Ready      int32             `json:"ready,omitempty"`
	Kubeconfig string            `json:"kubeconfig,omitempty"`
	Clusters   map[string]string `json:"clusters,omitempty"` // kubeconfigs by cluster, in the event ready
	Seconds    float64           `json:"seconds,omitempty"`
	Message    string            `json:"message,omitempty"`
}

// Style is how events are shown.
type Style int

const (
	Plain Style = iota
	Terminal
	JSON
)

// Display shows events. It may be used by several goroutines.
type Display struct {
	out   io.Writer
	style Style

	mu    sync.Mutex
	names []string // in the order of their first event
	rows  map[string]string
	drawn int // lines on the terminal that belong to rows
}

// New returns a display that writes to out.
func New(out io.Writer, style Style) *Display {
	return &Display{out: out, style: style, rows: map[string]string{}}
}

// Show tells an event. What was told of a name before is not repeated.
func (d *Display) Show(event Event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	text := d.render(event)
	switch {
	case text == "":
	case event.Name == "":
		d.note(text)
	default:
		d.row(event.Name, text)
	}
}

// render is an event as a line; nothing for one that is only for scripts.
func (d *Display) render(event Event) string {
	switch {
	case d.style == JSON:
		content, err := json.Marshal(event)
		if err != nil {
			return ""
		}
		return string(content)
	case event.Name == "":
		return event.Message
	}
	return line(event)
}

// Forget takes a row away.
func (d *Display) Forget(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, shown := d.rows[name]; shown {
		delete(d.rows, name)
		d.names = slices.DeleteFunc(d.names, func(candidate string) bool { return candidate == name })
		if d.style != Terminal {
			fmt.Fprintln(d.out, d.render(Event{Event: "cluster", Name: name, State: "deleted"}))
		}
		d.redraw()
	}
}

func (d *Display) row(name, text string) {
	before, shown := d.rows[name]
	if before == text {
		return
	}
	if !shown {
		d.names = append(d.names, name)
	}
	d.rows[name] = text
	if d.style != Terminal {
		fmt.Fprintln(d.out, text)
		return
	}
	d.redraw()
}

// note prints a line above the rows.
func (d *Display) note(message string) {
	if d.style == Terminal {
		d.erase()
	}
	fmt.Fprintln(d.out, message)
	d.redraw()
}

func (d *Display) redraw() {
	if d.style != Terminal {
		return
	}
	d.erase()
	for _, name := range d.names {
		fmt.Fprintln(d.out, d.rows[name])
		d.drawn += height(d.rows[name], d.width())
	}
}

// width of the terminal in columns; 0 when it is not known.
func (d *Display) width() int {
	file, ok := d.out.(*os.File)
	if !ok {
		return 0
	}
	width, _, err := term.GetSize(int(file.Fd()))
	if err != nil {
		return 0
	}
	return width
}

// height is how many lines of a terminal a text takes.
func height(text string, width int) int {
	if width <= 0 {
		return 1
	}
	return max(1, (utf8.RuneCountInString(text)+width-1)/width)
}

// erase takes the rows off the terminal: the cursor goes up to the first and everything below is cleared.
func (d *Display) erase() {
	if d.drawn > 0 {
		fmt.Fprintf(d.out, "\x1b[%dA\x1b[J", d.drawn)
	}
	d.drawn = 0
}

// line is a row: name, state, kubeconfig.
func line(event Event) string {
	parts := []string{}
	if event.State != "" {
		parts = append(parts, event.State)
	}
	if event.Kubeconfig != "" {
		parts = append(parts, "kubeconfig "+event.Kubeconfig)
	}
	return strings.TrimRight(fmt.Sprintf("%-10s  %s", event.Name, strings.Join(parts, "   ")), " ")
}
