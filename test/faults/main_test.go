package faults

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// namespaceVariable marks the process that runs the tests.
const namespaceVariable = "QUORATE_FAULTS_NAMESPACE"

// TestMain runs the tests in a mount namespace of their own, in which file systems can be mounted and end with the process. If
// this user may not have one, the tests run without volumes that fail.
func TestMain(m *testing.M) {
	if os.Getenv(namespaceVariable) == "" {
		if code, ok := runInNamespace(); ok {
			os.Exit(code)
		}
	}
	os.Exit(m.Run())
}

// runInNamespace returns the exit code of this program in a namespace, or false if there can be none.
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
