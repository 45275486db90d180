package differential

import (
	"os"
	"path/filepath"
	"testing"

	"quorate.dev/test/upstream"
)

// auditLevels are the levels at which levels.script runs. The policy selects them by the namespace of the script.
var auditLevels = []string{"metadata", "request", "response", "omitted"}

// TestAudit compares the audit events of both servers.
func TestAudit(t *testing.T) {
	upstream.NeedsProcesses(t)
	pair := startAudited(t)
	intended, err := loadIntended("testdata/intended.txt")
	if err != nil {
		t.Fatal(err)
	}
	scripts, err := LoadScripts("testdata/audit")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, server := range []*Server{pair.Upstream, pair.Ours} {
			log, _ := os.ReadFile(server.AuditLog)
			os.WriteFile("/tmp/aud/"+server.Name+".log", log, 0o644)
		}
	})
	for _, script := range scripts {
		names := []string{"audit-" + script.Name}
		if script.Name == "levels" {
			names = nil
			for _, level := range auditLevels {
				names = append(names, "audit-level-"+level)
			}
		}
		for _, name := range names {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				compare(t, pair, Audited(script, name), intended)
			})
		}
	}
}

// startAudited starts both servers with webhooks and an audit policy.
func startAudited(t *testing.T) *Pair {
	t.Helper()
	policy, err := filepath.Abs("testdata/audit/policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := StartPair(t.Context(), t.TempDir(), "--audit-policy-file="+policy, "--audit-log-path=${directory}/audit.log")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pair.Stop(); err != nil {
			t.Error(err)
		}
	})
	for _, server := range []*Server{pair.Upstream, pair.Ours} {
		server.Webhooks = StartWebhooks()
		t.Cleanup(func() { _ = server.Webhooks.Stop() })
	}
	return pair
}
