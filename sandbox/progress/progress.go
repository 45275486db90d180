// Package progress prints the progress of a sandbox: as rows that are updated in place on a terminal, as plain lines
// elsewhere, or as one JSON object per line.
package progress

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"quorate.dev/terminal"
)

// Event is a change of the sandbox. Its JSON encoding is an interface for scripts.
type Event struct {
	Event      string            `json:"event"` // management, page, cluster, note, stopping or ready
	Name       string            `json:"name,omitempty"`
	State      string            `json:"state,omitempty"`
	Available  bool              `json:"available,omitempty"`
	Replicas   int32             `json:"replicas,omitempty"`
	Ready      int32             `json:"ready,omitempty"`
	Kubeconfig string            `json:"kubeconfig,omitempty"`
	URL        string            `json:"url,omitempty"`      // URL of the status page
	Clusters   map[string]string `json:"clusters,omitempty"` // paths of kubeconfig files by cluster, in the event ready
	Seconds    float64           `json:"seconds,omitempty"`
	Message    string            `json:"message,omitempty"`
}

// Style is the output format.
type Style int

const (
	Plain Style = iota
	Terminal
	JSON
)

// Display prints events. It is safe for concurrent use.
type Display struct {
	out   *terminal.Writer
	style Style

	mu    sync.Mutex
	names []string // names of rows in the order of their first event
	rows  map[string]string
	drawn int // number of lines of the drawn rows
}

// New returns a display that writes to out.
func New(out io.Writer, style Style) *Display {
	return &Display{out: terminal.NewWriter(out), style: style, rows: map[string]string{}}
}

// Show prints an event. A named event updates its row, and is not printed if the row does not change.
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

// render returns an event as a line, or "" for an event that is printed only as JSON.
func (d *Display) render(event Event) string {
	switch {
	case d.style == JSON:
		content, err := json.Marshal(event)
		if err != nil {
			return ""
		}
		return string(terminal.JSON(content))
	case event.Name == "":
		return event.Message
	}
	return line(event)
}

// Forget removes the row of a deleted cluster.
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
		d.drawn += height(d.rows[name], d.out.Width())
	}
}

// height returns the number of lines that a text needs on the terminal.
func height(text string, width int) int {
	if width <= 0 {
		return 1
	}
	return max(1, (utf8.RuneCountInString(text)+width-1)/width)
}

// erase moves the cursor to the first row, and clears everything from there on.
func (d *Display) erase() {
	if d.drawn > 0 {
		d.out.EraseLines(d.drawn)
	}
	d.drawn = 0
}

// line returns the row of an event: name, state, URL and kubeconfig.
func line(event Event) string {
	parts := []string{}
	if event.State != "" {
		parts = append(parts, event.State)
	}
	if event.URL != "" {
		parts = append(parts, event.URL)
	}
	if event.Kubeconfig != "" {
		parts = append(parts, "kubeconfig "+event.Kubeconfig)
	}
	return terminal.Line(strings.TrimRight(fmt.Sprintf("%-10s  %s", event.Name, strings.Join(parts, "   ")), " "))
}
