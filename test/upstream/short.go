package upstream

import "testing"

// NeedsProcesses skips a test under -short: it starts servers as processes, which are not built with the race detector
// that the short tests run under.
func NeedsProcesses(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("skipped under -short: starts servers as processes")
	}
}
