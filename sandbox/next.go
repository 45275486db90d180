package sandbox

import (
	"fmt"
	"os"
	"strings"
)

// program returns the command with which the user started this program.
func program() string {
	if executable, err := os.Executable(); err == nil && strings.Contains(executable, "/go-build") {
		return "go run ."
	}
	return os.Args[0]
}

// commandLine returns the command line of a subcommand for the sandbox in a directory.
func commandLine(directory, command string) string {
	line := program() + " sandbox"
	if command != "" {
		line += " " + command
	}
	if directory != defaultDirectory {
		line += " --dir " + directory
	}
	return line
}

// tryNext returns the commands that a new sandbox suggests.
func (h *home) tryNext(empty bool) string {
	var out strings.Builder
	line := func(command, comment string) { fmt.Fprintf(&out, "  %-44s # %s\n", command, comment) }
	fmt.Fprintf(&out, "\nTry next, in a second terminal:\n")
	line(`eval "$(`+commandLine(h.shown, "env")+`)"`, "use the sandbox in this terminal")
	if empty {
		line("kubectl apply -f config/samples/demo.yaml", "create a cluster")
	} else {
		line("kubectl quorate status", "members, certificates, backups, next step")
		line("kubectl --context=demo create namespace team-a", "the API of the cluster demo")
		line("kubectl scale asc/demo --replicas=5", "two members join, one at a time")
		line("kubectl delete pod demo-0", "a member restarts, and the API stays available")
		line("kubectl quorate logs demo -f", "what the API servers log")
	}
	fmt.Fprintf(&out, "Ctrl-C stops everything and keeps the data in %s; `%s` removes a stopped sandbox.", h.shown,
		commandLine(h.shown, "delete"))
	return out.String()
}
