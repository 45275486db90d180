package etcdctl

import (
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"
)

// print writes rows as a table under a header, or the value as JSON.
func (t *tool) print(value any, header []string, rows [][]string) error {
	if t.format == "json" {
		encoder := json.NewEncoder(t.out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(value)
	}
	table := tabwriter.NewWriter(t.out, 0, 0, 3, ' ', 0)
	for _, row := range append([][]string{header}, rows...) {
		fmt.Fprintln(table, strings.Join(row, "\t"))
	}
	return table.Flush()
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
