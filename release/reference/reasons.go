package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// reason documents a reason of conditions and events, as the comment of its constant describes it.
type reason struct {
	value   string
	meaning string
	todo    string
	of      []state // conditions that can have the reason, with their status
	event   string  // event type and the kinds of its objects; empty if only transitions of conditions have the reason
}

// state identifies a condition type of a kind of object, and a status of the condition. Keys of the map that meanings
// returns have no status.
type state struct{ kind, condition, status string }

const defaultKind = "ApiServerCluster"

// readReasons parses the constants in operator/api/v1alpha1/reasons*.go.
func readReasons(root string) (reasons []reason, err error) {
	for _, name := range []string{"reasons.go", "reasons_others.go", "reasons_events.go"} {
		found, err := readFile(filepath.Join(root, "operator/api/v1alpha1", name))
		if err != nil {
			return nil, err
		}
		reasons = append(reasons, found...)
	}
	return reasons, nil
}

func readFile(file string) ([]reason, error) {
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	var reasons []reason
	for _, declaration := range parsed.Decls {
		group, ok := declaration.(*ast.GenDecl)
		if !ok || group.Tok != token.CONST {
			continue
		}
		for _, spec := range group.Specs {
			value, ok := spec.(*ast.ValueSpec)
			if !ok {
				continue
			}
			r, err := parseReason(value, cmp.Or(value.Doc, group.Doc))
			if err != nil {
				return nil, err
			}
			reasons = append(reasons, r)
		}
	}
	return reasons, nil
}

func parseReason(spec *ast.ValueSpec, doc *ast.CommentGroup) (r reason, err error) {
	name := spec.Names[0].Name
	literal, ok := spec.Values[0].(*ast.BasicLit)
	if !ok {
		return r, fmt.Errorf("%s is no literal", name)
	}
	if r.value, err = strconv.Unquote(literal.Value); err != nil || name != "Reason"+r.value {
		return r, fmt.Errorf("%s is %s; the name is Reason and the value", name, literal.Value)
	}
	for i, paragraph := range strings.Split(strings.TrimSpace(doc.Text()), "\n\n") {
		text := strings.Join(strings.Fields(paragraph), " ")
		tag, rest, _ := strings.Cut(text, ": ")
		switch {
		case i == 0 && tag == name:
			r.meaning = rest
		case tag == "Do":
			r.todo = rest
		case tag == "Of":
			r.of = parseStates(rest)
		case tag == "Event":
			r.event = strings.TrimSuffix(rest, ".")
		default:
			return r, fmt.Errorf("the comment of %s has the paragraph %q", name, text)
		}
	}
	if r.of == nil && r.event == "" {
		return r, fmt.Errorf("the comment of %s has neither Of nor Event", name)
	}
	return r, nil
}

// parseStates parses the states in the paragraph "Of", such as "Available=False, ApiServerBackup Complete=True.". A
// condition without a kind belongs to defaultKind.
func parseStates(text string) []state {
	var states []state
	for _, part := range strings.Split(strings.TrimSuffix(text, "."), ", ") {
		kind, rest, ok := strings.Cut(part, " ")
		if !ok {
			kind, rest = defaultKind, part
		}
		condition, status, _ := strings.Cut(rest, "=")
		states = append(states, state{kind, condition, status})
	}
	return states
}

// conditionFiles maps the files in operator/api/v1alpha1 that declare condition types to the kinds of the conditions.
var conditionFiles = map[string]string{
	"status.go": defaultKind, "recovery.go": defaultKind, "restore.go": defaultKind, "space.go": defaultKind,
	"companions.go": defaultKind, "deletion.go": defaultKind,
	"schedule.go": "ApiServerBackupSchedule", "backup.go": "ApiServerBackup", "kubeconfig.go": "ApiServerKubeconfig",
}

