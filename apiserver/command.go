package apiserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"

	"github.com/spf13/pflag"
	"k8s.io/klog/v2"

	"quorate.dev/apiserver/config"
)

// Run is `quorate apiserver`: it serves until ctx ends, then stops in order.
func Run(ctx context.Context, args []string) error {
	c := config.Default()
	flags := c.Flags()
	flags.Usage = func() {}
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			help(os.Stdout, flags)
			return nil
		}
		return err
	}
	if err := checkArguments(flags.Args()); err != nil {
		return err
	}
	if c.API.Version == "true" {
		fmt.Println("Kubernetes", Version("").GitVersion)
		return nil
	}
	if err := errors.Join(c.Validate(), c.CheckFiles()); err != nil {
		return err
	}
	logger, level := newLogger(os.Stderr, c.Logging)
	klog.SetLogger(logger)
	if ignored := c.Unimplemented(); len(ignored) > 0 {
		logger.Info("These flags are not implemented yet and have no effect", "flags", ignored)
	}
	if os.Getenv("GOGC") == "" {
		// Most of what is alive are encodings that live long: half as much garbage again before a collection keeps
		// the process small and costs little, since there are few pointers to follow.
		debug.SetGCPercent(50)
	}
	server, err := New(ctx, c, logger, level)
	if err != nil {
		return err
	}
	return server.Run(ctx)
}

// checkArguments refuses arguments that are no flags. Empty ones, which an unset variable of a manifest leaves behind,
// are ignored as in kube-apiserver.
func checkArguments(arguments []string) error {
	if slices.ContainsFunc(arguments, func(argument string) bool { return argument != "" }) {
		return fmt.Errorf("%q does not take any arguments, got %q", "quorate apiserver", arguments)
	}
	return nil
}

func help(w io.Writer, flags *pflag.FlagSet) {
	fmt.Fprintln(w, "quorate apiserver runs one replica of a Kubernetes API server. Its flags have kube-apiserver's names and meanings;")
	fmt.Fprintln(w, "those that begin with --etcd- and are not kube-apiserver's run a member of an etcd cluster in the same process.")
	fmt.Fprintln(w)
	fmt.Fprint(w, flags.FlagUsages())
}
