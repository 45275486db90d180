package etcdctl

import (
	"fmt"

	"quorate.dev/terminal"
)

// columnGap is the number of spaces between columns.
const columnGap = 3

// print writes rows as a table under a header, or the value as JSON.
func (t *tool) print(value any, header []string, rows [][]string) error {
	if t.format == "json" {
		return terminal.PrintJSON(t.out, value, "  ")
	}
	return terminal.Table(t.out, append([][]string{header}, rows...), columnGap)
}

// memberID formats an ID as etcdctl does.
func memberID(id uint64) string { return fmt.Sprintf("%x", id) }

func mebibytes(bytes int64) string { return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20)) }

func orNone(text string) string {
	if text == "" {
		return "<none>"
	}
	return text
}
