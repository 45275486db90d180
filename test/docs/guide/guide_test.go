package guide

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const document = "# A\n\n```sh\none\n```\n\n```text output\nNAME  AGE\nx     1d\n```\n\n" +
	"- item\n\n  ```sh long\n  two\n    three\n  ```\n\n## B\n\n```sh not-run=minutes\nfour\n```\n\n" +
	"```yaml apply\napiVersion: v1\nkind: ConfigMap\n```\n\n```yaml file=a/b.yaml\nx: HOST\n```\n\n" +
	"```yaml\napiVersion: quorate.dev/v1alpha1\n```\n\n```yaml\napiVersion: audit.k8s.io/v1\n```\n\n```yaml " +
	"fragment=X\nspec: {}\n```\n"

func TestBlocks(t *testing.T) {
	blocks, err := Blocks("x.md", document)
	if err != nil || len(blocks) != 9 {
		t.Fatalf("%d blocks: %v", len(blocks), err)
	}
	if b := blocks[2]; b.Text != "two\n  three\n" || !b.Long || b.Heading != "A" || b.String() != "x.md:14" {
		t.Errorf("the third block is %+v", b)
	}
	if b := blocks[3]; b.NotRun != "minutes" || b.Heading != "B" {
		t.Errorf("the fourth block is %+v", b)
	}
	for _, wrong := range []string{
		"```\nx\n```\n", "```c\nx\n```\n", "```sh not-run\nx\n```\n", "```sh not-run=lazy\nx\n```\n",
		"```sh output\nx\n```\n", "```sh\nx\n",
	} {
		if _, err := Blocks("x.md", wrong); err == nil {
			t.Errorf("%q has no error", wrong)
		}
	}
}

func TestScript(t *testing.T) {
	blocks, err := Blocks("x.md", document)
	if err != nil {
		t.Fatal(err)
	}
	short := &Script{}
	short.Add(blocks)
	long := &Script{Long: true, DryRun: true, Replace: map[string]string{"HOST": "host"}}
	long.Add(blocks)
	if short.Len() != 3 || long.Len() != 5 {
		t.Errorf("%d and %d blocks, want 3 and 5:\n%s\n%s", short.Len(), long.Len(), short, long)
	}
	for _, want := range []string{
		"three", "kubectl apply --validate=strict -f -", "cat > a/b.yaml", "x: host", "--dry-run=server",
	} {
		if !strings.Contains(long.String(), want) {
			t.Errorf("the script has no %q:\n%s", want, long)
		}
	}
}

func TestCheck(t *testing.T) {
	blocks, err := Blocks("x.md", document)
	if err != nil {
		t.Fatal(err)
	}
	s, directory := &Script{}, t.TempDir()
	s.Add(blocks)
	for printed, want := range map[string]bool{"NAME AGE\nx   7d\n": true, "NAME AGE\ny 7d\n": false} {
		if err := os.WriteFile(filepath.Join(directory, "0"), []byte(printed), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := s.Check(blocks, directory); (err == nil) != want {
			t.Errorf("%q: %v", printed, err)
		}
	}
}

func TestSpans(t *testing.T) {
	const text = "Run `kubectl get pods` or `make x`, not `--flag`.\n\n```sh\n`kubectl hidden x`\n```\n| `quorate a\\|b " +
		"c` |\n"
	found := Spans(text)
	if len(found[1]) != 2 || len(found[4]) != 0 || found[6][0] != "quorate a|b c" {
		t.Errorf("found %v", found)
	}
}
