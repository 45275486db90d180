package differential

import (
	"testing"

	"quorate.dev/test/upstream"
)

// TestExtension compares what both servers do with admission webhooks and policies, and what they call webhooks with.
func TestExtension(t *testing.T) {
	upstream.NeedsProcesses(t)
	pair, err := StartFrontProxies(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pair.Stop(); err != nil {
			t.Error(err)
		}
	})
	extensions, err := StartExtensions() // shared, so that errors name the same ports
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(extensions.Stop)
	for _, server := range []*Server{pair.Upstream, pair.Ours} {
		server.Webhooks, server.Extensions = StartWebhooks(), extensions
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
	for _, script := range scripts { // one after another: configurations are of the whole cluster
		t.Run(script.Name, func(t *testing.T) { compare(t, pair, script, intended) })
	}
}
