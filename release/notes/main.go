// Command notes prints the release notes of a version, from the changelog and the upgrade notes:
//
//	go run ./release/notes [-version 0.1.0]
//
// For a version without a section in the changelog, the notes contain the section Unreleased.
package main

import (
	"cmp"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"quorate.dev/release/manifest"
)

func main() {
	root := flag.String("root", ".", "Directory of the repository.")
	version := flag.String("version", "", "Version. Default: that in the file VERSION.")
	flag.Parse()
	if err := run(os.Stdout, *root, *version); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

// run writes the notes of a version, or of the version in the file VERSION, to out.
func run(out io.Writer, root, version string) error {
	current, err := manifest.Version(root)
	if err != nil {
		return err
	}
	var texts []string
	for _, file := range []string{"CHANGELOG.md", filepath.Join("docs", "upgrades.md")} {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			return err
		}
		texts = append(texts, string(text))
	}
	notes, err := notes(cmp.Or(version, current), texts[0], texts[1])
	if err != nil {
		return err
	}
	_, err = io.WriteString(out, notes)
	return err
}

// notes returns a version's section of the changelog, or else the section Unreleased, and its section of the upgrade
// notes.
func notes(version, changelog, upgrades string) (string, error) {
	changes := section(changelog, "## ", func(heading string) bool { return strings.Contains(heading, "["+version+"]") })
	if changes == "" {
		changes = section(changelog, "## ", func(heading string) bool { return heading == "Unreleased" })
	}
	steps := section(upgrades, "### ", func(heading string) bool { return heading == "To "+version })
	if changes == "" || steps == "" {
		return "", fmt.Errorf("version %s needs a section [%s] or Unreleased in CHANGELOG.md and a section \"To %s\" in "+
			"docs/upgrades.md",
			version, version, version)
	}
	return "# Quorate " + version + "\n\n" + changes + "\n## Upgrading\n\n" + steps, nil
}

// section returns the body of the first section whose heading has the given level, such as "## ", and matches. The
// section ends at the next heading of the same or a higher level. Lines of code blocks, such as comments of a shell,
// are no headings. The result is empty if there is no such section, or if its body is empty.
func section(text, level string, matches func(heading string) bool) string {
	var body strings.Builder
	inside, inCode := false, false
	for line := range strings.Lines(text) {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			inCode = !inCode
		}
		heading, found := strings.CutPrefix(line, level)
		hashes, _, isHeading := strings.Cut(line, " ")
		isHeading = isHeading && !inCode && hashes != "" && strings.Trim(hashes, "#") == ""
		if inside && isHeading && len(hashes) < len(level) {
			break
		}
		if inside {
			body.WriteString(line)
		} else if found && isHeading {
			inside = matches(strings.TrimSpace(heading))
		}
	}
	text = strings.TrimSpace(body.String())
	if text == "" {
		return ""
	}
	return text + "\n"
}
