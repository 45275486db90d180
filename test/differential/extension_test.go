package differential

import (
	"testing"

	"quorate.dev/test/upstream"
)

// TestExtension compares what both servers do with admission webhooks and policies, and what they call webhooks with and
// what they audit.
func TestExtension(t *testing.T) {
	upstream.NeedsProcesses(t)
	pair := startAudited(t)
	intended, err := loadIntended("testdata/intended.txt")
	if err != nil {
		t.Fatal(err)
	}
	scripts, err := LoadScripts("testdata/extension")
	if err != nil {
		t.Fatal(err)
	}
	for _, script := range scripts { // one after another: configurations are of the whole cluster
		t.Run(script.Name, func(t *testing.T) { compare(t, pair, Audited(script, script.Name), intended) })
	}
}
