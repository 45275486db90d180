package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"quorate.dev/release/manifest"
)

const changelog = `# Changelog

## Unreleased

### Added

- Something later.

## [0.2.0] - 2026-12-01

### Added

- Something new.

## [0.1.0] - 2026-11-01

- The beginning.
`

const upgrades = `# Upgrades

## Notes

### To 0.3.0

Nothing.

### To 0.2.0

Apply it.

## Later
`

func TestNotes(t *testing.T) {
	for version, want := range map[string]string{
		"0.2.0": "# Quorate 0.2.0\n\n### Added\n\n- Something new.\n\n## Upgrading\n\nApply it.\n",
		"0.3.0": "# Quorate 0.3.0\n\n### Added\n\n- Something later.\n\n## Upgrading\n\nNothing.\n",
	} {
		if got, err := notes(version, changelog, upgrades); err != nil || got != want {
			t.Errorf("%s: %v\n%s\nwant\n%s", version, err, got, want)
		}
	}
	if got, err := notes("0.1.0", changelog, upgrades); err == nil {
		t.Errorf("a version without upgrade notes has notes:\n%s", got)
	}
}

// TestSection checks where sections begin and end.
func TestSection(t *testing.T) {
	const code = "### To 1\n\n```sh\n# Apply it.\nkubectl apply\n```\n\nThen wait.\n\n#### Details\n\nMore.\n"
	const want = "```sh\n# Apply it.\nkubectl apply\n```\n\nThen wait.\n\n#### Details\n\nMore.\n"
	for name, test := range map[string]struct{ text, want string }{
		"at the end":                     {code, want},
		"before one of the same level":   {code + "### To 2\n\nOther.\n", want},
		"before one of a higher level":   {code + "## Later\n\nOther.\n", want},
		"after a heading in a block":     {"```md\n### To 1\n```\n\n" + code, want},
		"after one of a lower level":     {"#### To 1\n\nOther.\n" + code, want},
		"only of a lower level":          {"#### To 1\n\nOther.\n", ""},
		"only in a block":                {"```md\n### To 1\n\nOther.\n```\n", ""},
		"without content":                {"### To 1\n\n### To 2\n\nOther.\n", ""},
		"a word that begins with a hash": {"### To 1\n\n#1 is fixed.\n", "#1 is fixed.\n"},
	} {
		got := section(test.text, "### ", func(heading string) bool { return heading == "To 1" })
		if got != test.want {
			t.Errorf("%s: got\n%s\nwant\n%s", name, got, test.want)
		}
	}
}

// TestRun runs the program in a repository with the version 0.2.0.
func TestRun(t *testing.T) {
	files := map[string]string{"VERSION": "0.2.0\n", "CHANGELOG.md": changelog, "docs/upgrades.md": upgrades}
	for name, test := range map[string]struct {
		version, without string
		want             string // beginning of the output
		err              string
	}{
		"the version of the repository": {want: "# Quorate 0.2.0\n"},
		"another version":               {version: "0.3.0", want: "# Quorate 0.3.0\n"},
		"a version without notes": {
			version: "0.4.0", err: `version 0.4.0 needs a section [0.4.0] or Unreleased in CHANGELOG.md and a section "To 0.4.0"`,
		},
		"no VERSION":       {without: "VERSION", err: "VERSION: no such file"},
		"no changelog":     {without: "CHANGELOG.md", err: "CHANGELOG.md: no such file"},
		"no upgrade notes": {without: "docs/upgrades.md", err: "docs/upgrades.md: no such file"},
	} {
		root := t.TempDir()
		if err := os.Mkdir(filepath.Join(root, "docs"), 0o700); err != nil {
			t.Fatal(err)
		}
		for file, text := range files {
			if file == test.without {
				continue
			}
			if err := os.WriteFile(filepath.Join(root, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		var out strings.Builder
		err := run(&out, root, test.version)
		if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
			t.Errorf("%s: got the error %v, want %q", name, err, test.err)
		}
		if !strings.HasPrefix(out.String(), test.want) || test.want == "" && out.Len() > 0 {
			t.Errorf("%s: got %q, want %q", name, out.String(), test.want)
		}
	}
}

// TestThisVersion checks that the version in VERSION can be released.
func TestThisVersion(t *testing.T) {
	const root = "../.."
	version, err := manifest.Version(root)
	if err != nil {
		t.Fatal(err)
	}
	var texts []string
	for _, file := range []string{"/CHANGELOG.md", "/docs/upgrades.md"} {
		text, err := os.ReadFile(root + file)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, string(text))
	}
	got, err := notes(version, texts[0], texts[1])
	if err != nil || !strings.Contains(got, "### Added") {
		t.Errorf("%v\n%s", err, got)
	}
}
