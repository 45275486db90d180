package differential

import (
	"strings"
	"testing"

	"quorate.dev/test/upstream"
)

// uncached are the beginnings of the names of those scripts of TestDifferential that also run without watch caches.
var uncached = []string{"list", "watch", "objects", "options-get", "options-list", "crd-watch", "stored"}

// TestUncached compares both servers without watch caches and with objects stored as JSON.
func TestUncached(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	pair := startPairOf(t, "--watch-cache=false", "--storage-media-type=application/json")
	intended, err := loadIntended("testdata/intended.txt")
	if err != nil {
		t.Fatal(err)
	}
	scripts, err := LoadScripts("testdata")
	if err != nil {
		t.Fatal(err)
	}
	for _, script := range scripts {
		for _, prefix := range uncached {
			if strings.HasPrefix(script.Name, prefix) {
				t.Run(script.Name, func(t *testing.T) { compare(t, pair, script, intended) })
			}
		}
	}
}
