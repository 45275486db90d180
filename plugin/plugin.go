// Package plugin implements `kubectl quorate`, which shows the state of ApiServerClusters and performs the tasks of
// their administrators. kubectl runs it through a link named kubectl-quorate.
package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"golang.org/x/term"
	"k8s.io/klog/v2"

	"quorate.dev/terminal"
)

// Exit codes, an interface for scripts. 0 is success.
const (
	ExitError    = 1 // an invalid argument, no connection or no permission
	ExitNegative = 2 // the cluster is not healthy, or the operation has failed
	ExitTimeout  = 3 // the operation is not finished
)

// codeError is an error that determines the exit code of the process.
type codeError struct {
	error
	code int
}

// ExitCode returns the exit code of the process.
func (e *codeError) ExitCode() int { return e.code }

func (e *codeError) Unwrap() error { return e.error }

func negative(format string, args ...any) error {
	return &codeError{fmt.Errorf(format, args...), ExitNegative}
}

// streams are the inputs and outputs of a command.
type streams struct {
	in       io.Reader
	out, err *terminal.Writer
	terminal bool       // err is a terminal, on which progress is displayed
	asks     bool       // in is a terminal, from which confirmations are read
	width    func() int // columns of the terminal; 0: unknown
}

// Run runs the command `kubectl quorate`.
func Run(ctx context.Context, args []string) error {
	klog.SetLogger(logr.Discard()) // client-go logs the ends of streams, which commands report themselves
	s := streams{in: os.Stdin, out: terminal.Stdout(), err: terminal.Stderr(), asks: term.IsTerminal(int(os.Stdin.Fd()))}
	s.terminal, s.width = s.err.IsTerminal(), s.err.Width
	return run(ctx, s, args)
}

// Complete runs the program kubectl_complete-quorate, with which kubectl completes the arguments of `kubectl quorate`.
func Complete(ctx context.Context, args []string) error {
	return Run(ctx, append([]string{cobra.ShellCompRequestCmd}, args...))
}

// Command returns the command `kubectl quorate` for the generated reference of flags.
func Command() *cobra.Command {
	discard := terminal.NewWriter(io.Discard)
	return newCommand(streams{out: discard, err: discard})
}

func run(ctx context.Context, s streams, args []string) error {
	command := newCommand(s)
	command.SetArgs(args)
	err := command.ExecuteContext(ctx)
	if coded := (*codeError)(nil); err != nil && errors.Is(err, context.DeadlineExceeded) && !errors.As(err, &coded) {
		return &codeError{err, ExitTimeout}
	}
	return err
}

func newCommand(s streams) *cobra.Command {
	root := &cobra.Command{
		Use:         "kubectl-quorate",
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl quorate"},
		Short:       "Inspect and operate ApiServerClusters",
		Long: "Inspect and operate ApiServerClusters through the API server of the hosting cluster.\n\n" +
			"Exit codes: 0 success; 1 an error; 2 the cluster is not healthy, or the operation failed; 3 a timeout.",
		SilenceUsage: true, SilenceErrors: true,
	}
	root.SetOut(s.out)
	root.SetErr(s.err)
	t := &tool{streams: s, now: time.Now}
	t.connectionFlags(root)
	root.AddCommand(t.statusCommand(), t.topCommand(), t.waitCommand(), t.logsCommand(),
		t.kubeconfigCommand(), t.forwardCommand(),
		t.backupCommand(), t.restoreCommand(), t.recoverCommand(), t.rotateCommand())
	return root
}
