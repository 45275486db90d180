package main

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const exampleFloors = `# A comment.
apiserver          75
apiserver/storage  85 60  # tests of compaction are missing
apiserver/system   75 0
apiserver/fake     0
`

func mustParse(t *testing.T, text string) floors {
	t.Helper()
	parsed, err := parseFloors(text)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

func TestFloors(t *testing.T) {
	t.Parallel()
	f := mustParse(t, exampleFloors)
	for folder, want := range map[string]floor{
		"apiserver":              {target: 75},
		"apiserver/config":       {target: 75},
		"apiserver/system":       {target: 75, isBelow: true},
		"apiserver/fake":         {},
		"apiserver/storage":      {target: 85, recorded: 60, isBelow: true},
		"apiserver/storage/etcd": {target: 85}, // a recorded floor is not inherited
	} {
		if got, ok := f.of(folder); !ok || got != want {
			t.Errorf("%s: got %+v, %v, want %+v", folder, got, ok, want)
		}
	}
	for _, folder := range []string{"apiserverless", "test/differential"} {
		if got, ok := f.of(folder); ok {
			t.Errorf("%s has the floor %+v, want none", folder, got)
		}
	}
}

func TestInvalidFloors(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"apiserver\n":                       "line 1: want a folder",
		"apiserver 75 60 50\n":              "line 1: want a folder",
		"apiserver high\n":                  `"high" is no percentage`,
		"apiserver 750\n":                   `"750" is no percentage`,
		"apiserver 75 -1\n":                 `"-1" is no percentage`,
		"apiserver 75 75\n":                 "not below its target",
		"apiserver 75\n\napiserver 75 60\n": "line 3: apiserver has two lines",
	} {
		if _, err := parseFloors(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got the error %v, want %q", text, err, want)
		}
	}
}

// output has a line of each form that go test prints about a package.
const output = `ok  	quorate.dev/apiserver/config	0.012s	coverage: 81.2% of statements
ok  	quorate.dev/apiserver/storage	(cached)	coverage: 60.0% of statements
	quorate.dev/apiserver/system		coverage: 0.0% of statements
?   	quorate.dev/apiserver/follow	[no test files]
ok  	quorate.dev/apiserver	1.5s	coverage: [no statements]
ok  	quorate.dev/test/style	1.5s	coverage: 12.0% of statements
ok  	k8s.io/api	1.5s	coverage: 12.0% of statements
`

func TestParseOutput(t *testing.T) {
	t.Parallel()
	want := map[string]float64{"apiserver/config": 81.2, "apiserver/storage": 60, "apiserver/system": 0, "test/style": 12}
	measured, failed, err := parseOutput(strings.NewReader(output))
	if err != nil || failed || !maps.Equal(measured, want) {
		t.Errorf("got %v, failed %v, error %v", measured, failed, err)
	}
	const failure = "--- FAIL: TestX (0.00s)\ncoverage: 3.0% of statements\nFAIL\tquorate.dev/apiserver/crd\t0.1s\nFAIL"
	measured, failed, err = parseOutput(strings.NewReader(output + failure))
	if err != nil || !failed || !maps.Equal(measured, want) {
		t.Errorf("with a failed test: got %v, failed %v, error %v", measured, failed, err)
	}
}

