package main

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// TestDocumentsAreCurrent compares the documents in docs/reference with those that the program generates from the
// same sources.
func TestDocumentsAreCurrent(t *testing.T) {
	t.Setenv("QUORATE_IMAGE", "") // commands unsets it
	t.Setenv("POD_NAMESPACE", "")
	directory := t.TempDir()
	for _, name := range []string{"config", "operator"} {
		target, err := filepath.Abs(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, filepath.Join(directory, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := run(directory); err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(generators)) {
		got, err := os.ReadFile(filepath.Join(directory, "docs/reference", name))
		if err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile(filepath.Join(root, "docs/reference", name))
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != string(want) {
			t.Errorf("docs/reference/%s is not current; run make generate", name)
		}
	}
}

// TestRunWithoutSources checks that the program fails outside of the repository, and names a document.
func TestRunWithoutSources(t *testing.T) {
	t.Setenv("QUORATE_IMAGE", "")
	t.Setenv("POD_NAMESPACE", "")
	if err := run(t.TempDir()); err == nil || !strings.Contains(err.Error(), ".md: open ") {
		t.Errorf("got the error %v", err)
	}
}

// writeAPI writes the files of operator/api/v1alpha1 that the program reads: reasons.go and status.go with
// declarations, and the others empty. It returns the root of the repository.
func writeAPI(t *testing.T, reasons, status string) string {
	t.Helper()
	directory := t.TempDir()
	folder := filepath.Join(directory, "operator/api/v1alpha1")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	files := map[string]string{"reasons_others.go": "", "reasons_events.go": ""}
	for name := range conditionFiles {
		files[name] = ""
	}
	files["reasons.go"], files["status.go"] = reasons, status
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(folder, name), []byte("package v1alpha1\n\n"+text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return directory
}

// TestConditions generates a document from two reasons: a reason of conditions only, and a reason of conditions and
// events.
func TestConditions(t *testing.T) {
	const reasons = `// Reasons.
const (
	// ReasonReady: All members
	// are ready.
	//
	// Of: Available=True.
	ReasonReady = "Ready"

	// ReasonLost: A volume is lost.
	//
	// Do: Restore a backup.
	//
	// Of: Available=Unknown, Available=False.
	//
	// Event: Warning; ApiServerCluster, Pod.
	ReasonLost = "Lost"
)

type ignored struct{}
`
	const status = `// Available is the condition type that is true while clients
// can write.
const Available = "Available"
`
	got, err := conditions(writeAPI(t, reasons, status))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"\n## Conditions of ApiServerCluster\n\n### ApiServerCluster Available\n\n" +
			"`Available` is true while clients can write.\n\n" +
			"| status | reason | meaning | what to do |\n| --- | --- | --- | --- |\n" +
			"| True | `Ready` | All members are ready. |  |\n" +
			"| False | `Lost` | A volume is lost. | Restore a backup. |\n" +
			"| Unknown | `Lost` | A volume is lost. | Restore a backup. |\n" +
			"\n## Conditions of ApiServerBackup\n",
		"\n## Events\n\nIn addition to the transitions of conditions:\n\n" +
			"| reason | type, objects | meaning | what to do |\n| --- | --- | --- | --- |\n" +
			"| `Lost` | Warning; ApiServerCluster, Pod | A volume is lost. | Restore a backup. |\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	}
	if strings.Count(got, "`Ready`") != 1 {
		t.Errorf("a reason without an event is in another table:\n%s", got)
	}
}

// TestInvalidReasons checks the errors for comments that the program does not understand, so that no reason is missing
// in the document.
func TestInvalidReasons(t *testing.T) {
	const status = "// Available is the condition type.\nconst Available = \"Available\"\n"
	const comment = "// ReasonReady: Ready.\n//\n// Of: Available=True.\n"
	for name, test := range map[string]struct{ reasons, want string }{
		"another name":      {comment + `const ReasonReady = "Prepared"`, "the name is Reason and the value"},
		"no literal":        {comment + `const ReasonReady = prefix + "Ready"`, "ReasonReady is no literal"},
		"another beginning": {"// Ready.\n" + `const ReasonReady = "Ready"`, `has the paragraph "Ready."`},
		"another paragraph": {
			comment + "//\n// Then: Wait.\n" + `const ReasonReady = "Ready"`, `has the paragraph "Then: Wait."`,
		},
		"no condition": {
			"// ReasonReady: Ready.\n" + `const ReasonReady = "Ready"`, "has neither Of nor Event",
		},
		"no comment of the condition": {
			strings.Replace(comment, "Available", "Other", 1) + `const ReasonReady = "Ready"`,
			"the condition Other of ApiServerCluster has no comment",
		},
		"no Go": {"const", "reasons.go:"},
	} {
		if _, err := conditions(writeAPI(t, test.reasons, status)); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got the error %v, want %q", name, err, test.want)
		}
	}
}

// TestDescribe generates the section of a command with flags of all kinds, and of its subcommand.
func TestDescribe(t *testing.T) {
	command := &cobra.Command{Use: "quorate test NAME", Short: "Test a cluster", Run: func(*cobra.Command, []string) {}}
	command.Flags().StringP("name", "n", "demo", "`Name` of <one> | two.")
	command.Flags().String("text", "false", "A text with a default.")
	command.Flags().Bool("all", false, "All.")
	command.Flags().StringSlice("list", nil, "Values.")
	command.Flags().String("secret", "", "Hidden.")
	command.PersistentFlags().Duration("timeout", 0, "Time.")
	if err := command.Flags().MarkHidden("secret"); err != nil {
		t.Fatal(err)
	}
	child := &cobra.Command{
		Use: "wait --for CONDITION", Long: "Wait until it ends.\n\nIt may take long", Run: func(*cobra.Command, []string) {},
	}
	command.AddCommand(child, &cobra.Command{Use: "internal", Hidden: true, Run: func(*cobra.Command, []string) {}})
	var out strings.Builder
	describe(&out, command)
	const want = "\n## `quorate test NAME`\n\nTest a cluster.\n\n" +
		"| flag | default | what it does |\n| --- | --- | --- |\n" +
		"| `--all` |  | All. |\n" +
		"| `--list` |  | Values. |\n" +
		"| `--name`, `-n` | `demo` | Name of \\<one> \\| two. |\n" +
		"| `--text` | `false` | A text with a default. |\n" +
		"| `--timeout` |  | Time. |\n" +
		"\n### `quorate wait`\n\nWait until it ends.\n\nIt may take long.\n"
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", &out, want)
	}
}

// TestFieldsOfSchemas generates the rows of fields of all kinds of types.
func TestFieldsOfSchemas(t *testing.T) {
	text := apiextensionsv1.JSONSchemaProps{Type: "string"}
	reference := apiextensionsv1.JSONSchemaProps{Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{
		"name": {Type: "string", Description: "Name of the referent."},
	}}
	named := apiextensionsv1.JSONSchemaProps{Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{
		"size": {Type: "integer", Default: &apiextensionsv1.JSON{Raw: []byte("3")}},
	}}
	schema := apiextensionsv1.JSONSchemaProps{
		Required: []string{"names"}, Properties: map[string]apiextensionsv1.JSONSchemaProps{
			"names":     {Type: "array", Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &text}},
			"disks":     {Type: "array", Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &named}},
			"labels":    {Type: "object", AdditionalProperties: &apiextensionsv1.JSONSchemaPropsOrBool{Schema: &text}},
			"port":      {XIntOrString: true, Description: "A port | a\nname."},
			"since":     {Type: "string", Format: "date-time"},
			"count":     {Type: "integer", Format: "int32"},
			"mode":      {Type: "string", Default: &apiextensionsv1.JSON{Raw: []byte(`"fast"`)}},
			"broken":    {Type: "string", Default: &apiextensionsv1.JSON{Raw: []byte(`"`)}},
			"secretRef": reference,
			"selector":  named,
		},
	}
	var out strings.Builder
	writeFields(&out, "spec", schema)
	const want = "| `spec.broken` | string |  |  |\n" +
		"| `spec.count` | integer |  |  |\n" +
		"| `spec.disks` | list of object |  |  |\n" +
		"| `spec.disks[].size` | integer | `3` |  |\n" +
		"| `spec.labels` | map of string |  |  |\n" +
		"| `spec.mode` | string | `fast` |  |\n" +
		"| `spec.names` | list of string, required |  |  |\n" +
		"| `spec.port` | integer or string |  | A port \\| a name. |\n" +
		"| `spec.secretRef` | object |  |  |\n" +
		"| `spec.selector` | object |  |  |\n" +
		"| `spec.since` | date-time |  |  |\n"
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", &out, want)
	}
}
