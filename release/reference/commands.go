package main

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"quorate.dev/apiserver/backup"
	"quorate.dev/apiserver/etcdctl"
	"quorate.dev/extension"
	"quorate.dev/operator"
	"quorate.dev/plugin"
	"quorate.dev/sandbox"
)

// commands generates commands.md.
func commands(string) (string, error) {
	for _, variable := range []string{"QUORATE_IMAGE", "POD_NAMESPACE"} { // the operator's flags have them as defaults
		if err := os.Unsetenv(variable); err != nil {
			return "", err
		}
	}
	var out strings.Builder
	out.WriteString("# Commands and their flags\n\n" + generated +
		"[flags.md](../flags.md) has the flags of `quorate apiserver`, and [exit-codes.md](exit-codes.md) the exit codes. " +
		"`--help` prints the same texts.\n")
	for _, root := range []*cobra.Command{
		operator.Command(), plugin.Command(), sandbox.Command(), etcdctl.Command(), backup.Command(), extension.Command(),
	} {
		describe(&out, root)
	}
	return out.String(), nil
}

// describe writes the sections of a command and its subcommands.
func describe(out *strings.Builder, command *cobra.Command) {
	level := "##"
	if command.HasParent() {
		level = "###"
	}
	// Required flags, which the usage line contains, are listed in the table.
	use, _, _ := strings.Cut(strings.TrimSuffix(command.UseLine(), " [flags]"), " --")
	fmt.Fprintf(out, "\n%s `%s`\n\n", level, use)
	text := strings.TrimSpace(command.Long)
	if text == "" {
		text = command.Short
	}
	if !strings.HasSuffix(text, ".") {
		text += "."
	}
	out.WriteString(text + "\n")
	command.InitDefaultHelpFlag()
	table(out, command.LocalFlags())
	for _, child := range command.Commands() {
		if !child.Hidden && child.Name() != "help" && child.Name() != "completion" {
			describe(out, child)
		}
	}
}

// table writes the table of a command's own flags. The flags that it inherits are in the sections of its parents.
func table(out *strings.Builder, flags *pflag.FlagSet) {
	var rows []string
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		name := "`--" + f.Name + "`"
		if f.Shorthand != "" {
			name += ", `-" + f.Shorthand + "`"
		}
		_, usage := pflag.UnquoteUsage(f)
		standard := ""
		if unset := []string{"", "false", "0", "0s", "[]"}; f.Value.Type() == "string" && f.DefValue != "" ||
			!slices.Contains(unset, f.DefValue) {
			standard = "`" + f.DefValue + "`"
		}
		rows = append(rows, fmt.Sprintf("| %s | %s | %s |\n", name, standard, cell(usage)))
	})
	if len(rows) > 0 {
		out.WriteString("\n| flag | default | what it does |\n| --- | --- | --- |\n" + strings.Join(rows, ""))
	}
}
