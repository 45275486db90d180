package main

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

const rule = "--------------------------------------------------------------------------------"

// write prints the names of the modules with the numbers of their texts, and then each distinct text once.
func write(out io.Writer, modules []*module) error {
	w := bufio.NewWriter(out)
	numbers := map[string]int{}
	var texts []string
	fmt.Fprintf(w, "Quorate is linked with the modules below, under the licences below.\n"+
		"The source of each is what \"go mod download MODULE@VERSION\" gets, that of Go is at https://go.dev/dl.\n\n")
	for _, m := range modules {
		fmt.Fprintln(w, m.name)
		for _, name := range slices.Sorted(maps.Keys(m.notices)) {
			text := strings.TrimSpace(strings.ReplaceAll(m.notices[name], "\r\n", "\n"))
			if numbers[text] == 0 {
				texts = append(texts, text)
				numbers[text] = len(texts)
			}
			fmt.Fprintf(w, "  %s: text %d\n", name, numbers[text])
		}
	}
	for i, text := range texts {
		fmt.Fprintf(w, "\n%s\nText %d\n%s\n\n%s\n", rule, i+1, rule, text)
	}
	return w.Flush()
}
