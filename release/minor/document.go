package main

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
)

// open is the answer of a change without an answer.
const open = "**open**"

// answers has the answers of a document: by the title of the section, and in it by the name of the change.
type answers map[string]map[string]string

// of returns the answer of a change, or open.
func (a answers) of(s section, c change) string { return cmp.Or(a[s.title][normalized(c.name)], open) }

// write writes the document: a table for each section with changes, with the answers of an earlier document.
func write(out io.Writer, before, after string, sections map[string][]change, earlier answers) error {
	w := bufio.NewWriter(out)
	unanswered, total := 0, 0
	for _, s := range sectionOrder {
		for _, c := range sections[s.id] {
			total++
			if earlier.of(s, c) == open {
				unanswered++
			}
		}
	}
	fmt.Fprintf(w, "# From Kubernetes %s to %s\n\n", before, after)
	fmt.Fprintf(w, "Output of `go run ./release/minor %s %s`: %d changes, %d without an answer.\n", before, after,
		total, unanswered)
	for _, s := range sectionOrder {
		if len(sections[s.id]) == 0 {
			continue
		}
		fmt.Fprintf(w, "\n## %s\n\n%s\n\n| name | %s | %s | answer |\n| --- | --- | --- | --- |\n", s.title, s.advice,
			before, after)
		for _, c := range sections[s.id] {
			fmt.Fprintf(w, "| `%s` | %s | %s | %s |\n", cell(c.name), code(c.before), code(c.after), earlier.of(s, c))
		}
	}
	return w.Flush()
}

// code returns a value as code in a cell, or a dash for no value.
func code(value string) string {
	if value == "" {
		return "–"
	}
	return "`" + cell(value) + "`"
}

// cell returns a text that does not end the cell of a table or its code.
func cell(text string) string { return strings.ReplaceAll(normalized(text), "|", `\|`) }

// normalized returns a text without white space at its ends, and without line breaks and quotes that end code.
func normalized(text string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "`", "'")
}

// readAnswers reads the answers in a document. There are none if the path is empty or the file does not exist.
func readAnswers(path string) (answers, error) {
	if path == "" {
		return nil, nil
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return parseAnswers(string(text)), err
}

func parseAnswers(document string) answers {
	found, title := answers{}, ""
	for line := range strings.Lines(document) {
		line = strings.TrimSpace(line)
		if heading, ok := strings.CutPrefix(line, "## "); ok {
			title = heading
			found[title] = map[string]string{}
			continue
		}
		if name, answer, ok := parseRow(line); ok && title != "" {
			found[title][name] = answer
		}
	}
	return found
}

// parseRow returns the name and the answer in a row of a table that write has written.
func parseRow(line string) (name, answer string, ok bool) {
	row, isRow := strings.CutPrefix(line, "| `")
	name, rest, ended := strings.Cut(row, "` | ")
	last := strings.LastIndex(rest, " | ")
	if !isRow || !ended || last < 0 {
		return "", "", false
	}
	return strings.ReplaceAll(name, `\|`, "|"), strings.TrimSuffix(rest[last+len(" | "):], " |"), true
}
