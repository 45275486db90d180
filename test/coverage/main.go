// Command coverage compares the statement coverage of packages by their own tests with floors. It reads the output of
// `go test -cover -run .` from standard input and passes it on, prints a table, and fails if a test failed or a package
// is below its floor:
//
//	go test -cover -run . ./... | go run ./test/coverage
//
// floors.txt has the floors and describes them. With --record, the command raises the recorded floors there to the
// measured coverage; nothing lowers them but an edit, which a reviewer sees.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/pflag"
)

// floorsFile is relative to the root of the repository, where make and .ci/run start the command.
const floorsFile = "test/coverage/floors.txt"

func main() {
	record := pflag.Bool("record", false, "raise the recorded floors in "+floorsFile+" to the measured coverage")
	pflag.Parse()
	if err := run(os.Stdin, os.Stdout, floorsFile, *record); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

// run reports about the output of go test in in. It returns an error if a test failed or a package is below its floor.
func run(in io.Reader, out io.Writer, file string, record bool) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	floors, err := parseFloors(string(text))
	if err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	measured, failed, err := parseOutput(io.TeeReader(in, out))
	if err != nil {
		return fmt.Errorf("read the output of go test: %w", err)
	}
	below := printReport(out, compare(floors, measured))
	if record {
		if err := os.WriteFile(file, []byte(raise(string(text), floors, measured)), 0o600); err != nil {
			return err
		}
	}
	switch {
	case failed:
		return errors.New("tests failed")
	case below > 0:
		return fmt.Errorf("%d packages are below their floors in %s; add tests of what they do", below, floorsFile)
	}
	return nil
}