// constants returns the comments of a file's string constants without the name of the constant, by the value of the
// constant.
func constants(file string) (map[string]string, error) {
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	found := map[string]string{}
	for _, declaration := range parsed.Decls {
		group, ok := declaration.(*ast.GenDecl)
		if !ok || group.Tok != token.CONST {
			continue
		}
		for _, spec := range group.Specs {
			value, ok := spec.(*ast.ValueSpec)
			if !ok || len(value.Values) == 0 {
				continue
			}
			if literal, ok := value.Values[0].(*ast.BasicLit); ok && literal.Kind == token.STRING {
				doc := cmp.Or(value.Doc, group.Doc)
				found[strings.Trim(literal.Value, `"`)] = strings.Join(strings.Fields(strings.TrimPrefix(doc.Text(),
					value.Names[0].Name)), " ")
			}
		}
	}
	return found, nil
}

// meanings returns the descriptions of the condition types of all kinds. BackupReady of ApiServerCluster has the
// description of BackupReady of ApiServerBackupSchedule.
func meanings(root string) (map[state]string, error) {
	found := map[state]string{}
	for file, kind := range conditionFiles {
		all, err := constants(filepath.Join(root, "operator/api/v1alpha1", file))
		if err != nil {
			return nil, err
		}
		for name, text := range all {
			found[state{kind: kind, condition: name}] = strings.TrimPrefix(text, "is the condition type that ")
		}
	}
	backupReady := state{kind: "ApiServerBackupSchedule", condition: "BackupReady"}
	found[state{kind: defaultKind, condition: "BackupReady"}] = found[backupReady]
	return found, nil
}

// conditions generates conditions.md.
func conditions(root string) (string, error) {
	reasons, err := readReasons(root)
	if err != nil {
		return "", err
	}
	comments, err := meanings(root)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	out.WriteString("# Conditions and events\n\n" + generated +
		"The operator also records each transition of a condition as an event with the reason of the condition. Messages " +
		"name the objects and the cause. Reasons are stable, so you can use them in alerts.\n\nIn a cluster that needs no " +
		"attention, the conditions `Degraded`, `Progressing`, `CredentialsRotating` and `Paused` are false or absent, and " +
		"all others are true.\n")
	for _, kind := range []string{defaultKind, "ApiServerBackup", "ApiServerBackupSchedule", "ApiServerKubeconfig"} {
		fmt.Fprintf(&out, "\n## Conditions of %s\n", kind)
		for _, name := range conditionNames(reasons, kind) {
			meaning := comments[state{kind: kind, condition: name}]
			if meaning == "" {
				return "", fmt.Errorf("the condition %s of %s has no comment", name, kind)
			}
			fmt.Fprintf(&out,
				"\n### %s %s\n\n`%s` %s\n\n| status | reason | meaning | what to do |\n| --- | --- | --- | --- |\n", kind,
				name, name, meaning)
			writeStates(&out, reasons, kind, name)
		}
	}
	out.WriteString("\n## Events\n\nIn addition to the transitions of conditions:\n\n| reason | type, objects | meaning " +
		"| what to do |\n| --- | --- | --- | --- |\n")
	for _, r := range reasons {
		if r.event != "" {
			fmt.Fprintf(&out, "| `%s` | %s | %s | %s |\n", r.value, r.event, r.meaning, r.todo)
		}
	}
	return out.String(), nil
}

func conditionNames(reasons []reason, kind string) []string {
	var names []string
	for _, r := range reasons {
		for _, s := range r.of {
			if s.kind == kind && !slices.Contains(names, s.condition) {
				names = append(names, s.condition)
			}
		}
	}
	slices.Sort(names)
	return names
}

func writeStates(out *strings.Builder, reasons []reason, kind, name string) {
	for _, status := range []string{"True", "False", "Unknown"} {
		for _, r := range reasons {
			if slices.Contains(r.of, state{kind, name, status}) {
				fmt.Fprintf(out, "| %s | `%s` | %s | %s |\n", status, r.value, r.meaning, r.todo)
			}
		}
	}
	if name == "CredentialsRotating" {
		out.WriteString("| True | `TrustBoth`, `Reissue`, `DropOld` | The stage of the replacement " +
			"([certificates.md](../certificates.md)). | |\n")
	}
}
