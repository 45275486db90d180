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

// NeedsTime skips the test unless -run selects it: `go test ./...` takes minutes, and `go test -run . ./...`, with all
// tests, takes about half an hour. A test that takes more than some seconds calls it.
func NeedsTime(t testing.TB) {
	t.Helper()
	if !Selected() {
		t.Skip("takes more than some seconds; `go test -run .` includes it")
	}
}

// Selected reports whether -run selects tests. A test with a short form takes the long form then.
func Selected() bool {
	selection := flag.Lookup("test.run")
	return selection != nil && selection.Value.String() != ""
}
