package sandbox

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"quorate.dev/sandbox/management"
	"quorate.dev/sandbox/page"
	"quorate.dev/terminal"
)

// binDirectory is the directory, below the directory of the sandbox, with links to this binary.
const binDirectory = "bin"

// links are the names under which kubectl finds the binary as a plugin and its completion.
var links = []string{"quorate", "kubectl-quorate", "kubectl_complete-quorate"}

// linkBinary links the running binary into binDirectory, so that kubectl finds the plugin `kubectl quorate`.
func (h *home) linkBinary() error {
	target, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the binary: %w", err)
	}
	if err := os.MkdirAll(h.file(binDirectory), 0o700); err != nil {
		return err
	}
	for _, name := range links {
		link := h.file(binDirectory, name)
		if current, err := os.Readlink(link); err == nil && current == target {
			continue
		}
		if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := os.Symlink(target, link); err != nil {
			return err
		}
	}
	return nil
}

// existingHome returns the directory of an existing sandbox without locking it.
func existingHome(directory string) (*home, error) {
	path, err := filepath.Abs(directory)
	if err != nil {
		return nil, err
	}
	h := &home{shown: directory, path: path}
	if _, err := os.Stat(h.file(stateFile)); err != nil {
		return nil, fmt.Errorf("%s is not the directory of a sandbox; start one with `%s`, or name its directory with --dir",
			directory, commandLine(directory, ""))
	}
	if err := checkProtected(path); err != nil {
		return nil, err
	}
	return h, h.read()
}

// running reports whether the management API server accepts connections.
func (h *home) running() bool {
	address := netip.AddrPortFrom(h.state.Network.Server(), management.SecurePort)
	connection, err := net.DialTimeout("tcp4", address.String(), 2*time.Second)
	if err != nil {
		return false
	}
	connection.Close()
	return true
}

func (h *home) errStopped() error {
	return fmt.Errorf("the sandbox in %s is not running; start it with `%s`", h.shown, commandLine(h.shown, ""))
}

// pageURL returns the URL of the status page.
func (h *home) pageURL() string {
	return "http://" + netip.AddrPortFrom(h.state.Network.Page(), page.Port).String()
}

// variables returns the environment variables of a terminal that uses the sandbox, given its PATH. The current context
// of kubectl is the management cluster's.
func (h *home) variables(path string) (map[string]string, error) {
	files, err := filepath.Glob(h.file("*.kubeconfig"))
	if err != nil {
		return nil, err
	}
	first := h.file("management.kubeconfig")
	files = slices.DeleteFunc(files, func(file string) bool { return file == first })
	bin := h.file(binDirectory)
	directories := slices.DeleteFunc(filepath.SplitList(path), func(directory string) bool { return directory == bin })
	return map[string]string{
		"KUBECONFIG": strings.Join(append([]string{first}, files...), string(filepath.ListSeparator)),
		"PATH":       strings.Join(append([]string{bin}, directories...), string(filepath.ListSeparator)),
	}, nil
}

func envCommand(s *settings) *cobra.Command {
	return &cobra.Command{
		Use: "env", Short: "Print the variables that make a terminal use the sandbox", Args: cobra.NoArgs,
		Long: "Print the variables that make a terminal use the sandbox. Usage: eval \"$(quorate sandbox env)\"\n\n" +
			"kubectl then uses the management API server, which has the ApiServerClusters, has a context for each cluster, " +
			"and\nfinds `kubectl quorate`.",
		RunE: func(command *cobra.Command, _ []string) error {
			h, err := existingHome(s.directory)
			if err != nil {
				return err
			}
			return h.printVariables(command.OutOrStdout(), command.ErrOrStderr())
		},
	}
}

// printVariables prints assignments for a POSIX shell. Because the shell evaluates the output, notes go to another
// stream.
func (h *home) printVariables(out, notes io.Writer) error {
	variables, err := h.variables(os.Getenv("PATH"))
	if err != nil {
		return err
	}
	for _, name := range []string{"KUBECONFIG", "PATH"} {
		fmt.Fprintf(out, "export %s='%s'\n", name, strings.ReplaceAll(variables[name], "'", `'\''`))
	}
	if !h.running() {
		fmt.Fprintf(notes, "Note: %v\n", h.errStopped())
	}
	own := h.file(binDirectory, "kubectl")
	if _, err := exec.LookPath("kubectl"); err != nil {
		if _, err := os.Stat(own); err != nil {
			fmt.Fprintf(notes, "Note: kubectl is not installed. `quorate kubectl status` works without it. To build kubectl "+
				"in a clone of Quorate:\n  go build -o '%s' k8s.io/kubernetes/cmd/kubectl\n", own)
		}
	}
	return nil
}

func shellCommand(s *settings) *cobra.Command {
	return &cobra.Command{
		Use: "shell", Short: "Start a shell that uses the sandbox", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			h, err := existingHome(s.directory)
			if err != nil {
				return err
			}
			if !h.running() {
				return h.errStopped()
			}
			return h.shell()
		},
	}
}

// shell runs the user's shell with the variables of the sandbox.
func (h *home) shell() error {
	variables, err := h.variables(os.Getenv("PATH"))
	if err != nil {
		return err
	}
	name := os.Getenv("SHELL")
	if name == "" {
		name = "/bin/sh"
	}
	shell := exec.Command(name)                                              //nolint:gosec // the shell that the user chose
	shell.Stdin, shell.Stdout, shell.Stderr = os.Stdin, os.Stdout, os.Stderr // the shell owns the terminal
	shell.Env = os.Environ()
	for name, value := range variables {
		shell.Env = append(shell.Env, name+"="+value)
	}
	fmt.Fprintf(terminal.Stderr(), "This shell uses the sandbox in %s; leave it with exit.\n", h.shown)
	var exit *exec.ExitError
	if err := shell.Run(); err != nil && !errors.As(err, &exit) {
		return fmt.Errorf("start the shell %s: %w", name, err)
	}
	return nil // the last command in the shell determines the exit code
}
