// Package isolation runs tests where they may mount file systems.
package isolation

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"quorate.dev/test/faults/disk"
)

// namespaceVariable is the environment variable that marks the child process in the namespace, which runs the tests.
const namespaceVariable = "QUORATE_FAULTS_NAMESPACE"

// Run runs the tests in a mount namespace of this process, in which file systems can be mounted and disappear when the
// process ends. It returns the exit code. If this user may not create a namespace, the tests run without one, and
// Mounts returns an error.
func Run(m *testing.M) int {
	if os.Getenv(namespaceVariable) == "" {
		if code, ok := runInNamespace(); ok {
			return code
		}
	}
	return m.Run()
}

// Mounts returns the reason why a volume cannot be mounted, or nil.
func Mounts(t *testing.T) error {
	t.Helper()
	if os.Getenv(namespaceVariable) == "" {
		return errors.New("there is no mount namespace")
	}
	if err := hideMounts(); err != nil {
		return err
	}
	unmount, err := disk.New(1 << 20).Mount(filepath.Join(t.TempDir(), "volume"))
	if err != nil {
		return err
	}
	return unmount()
}

// runInNamespace runs this program again in a new namespace and returns its exit code, or false if the namespace cannot
// be created.
func runInNamespace() (code int, ok bool) {
	command := exec.Command("/proc/self/exe", os.Args[1:]...)
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
	command.Env = append(os.Environ(), namespaceVariable+"=1")
	command.SysProcAttr = ownMounts()
	if command.SysProcAttr == nil {
		return 0, false
	}
	if err := command.Start(); err != nil {
		fmt.Println("faults: no mount namespace:", err)
		return 0, false
	}
	err := command.Wait()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return max(1, exit.ExitCode()), true
	}
	return 0, err == nil
}
