// Package guide extracts the fenced blocks of documents, for the tests that execute and validate them. docs/style.md
// describes the words after the fence.
package guide

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
)

// Reasons describes, for each value of not-run, why tests do not execute a block of commands. They validate such
// blocks.
var Reasons = map[string]string{
	"cluster":     "needs a Kubernetes cluster with nodes, or its add-ons",
	"minutes":     "takes minutes, or is a test itself",
	"placeholder": "names a registry, a host, an object or a directory of the reader's",
	"tool":        "needs a program that is not built from this module",
	"foreground":  "runs until it is interrupted",
	"fault":       "repairs a fault, which another test causes",
}

// Languages are the languages that a fence may name.
var Languages = []string{"sh", "yaml", "text", "go", "json", "promql", "ini"}

// Block is a fenced block of a document.
type Block struct {
	Document string
	Line     int // line of the opening fence
	Heading  string
	Language string
	Text     string // content, without the indentation of the fence
	// Long says that only `make guides` executes the commands.
	Long bool
	// NotRun is the key in Reasons for commands that are not executed.
	NotRun string
	// Output says that the block is compared with the output of the commands before it.
	Output bool
	// Apply says that the reader applies the YAML.
	Apply bool
	// File is the name under which the reader stores the block.
	File string
	// Fragment is the kind of object of which the YAML is a part.
	Fragment string
}

func (b Block) String() string { return fmt.Sprintf("%s:%d", b.Document, b.Line) }

var (
	fence = regexp.MustCompile("^( *)(```+)(.*)$")
	title = regexp.MustCompile(`^#{1,6} +(.+?) *$`)
)

// Blocks returns the fenced blocks of a document.
func Blocks(document, text string) ([]Block, error) {
	var blocks []Block
	var block *Block
	var heading, indentation, marks string
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimSuffix(line, "\n")
		match := fence.FindStringSubmatch(line)
		switch {
		case block == nil && match != nil:
			indentation, marks = match[1], match[2]
			block = &Block{Document: document, Line: number, Heading: heading}
			if err := block.parse(match[3]); err != nil {
				return nil, fmt.Errorf("%s:%d: %w", document, number, err)
			}
		case block == nil:
			if match := title.FindStringSubmatch(line); match != nil {
				heading = match[1]
			}
		case match != nil && match[2] == marks && match[3] == "":
			blocks = append(blocks, *block)
			block = nil
		default:
			block.Text += strings.TrimPrefix(line, indentation) + "\n"
		}
	}
	if block != nil {
		return nil, fmt.Errorf("%s is not closed", block)
	}
	return blocks, nil
}

// YAML returns the first YAML block of a document that contains a text.
func YAML(document, contains string) (string, error) {
	text, err := os.ReadFile(document)
	if err != nil {
		return "", err
	}
	blocks, err := Blocks(document, string(text))
	if err != nil {
		return "", err
	}
	for _, block := range blocks {
		if block.Language == "yaml" && strings.Contains(block.Text, contains) {
			return block.Text, nil
		}
	}
	return "", fmt.Errorf("%s has no YAML with %q", document, contains)
}

// parse parses the words after the fence.
func (b *Block) parse(info string) error {
	words := strings.Fields(info)
	if len(words) == 0 || !slices.Contains(Languages, words[0]) {
		return fmt.Errorf("the fence names none of %s", strings.Join(Languages, ", "))
	}
	b.Language = words[0]
	for _, word := range words[1:] {
		name, value, _ := strings.Cut(word, "=")
		if err := b.set(name, value); err != nil {
			return err
		}
	}
	return nil
}

func (b *Block) set(name, value string) error {
	switch b.Language + " " + name {
	case "sh long", "yaml long":
		b.Long = true
	case "sh not-run":
		if Reasons[value] == "" {
			return fmt.Errorf("not-run=%s is not a reason; see docs/style.md", value)
		}
		b.NotRun = value
	case "text output":
		b.Output = true
	case "yaml apply":
		b.Apply = true
	case "yaml file", "json file", "ini file":
		b.File = value
	case "yaml fragment":
		b.Fragment = value
	default:
		return fmt.Errorf("%q has no meaning for %s", name, b.Language)
	}
	return nil
}

// span matches a command in the text of a document.
var span = regexp.MustCompile("`((?:kubectl|quorate|make|go run|go test) [^`\n]+)`")

// Spans returns the commands in the text of a document outside of blocks, by line.
func Spans(text string) map[int][]string {
	found, fenced, number := map[int][]string{}, false, 0
	for line := range strings.Lines(text) {
		number++
		if fence.MatchString(strings.TrimSuffix(line, "\n")) {
			fenced = !fenced
		}
		if fenced {
			continue
		}
		for _, match := range span.FindAllStringSubmatch(line, -1) {
			found[number] = append(found[number], strings.ReplaceAll(match[1], `\|`, "|"))
		}
	}
	return found
}
