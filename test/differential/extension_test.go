package differential

import (
	"slices"
	"testing"

	"quorate.dev/test/upstream"
)

// TestExtension compares what both servers do with admission webhooks and policies, and what they call webhooks with.
func TestExtension(t *testing.T) {
	upstream.NeedsProcesses(t)
	pair, err := StartPair(t.Context(), t.TempDir())
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
	intended, err := loadIntended("testdata/intended.txt")
	if err != nil {
		t.Fatal(err)
	}
	scripts, err := LoadScripts("testdata/extension")
	if err != nil {
		t.Fatal(err)
	}
	policies := func(script *Script) bool { return script.Area == "policies" }
	t.Run("policies", func(t *testing.T) {
		for _, script := range scripts {
			if policies(script) {
				t.Run(script.Name, func(t *testing.T) {
					t.Parallel() // kube-apiserver finds the kinds of parameters after up to 30 s
					compare(t, pair, script, intended)
				})
			}
		}
	})
	for _, script := range slices.DeleteFunc(scripts, policies) { // one after another: a webhook may see all writes
		t.Run(script.Name, func(t *testing.T) { compare(t, pair, script, intended) })
	}
}
