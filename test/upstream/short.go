package upstream

import (
	"flag"
	"testing"
)

// NeedsProcesses skips the test under -short. The test starts servers as processes, whose binaries are not built with
// the race detector, with which the short tests run.
func NeedsProcesses(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("skipped under -short: starts servers as processes")
	}
}

// NeedsTime skips a test that takes longer than a few seconds, unless `go test` has the flag -run. `go test -run .
// ./...` runs all tests.
func NeedsTime(t testing.TB) {
	t.Helper()
	if !Selected() {
		t.Skip("takes longer than a few seconds; run it with go test -run")
	}
}

// Selected reports whether `go test` has the flag -run. Without the flag, TestDifferential and TestSandbox run only a
// part of their cases.
func Selected() bool {
	selection := flag.Lookup("test.run")
	return selection != nil && selection.Value.String() != ""
}
