package apiserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/spf13/pflag"

	"quorate.dev/apiserver/config"
	"quorate.dev/terminal"
)

// Run runs the command `quorate apiserver`. It serves until ctx ends, and then shuts down gracefully.
func Run(ctx context.Context, args []string) error {
	c := config.Default()
	flags := c.Flags()
	flags.Usage = func() {}
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			help(terminal.Stdout(), flags)
			return nil
		}
		return err
	}
	if err := checkArguments(flags.Args()); err != nil {
		return err
	}
	switch c.API.Version {
	case config.PrintVersion:
		fmt.Fprintln(terminal.Stdout(), "Kubernetes", Version(c).GitVersion)
		return nil
	case config.PrintRawVersion:
		fmt.Fprintf(terminal.Stdout(), "%#v\n", Version(c))
		return nil
	}
	var err error
	if c.Member.Record, err = config.ParseMemberRecord(os.Getenv(config.MemberRecordVariable)); err != nil {
		return err
	}
	if err := errors.Join(config.CheckSkew(os.Getenv(config.PreviousVersionVariable)), c.Validate()); err != nil {
		return err
	}
	logger, level := newLogger(os.Stderr, terminal.Stdout(), c.Logging)
	defer level.split.flush()
	go level.split.flushEvery(ctx, c.Logging.FlushFrequency)
	if err := configureProcess(c, logger, level); err != nil {
		return err
	}
	server, err := New(ctx, c, logger, level)
	if err != nil {
		return err
	}
	reportUpstreamPanics(server.panics)
	return server.Run(ctx)
}

// checkArguments returns an error for positional arguments. Like kube-apiserver it ignores empty arguments, which an
// empty variable in a manifest causes.
func checkArguments(arguments []string) error {
	if slices.ContainsFunc(arguments, func(argument string) bool { return argument != "" }) {
		return fmt.Errorf("%q does not take any arguments, got %q", "quorate apiserver", arguments)
	}
	return nil
}

func help(w io.Writer, flags *pflag.FlagSet) {
	fmt.Fprintln(w,
		"quorate apiserver runs one replica of a Kubernetes API server. Its flags have the names and meanings of")
	fmt.Fprintln(w,
		"kube-apiserver's; additional flags that begin with --etcd- configure an etcd member embedded in the process.")
	fmt.Fprintln(w)
	fmt.Fprint(w, flags.FlagUsages())
}
