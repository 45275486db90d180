package differential

import (
	"testing"

	"quorate.dev/test/upstream"
)

// cborGates lets a server and its own clients use CBOR.
const cborGates = "--feature-gates=CBORServingAndStorage=true,ClientsAllowCBOR=true,ClientsPreferCBOR=true"

// TestCBOR compares both servers with and without the feature gate CBORServingAndStorage: bodies, responses and watch
// events in CBOR, refused media types, and how custom resources are stored and read.
func TestCBOR(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	for directory, flags := range map[string][]string{
		"testdata/cbor": {cborGates},
		// Clients that prefer CBOR fall back to JSON if the server does not accept it.
		"testdata/cbor-off": {"--feature-gates=ClientsAllowCBOR=true,ClientsPreferCBOR=true"},
	} {
		t.Run(directory, func(t *testing.T) { compareDirectory(t, directory, flags) })
	}
}

// compareDirectory runs the scripts in a directory on both servers with additional flags.
func compareDirectory(t *testing.T, directory string, flags []string) {
	pair := startPairOf(t, flags...)
	intended, err := loadIntended("testdata/intended.txt")
	if err != nil {
		t.Fatal(err)
	}
	scripts, err := LoadScripts(directory)
	if err != nil {
		t.Fatal(err)
	}
	if len(scripts) == 0 {
		t.Fatalf("%s has no scripts", directory)
	}
	var all result
	for _, script := range scripts {
		t.Run(script.Name, func(t *testing.T) { all = all.plus(compare(t, pair, script, intended)) })
	}
	t.Logf("%d of %d cases are equal, %d differ as intended", all.equal, all.cases, all.intended)
}
