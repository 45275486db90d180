package compatibility

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/config"
	"quorate.dev/test/upstream"
)

var update = flag.Bool("update", false, "write docs/flags.md")

const flagTable = "../../docs/flags.md"

// TestFlagTable compares docs/flags.md with the flags of both servers. With -update, it writes the document.
func TestFlagTable(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	binary, err := upstream.Binary(t.Context(), "kube-apiserver")
	if err != nil {
		t.Fatal(err)
	}
	help, err := exec.CommandContext(t.Context(), binary, "--help").Output()
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	writeFlagTable(t, &got, string(help))
	if *update {
		if err := os.WriteFile(flagTable, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(flagTable)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("go test ./test/compatibility -run TestFlagTable -update rewrites the file (- file, + flags)\n%s", diff)
	}
}

// hidden are deprecated flags that kube-apiserver accepts but does not list.
var hidden = []string{
	"apiserver-count", "audit-webhook-batch-initial-backoff", "kubelet-port", "kubelet-read-only-port",
}

var (
	flagOfHelp = regexp.MustCompile(`(?m)^ {2,6}(?:-\w, )?--([\w-]+)`)
	gateOfHelp = regexp.MustCompile(`kube:(\w+)=true\|false \((\w+) - default=(\w+)\)`)
)

func writeFlagTable(t *testing.T, w io.Writer, help string) {
	theirs := map[string]bool{}
	for _, match := range flagOfHelp.FindAllStringSubmatch(help, -1) {
		theirs[match[1]] = true
	}
	fmt.Fprint(w, "# Flags and feature gates of `quorate apiserver`\n\n"+
		"Written by `go test ./test/compatibility -run TestFlagTable -update` from the flags of this server and of "+
		"kube-apiserver. Flags have the same meaning as in kube-apiserver; other differences are listed in "+
		"[compatibility.md](compatibility.md).\n\n## Flags\n\n| flag | default | | what it does |\n| --- | --- | --- | --- "+
		"|\n")
	ours := config.Default().Flags()
	ours.VisitAll(func(f *pflag.Flag) {
		note := ""
		switch status := config.FlagStatus(f.Name); {
		case status != "":
			note = status
		case slices.Contains(hidden, f.Name):
		case !theirs[f.Name]:
			note = "only here"
		}
		fmt.Fprintf(w, "| `--%s` | %s | %s | %s |\n", f.Name, code(f.DefValue), note, cell(f.Usage))
		delete(theirs, f.Name)
	})
	for _, kubernetesOnly := range []string{"help", "version"} {
		delete(theirs, kubernetesOnly)
	}
	for name := range theirs {
		t.Errorf("--%s of kube-apiserver is unknown", name)
	}
	fmt.Fprint(w, "\n## Feature gates\n\nGates have kube-apiserver's stages and defaults. A gate that concerns other "+
		"components, such as the kubelet, is accepted.\n\n| gate | stage | default | |\n| --- | --- | --- | --- |\n")
	gates := gateOfHelp.FindAllStringSubmatch(help, -1)
	slices.SortFunc(gates, func(a, b []string) int { return strings.Compare(a[1], b[1]) })
	for _, gate := range gates {
		fmt.Fprintf(w, "| `%s` | %s | %s | %s |\n", gate[1], strings.ToLower(gate[2]), gate[3], builtin.GateStatus(gate[1]))
	}
}

func code(value string) string {
	if value == "" || value == "[]" {
		return ""
	}
	return "`" + value + "`"
}

// cell escapes a text for a cell of a table.
func cell(text string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "|", `\|`)
}
