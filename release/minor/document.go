package main

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
)

// open is the answer of a change without an answer.
const open = "**open**"

// toDo is the prefix of the answers to changes that Quorate has not followed yet.
const toDo = "open:"

// answers has the answers of a document: by the title of the section, and in it by the name of the change.
type answers map[string]map[string]string

// of returns the answer of a change, or open.
func (a answers) of(s section, c change) string { return cmp.Or(a[s.title][normalized(c.name)], open) }

// shared has the answers that several changes of a section have: by the title of the section, and in it by the label
// that is the answer of these changes.
type shared map[string]map[string]string

// full returns an answer, or the shared answer of which it is the label.
func (s shared) full(title, answer string) string { return cmp.Or(s[title][answer], answer) }

// write writes the document: a table for each section with changes, with the answers of an earlier document. Below a
// table are the shared answers whose labels the table has. The introduction names the sections without changes.
func write(
	out io.Writer, before, after string, sections map[string][]change, earlier answers, shared shared,
) error {
	w := bufio.NewWriter(out)
	unanswered, unfinished, total := 0, 0, 0
	var unchanged []string
	for _, s := range sectionOrder {
		if len(sections[s.id]) == 0 {
			unchanged = append(unchanged, s.title)
		}
		for _, c := range sections[s.id] {
			total++
			switch answer := shared.full(s.title, earlier.of(s, c)); {
			case answer == open:
				unanswered++
			case strings.HasPrefix(answer, toDo):
				unfinished++
			}
		}
	}
	fmt.Fprintf(w, "# From Kubernetes %s to %s\n\n", before, after)
	fmt.Fprintf(w, "Output of `go run ./release/minor %s %s`: %d changes, %d without an answer, %d to be done.\n", before,
		after, total, unanswered, unfinished)
	if len(unchanged) > 0 {
		fmt.Fprintf(w, "Without changes: %s.\n", strings.Join(unchanged, ", "))
	}
	for _, s := range sectionOrder {
		if len(sections[s.id]) == 0 {
			continue
		}
		fmt.Fprintf(w, "\n## %s\n\n%s\n\n| name | %s | %s | answer |\n| --- | --- | --- | --- |\n", s.title, s.advice,
			before, after)
		labels := map[string]bool{}
		for _, c := range sections[s.id] {
			answer := earlier.of(s, c)
			labels[answer] = true
			fmt.Fprintf(w, "| `%s` | %s | %s | %s |\n", cell(c.name), code(c.before), code(c.after), answer)
		}
		writeShared(w, shared[s.title], labels)
	}
	return w.Flush()
}

// writeShared writes the shared answers of a section whose labels are in its table.
func writeShared(w io.Writer, answers map[string]string, labels map[string]bool) {
	first := true
	for _, label := range slices.Sorted(maps.Keys(answers)) {
		if !labels[label] {
			continue
		}
		if first {
			fmt.Fprintln(w)
			first = false
		}
		fmt.Fprintf(w, "- **%s**: %s\n", label, answers[label])
	}
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
func readAnswers(path string) (answers, shared, error) {
	if path == "" {
		return nil, nil, nil
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	found, groups := parseAnswers(string(text))
	return found, groups, err
}

func parseAnswers(document string) (answers, shared) {
	found, groups, title := answers{}, shared{}, ""
	for line := range strings.Lines(document) {
		line = strings.TrimSpace(line)
		if heading, ok := strings.CutPrefix(line, "## "); ok {
			title = heading
			found[title], groups[title] = map[string]string{}, map[string]string{}
			continue
		}
		if title == "" {
			continue
		}
		if name, answer, ok := parseRow(line); ok {
			found[title][name] = answer
		} else if label, answer, ok := parseShared(line); ok {
			groups[title][label] = answer
		}
	}
	return found, groups
}

// parseShared returns the label and the text of a shared answer.
func parseShared(line string) (label, answer string, ok bool) {
	item, isItem := strings.CutPrefix(line, "- **")
	label, answer, ended := strings.Cut(item, "**: ")
	return label, answer, isItem && ended
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
