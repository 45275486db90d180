package main

import (
	"os"
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
