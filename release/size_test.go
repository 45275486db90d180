package release

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"quorate.dev/test/upstream"
)

var record = flag.Bool("record", false, "rewrite the size with which TestBinarySize compares")

const (
	// sizeFile has the size of the stripped binary for linux/amd64 in bytes. `go test ./release -run TestBinarySize
	// -record` rewrites it.
	sizeFile = "testdata/binary-size.txt"
	// maxGrowth is how much larger than the recorded size the binary may be, in percent. The lengths of the paths of the
	// repository and of Go's module cache, which the release's binary does not have, make a tenth of a percent.
	maxGrowth = 2
)

// TestBinarySize fails if the binary has grown. It measures the binary that other tests run, and that is linked once
// for all of them.
func TestBinarySize(t *testing.T) {
	upstream.NeedsProcesses(t)
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		t.Skip("the size is recorded for linux/amd64")
	}
	binary, err := upstream.Quorate(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(binary)
	if err != nil {
		t.Fatal(err)
	}
	if *record {
		if err := os.WriteFile(sizeFile, fmt.Appendln(nil, info.Size()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(sizeFile)
	if err != nil {
		t.Fatal(err)
	}
	recorded, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	if limit := recorded + recorded*maxGrowth/100; info.Size() > limit {
		t.Errorf("the stripped binary has %d bytes, more than %d %% over the recorded %d. docs/dependencies.md says how to "+
			"find what was linked; `go test ./release -run TestBinarySize -record` accepts the size", info.Size(),
			maxGrowth, recorded)
	}
}
