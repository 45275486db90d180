package upstream

import "testing"

// NeedsProcesses skips the test under -short. The test starts servers as processes, whose binaries are not built with
// the race detector, with which the short tests run.
func NeedsProcesses(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("skipped under -short: starts servers as processes")
	}
}
