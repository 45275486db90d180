package measure

import (
	"slices"
	"strings"
)

// Table is a table of a report.
type Table struct {
	Name   string // name of the table in documents
	Header []string
	Rows   [][]string
}

// Markdown aligns the first column to the left, and the others, which are numbers, to the right.
func (t Table) Markdown() string {
	line := func(cells []string) string { return "| " + strings.Join(cells, " | ") + " |\n" }
	text := line(t.Header) + line(append([]string{"---"}, slices.Repeat([]string{"--:"}, len(t.Header)-1)...))
	for _, row := range t.Rows {
		text += line(row)
	}
	return text
}
