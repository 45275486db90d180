// Command minor prints what changed for Quorate between two versions of Kubernetes, in the order in which the changes
// are worked on:
//
//	go run ./release/minor [-document docs/upstream/1.37.md] v1.36.3 v1.37.2
//
// Each line has a column for the answer: how Quorate follows the change, or why it need not. With -document, the
// command writes the lines to a file instead of the standard output, and keeps the answers that the file has. An answer
// with the prefix "open:" describes work that remains. The answer of several changes of a section can be a label, whose
// text is an item of the list below the table ("- **label**: text").
//
// The command downloads both versions of the modules. A program that is built with each version (directory inspect)
// prints the facts that only running code has: flags, feature gates, roles and others. All other facts are read from
// the sources. The command needs some ten minutes if the build cache has neither version.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"os/signal"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout, slog.New(slog.NewTextHandler(os.Stderr, nil)))
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, arguments []string, out io.Writer, log *slog.Logger) error {
	flags := flag.NewFlagSet("minor", flag.ContinueOnError)
	root := flags.String("root", ".", "Directory of the repository.")
	document := flags.String("document", "", "File to write. Its answers are kept. Default: the standard output.")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	if flags.NArg() != 2 {
		return errors.New("two versions are needed, for example: v1.36.3 v1.37.2")
	}
	answers, shared, err := readAnswers(*document)
	if err != nil {
		return err
	}
	linked, err := linkedPackages(ctx, *root)
	if err != nil {
		return err
	}
	var versions [2]*release
	for i := range versions {
		if versions[i], err = inspectRelease(ctx, flags.Arg(i), log); err != nil {
			return err
		}
	}
	sections := compare(versions[0].facts, versions[1].facts)
	files, err := changedFiles(ctx, versions[0], versions[1], linked)
	if err != nil {
		return err
	}
	maps.Copy(sections, files)
	var text bytes.Buffer
	if err := write(&text, versions[0].version, versions[1].version, sections, answers, shared); err != nil {
		return err
	}
	if *document != "" {
		return os.WriteFile(*document, text.Bytes(), 0o644) //nolint:gosec // a document of the repository
	}
	_, err = text.WriteTo(out)
	return err
}
