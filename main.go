// Quorate provides highly available Kubernetes API servers as a declared resource. It is one binary; the first argument
// selects the command.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"go.etcd.io/etcd/server/v3/etcdmain"
	"google.golang.org/grpc/grpclog"

	"quorate.dev/apiserver"
	"quorate.dev/apiserver/backup"
	"quorate.dev/apiserver/etcdctl"
	"quorate.dev/extension"
	"quorate.dev/operator"
	"quorate.dev/plugin"
	"quorate.dev/plugin/replica"
	"quorate.dev/sandbox"
	"quorate.dev/sandbox/resolver"
	"quorate.dev/terminal"
)

// command is one command of the binary.
type command struct {
	name    string
	summary string
	run     func(ctx context.Context, args []string) error
}

var commands = []command{
	{"apiserver", "one API server replica, with kube-apiserver's flags", apiserver.Run},
	{"operator", "the controller manager of ApiServerClusters", operator.Run},
	{"etcd", "status, alarms, defragmentation, snapshots and restore of etcd", etcdctl.Run},
	{"backup", "backups in a directory or in S3-compatible storage", backup.Run},
	{"kubectl", "the commands of `kubectl quorate`, which kubectl runs through the link kubectl-quorate", plugin.Run},
	{
		"connect", "connects standard input and output to the API server of this pod, for `kubectl quorate`", replica.Connect,
	},
	{"extension", "moves API groups between a cluster and an extension server", extension.Run},
	{"sandbox", "a management API server, the operator and a node on this machine", sandbox.Run},
	{"version", "the versions of Quorate and of what it serves", printVersion},
}

func main() {
	if filepath.Base(os.Args[0]) == "etcd" {
		// Through a link named etcd the binary is etcd, so that test environments need no other.
		etcdmain.Main(os.Args)
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	resolver.FromEnvironment()
	// gRPC's logger is global to the process. It is silenced because its callers get the same messages as errors.
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard))
	if err := run(ctx, os.Args); err != nil {
		fmt.Fprintln(terminal.Stderr(), "Error:", err)
		os.Exit(exitCode(err))
	}
}

// exitCode returns the exit code of the process after an error.
func exitCode(err error) int {
	var coded interface{ ExitCode() int }
	if errors.As(err, &coded) {
		return coded.ExitCode()
	}
	return 1
}

// links are the commands that links to the binary run.
var links = map[string]func(ctx context.Context, args []string) error{
	"kube-apiserver":           apiserver.Run,
	"kubectl-quorate":          plugin.Run,
	"kubectl_complete-quorate": plugin.Complete,
}

// run runs the selected command, or that of the link through which the binary was started.
func run(ctx context.Context, args []string) error {
	name, rest := filepath.Base(args[0]), args[1:]
	if linked, ok := links[name]; ok {
		return linked(ctx, rest)
	}
	if len(rest) == 0 || rest[0] == "help" || rest[0] == "--help" || rest[0] == "-h" {
		usage(terminal.Stdout())
		return nil
	}
	for _, c := range commands {
		if c.name == rest[0] {
			return c.run(ctx, rest[1:])
		}
	}
	usage(terminal.Stderr())
	return fmt.Errorf("unknown command %q", rest[0])
}

func usage(out io.Writer) {
	fmt.Fprintln(out, "Usage: quorate COMMAND [flags]")
	fmt.Fprintln(out)
	for _, c := range commands {
		fmt.Fprintf(out, "  %-10s %s\n", c.name, c.summary)
	}
	fmt.Fprintln(out)
	fmt.Fprintln(out, "Use \"quorate COMMAND --help\" for the flags of a command.")
}