// TestRun runs the command on outputs of go test, and checks its result and floors.txt after --record.
func TestRun(t *testing.T) {
	t.Parallel()
	const covered = "ok  \tquorate.dev/%\t1s\tcoverage: "
	line := func(folder, percentage string) string {
		return strings.Replace(covered, "%", folder, 1) + percentage + "% of statements\n"
	}
	for _, test := range []struct {
		name, output string
		prints       string // part of the table
		err          string
		recorded     string // floors.txt after --record
	}{
		{
			name: "nothing changed", recorded: exampleFloors,
			output: line("apiserver", "75.0") + line("apiserver/storage", "60.0") + line("apiserver/system", "0.0") +
				line("apiserver/fake", "0.0"),
			prints: "below its target",
		},
		{
			name: "a package without a floor of its own fell below its target", output: line("apiserver/config", "74.9"),
			prints: "below its floor", err: "1 packages are below their floors", recorded: exampleFloors,
		},
		{
			name: "a package fell below its recorded floor, which stays", output: line("apiserver/storage", "59.9"),
			prints: "below its floor", err: "1 packages are below their floors", recorded: exampleFloors,
		},
		{
			name: "a recorded floor rises, less one point", output: line("apiserver/storage", "70.9"),
			prints: "the floor can rise to 69", recorded: strings.Replace(exampleFloors,
				"apiserver/storage  85 60  # tests of compaction are missing", formatted("apiserver/storage", 85, 69), 1),
		},
		{
			name: "a package reached its target", output: line("apiserver/storage", "86.0"),
			prints: "the floor can rise to 85", recorded: strings.Replace(exampleFloors,
				"apiserver/storage  85 60  # tests of compaction are missing", formatted("apiserver/storage", 85, 0), 1),
		},
		{
			name: "a test failed", output: line("apiserver", "90.0") + "FAIL\tquorate.dev/apiserver/storage\t1s\n",
			prints: "apiserver  90.0 %", err: "tests failed", recorded: exampleFloors,
		},
		{
			name:   "a failed test passed on its second attempt",
			output: "FAIL\tquorate.dev/apiserver\t1s\nFAIL\n" + line("apiserver", "75.0"), recorded: exampleFloors,
		},
		{
			name:   "one of two failed tests passed on its second attempt",
			output: "FAIL\tquorate.dev/apiserver\t1s\nFAIL\tquorate.dev/operator\t1s\n" + line("apiserver", "75.0"),
			err:    "tests failed", recorded: exampleFloors,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "floors.txt")
			if err := os.WriteFile(file, []byte(exampleFloors), 0o600); err != nil {
				t.Fatal(err)
			}
			var printed strings.Builder
			err := run(strings.NewReader(test.output), &printed, file, true)
			if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("got the error %v, want %q", err, test.err)
			}
			if !strings.HasPrefix(printed.String(), test.output) || !strings.Contains(printed.String(), test.prints) {
				t.Errorf("printed %s\nwant the output of go test and %q", printed.String(), test.prints)
			}
			if recorded, err := os.ReadFile(file); err != nil || string(recorded) != test.recorded {
				t.Errorf("recorded %s\nwant %s", recorded, test.recorded)
			}
		})
	}
}

func formatted(folder string, target, recorded float64) string {
	return strings.TrimSuffix(formatLine(folder, floor{target: target, recorded: recorded, isBelow: recorded > 0}), "\n")
}

// TestRecordRemovesLine reaches a target that the folder above has, too.
func TestRecordRemovesLine(t *testing.T) {
	t.Parallel()
	const text = "apiserver 75\napiserver/config 75 50\n"
	if got := raise(text, mustParse(t, text), map[string]float64{"apiserver/config": 80}); got != "apiserver 75\n" {
		t.Errorf("got %q", got)
	}
}

// TestFloorsOfRepository reads floors.txt, whose folders must exist.
func TestFloorsOfRepository(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../" + floorsFile)
	if err != nil {
		t.Fatal(err)
	}
	f := mustParse(t, string(text))
	for _, folder := range []string{"apiserver", "operator", "extension", "sandbox"} {
		if got, ok := f.of(folder); !ok || got.target < 75 {
			t.Errorf("%s has the floor %+v, %v", folder, got, ok)
		}
	}
	for folder := range f {
		if !fs.ValidPath(folder) {
			t.Errorf("%s is no path", folder)
		}
		if files, err := filepath.Glob("../../" + folder + "/*"); err != nil || len(files) == 0 {
			t.Errorf("%s does not exist: %v", folder, err)
		}
	}
}
