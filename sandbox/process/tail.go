package process

import (
	"io"
	"os"
	"strings"
	"unicode"
)

// Tail returns the last lines of a log, at most size bytes, or "" if the log cannot be read. It returns the end of the
// last line if that line is longer.
func Tail(file string, size int64) string {
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	offset := max(0, info.Size()-size)
	content, err := io.ReadAll(io.NewSectionReader(f, offset, size))
	if err != nil {
		return ""
	}
	text := strings.TrimRightFunc(string(content), unicode.IsSpace)
	if _, rest, cut := strings.Cut(text, "\n"); offset > 0 && cut {
		text = rest
	}
	return strings.TrimSpace(text)
}
