// Package sandbox implements the command `quorate sandbox`: a management API server, the operator, and a node that runs
// Pods as processes of this binary, all on one Linux machine, without containers and without privileges. test/endtoend
// runs a complete sandbox; the tests here cover its parts.
package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"

	"github.com/spf13/cobra"

	"quorate.dev/sandbox/progress"
	"quorate.dev/terminal"
)

// defaultDirectory is the directory of a sandbox without --dir.
const defaultDirectory = ".quorate"

// settings are the flags of `quorate sandbox`.
type settings struct {
	directory   string
	replicas    int32
	replicasSet bool
	empty       bool
	json        bool
	// images has the program that runs in the pods of an image. Pods of other images run this program.
	images map[string]string
}

// Run runs the command `quorate sandbox` until ctx is done.
func Run(ctx context.Context, args []string) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGHUP) // SIGHUP: the terminal was closed
	defer stop()
	// After the first Ctrl-C, a second one kills all processes.
	impatient := context.AfterFunc(ctx, func() { signal.Reset(os.Interrupt, syscall.SIGTERM) })
	defer impatient()
	command := newCommand()
	command.SetArgs(args)
	return command.ExecuteContext(ctx)
}

// Command returns the command `quorate sandbox` for the generated reference of flags.
func Command() *cobra.Command { return newCommand() }

func newCommand() *cobra.Command {
	s := settings{}
	command := &cobra.Command{
		Use: "sandbox", Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "quorate sandbox"},
		Short: "Run a management API server, the operator and a node on this machine",
		Long: "Run a management API server, the operator and a node that runs Pods as local processes, and create the\n" +
			"ApiServerCluster demo. Ctrl-C stops everything and keeps the data; the next start continues with it.",
		Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(command *cobra.Command, _ []string) error {
			s.replicasSet = command.Flags().Changed("replicas")
			return start(command.Context(), s)
		},
	}
	command.SetOut(terminal.Stdout())
	command.SetErr(terminal.Stderr())
	command.PersistentFlags().StringVar(&s.directory, "dir", defaultDirectory, "Directory for data, logs and kubeconfigs.")
	command.Flags().Int32Var(&s.replicas, "replicas", 3, "API servers of demo.")
	command.Flags().BoolVar(&s.empty, "empty", false, "Do not create the cluster demo.")
	command.Flags().StringToStringVar(&s.images, "image", nil, "NAME=FILE: pods with the image NAME run the program "+
		"FILE, such as another release. Pods with other images run this program. With one image, demo is created with it.")
	command.Flags().BoolVar(&s.json, "json", false, "Print one JSON object per event.")
	command.AddCommand(&cobra.Command{
		Use: "delete", Short: "Delete a stopped sandbox with all of its data", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return remove(s.directory) },
	}, envCommand(&s), shellCommand(&s), statusCommand(&s), logsCommand(&s))
	return command
}

func start(ctx context.Context, s settings) error {
	if runtime.GOOS != "linux" {
		return fmt.Errorf("the sandbox requires Linux, where processes can listen on every address in 127.0.0.0/8; this is "+
			"%s. Use a Linux machine, virtual machine or container", runtime.GOOS)
	}
	if s.replicas < 1 {
		return errors.New("--replicas must be at least 1")
	}
	if err := checkImages(s.images); err != nil {
		return err
	}
	home, err := openHome(s.directory)
	if err != nil {
		return err
	}
	defer home.close()
	sandbox, err := newSandbox(s, home, progress.New(terminal.Stdout(), style(s)))
	if err != nil {
		return err
	}
	return sandbox.run(ctx)
}

// checkImages returns an error if a program of --image cannot be found by its absolute path.
func checkImages(images map[string]string) error {
	for name, file := range images {
		if info, err := os.Stat(file); err != nil {
			return fmt.Errorf("--image %s: %w", name, err)
		} else if !filepath.IsAbs(file) || !info.Mode().IsRegular() {
			return fmt.Errorf("--image %s: %s must be the absolute path of a program", name, file)
		}
	}
	return nil
}

func style(s settings) progress.Style {
	switch {
	case s.json:
		return progress.JSON
	case terminal.Stdout().IsTerminal():
		return progress.Terminal
	}
	return progress.Plain
}
