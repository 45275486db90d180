package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"k8s.io/utils/clock"

	"quorate.dev/plugin"
	"quorate.dev/sandbox/logs"
)

func statusCommand(s *settings) *cobra.Command {
	var format string
	command := &cobra.Command{
		Use: "status [CLUSTER]", Short: "Print the state of the running sandbox and its clusters",
		Args: cobra.MaximumNArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			h, err := existingHome(s.directory)
			if err != nil {
				return err
			}
			if !h.running() {
				return h.errStopped()
			}
			if format == "" {
				fmt.Fprintf(command.OutOrStdout(), "Sandbox in %s, status page %s\n\n", h.shown, h.pageURL())
			}
			arguments := []string{"status", "--kubeconfig", h.file("management.kubeconfig"), "--output", format}
			return plugin.Run(command.Context(), append(arguments, args...))
		},
	}
	command.Flags().StringVarP(&format, "output", "o", "", "Output format: json or yaml; default: text")
	return command
}

func logsCommand(s *settings) *cobra.Command {
	var follow bool
	var tail int64
	command := &cobra.Command{
		Use: "logs [NAME...]", Short: "Print the logs of the operator, the management API server, the node or pods",
		Long: "Print the logs of the operator, the management API server (management), the node (sandbox) or pods (by " +
			"name).\nDefault: operator. Also works while the sandbox is stopped.",
		RunE: func(command *cobra.Command, args []string) error {
			h, err := existingHome(s.directory)
			if err != nil {
				return err
			}
			if len(args) == 0 {
				args = []string{"operator"}
			}
			return h.printLogs(command.Context(), command.OutOrStdout(), args, logs.Options{Tail: &tail, Follow: follow})
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			h, err := existingHome(s.directory)
			if err != nil {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return h.logNames(), cobra.ShellCompDirectiveNoFileComp
		},
	}
	command.Flags().BoolVarP(&follow, "follow", "f", false, "Follow the logs")
	command.Flags().Int64Var(&tail, "tail", 50, "Last lines of each log to print")
	return command
}

// logFiles returns the log files by name: operator, management, sandbox, and for the containers of a pod the name of
// the pod, with its namespace unless that is the default one.
func (h *home) logFiles() map[string][]string {
	files := map[string][]string{}
	root := h.file("logs")
	_ = filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		relative, relErr := filepath.Rel(root, file)
		if err != nil || relErr != nil || entry.IsDir() || filepath.Ext(file) != ".log" {
			return nil //nolint:nilerr // unreadable files are not listed
		}
		name := strings.TrimSuffix(relative, ".log")
		if parts := strings.Split(relative, string(filepath.Separator)); len(parts) == 3 { // NAMESPACE/POD/CONTAINER.log
			name = strings.TrimPrefix(parts[0]+"/"+parts[1], "default/")
		}
		files[name] = append(files[name], file)
		return nil
	})
	return files
}

func (h *home) logNames() []string {
	var names []string
	for name := range h.logFiles() {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// printLogs prints the logs with the given names. With several names, it prefixes each line with the name of its log.
func (h *home) printLogs(ctx context.Context, out io.Writer, names []string, options logs.Options) error {
	all := h.logFiles()
	var (
		mu    sync.Mutex
		group sync.WaitGroup
		errs  = make([]error, len(names))
	)
	for i, name := range names {
		files := all[strings.TrimPrefix(name, "pod/")]
		if len(files) == 0 {
			return fmt.Errorf("there is no log of %s; logs: %s", name, strings.Join(h.logNames(), ", "))
		}
		prefix := ""
		if len(names) > 1 {
			prefix = "[" + name + "] "
		}
		group.Go(func() {
			for _, file := range files {
				errs[i] = errors.Join(errs[i], copyLog(ctx, file, options, &lines{out: out, prefix: prefix, mu: &mu}))
			}
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

func copyLog(ctx context.Context, file string, options logs.Options, out io.Writer) error {
	log, err := logs.Open(file, options)
	if err != nil {
		return err
	}
	defer log.Close()
	return log.Copy(ctx, out, clock.RealClock{})
}

// lines writes whole lines with a prefix, so that lines of concurrently printed logs do not mix.
type lines struct {
	out     io.Writer
	prefix  string
	mu      *sync.Mutex // guards out
	partial string
}

func (l *lines) Write(content []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.partial += string(content)
	for {
		line, rest, found := strings.Cut(l.partial, "\n")
		if !found {
			return len(content), nil
		}
		l.partial = rest
		if _, err := fmt.Fprintln(l.out, l.prefix+line); err != nil {
			return 0, err
		}
	}
}
