package style

import (
	"bytes"
	"go/scanner"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// maxLine is the number of characters that a line of Go may have. A tab counts as one.
const maxLine = 120

// unbreakable matches comments that must be on one line: directives, markers, preformatted text, and text with a word,
// such as a URL, that takes most of a line.
var unbreakable = regexp.MustCompile(`^//(go:|nolint|\t| \+)|\S{80}`)

// TestLineLength checks the length of lines outside of strings that cannot be broken: raw strings, and words of 80
// characters.
func TestLineLength(t *testing.T) {
	all, err := sources()
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range all {
		data, err := os.ReadFile(filepath.Join(root, file.name))
		if err != nil {
			t.Fatal(err)
		}
		exempt := unbreakableLines(data)
		for i, line := range bytes.Split(data, []byte("\n")) {
			if length := utf8.RuneCount(line); length > maxLine && !exempt[i+1] {
				t.Errorf("%s:%d has %d characters, more than %d", file.name, i+1, length, maxLine)
			}
		}
	}
}

// unbreakableLines returns the numbers of the lines with text that cannot be broken.
func unbreakableLines(data []byte) map[int]bool {
	const long = 80
	files := token.NewFileSet()
	file := files.AddFile("", files.Base(), len(data))
	var s scanner.Scanner
	s.Init(file, data, nil, scanner.ScanComments)
	exempt := map[int]bool{}
	for {
		at, kind, text := s.Scan()
		line := file.Line(at)
		switch {
		case kind == token.EOF:
			return exempt
		case kind == token.STRING && text[0] == '`' && len(text) > long:
			for i := range strings.Count(text, "\n") + 1 {
				exempt[line+i] = true
			}
		case kind == token.STRING && len(text) > long && !strings.Contains(text, " "):
			exempt[line] = true
		case kind == token.COMMENT && unbreakable.MatchString(text):
			exempt[line] = true
		}
	}
}
