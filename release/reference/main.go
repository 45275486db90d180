// Command reference generates documents in docs/reference:
//
//	go run ./release/reference [-root .]
//
// fields.md is generated from the CustomResourceDefinitions, conditions.md from the comments of reasons and condition
// types in operator/api/v1alpha1, metrics.md from the collectors of the operator, commands.md from the flags of all
// commands except the API server, and exit-codes.md from constants.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	root := flag.String("root", ".", "Directory of the repository.")
	flag.Parse()
	if err := run(*root); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

// generators are the functions that return documents, by the names of the documents' files.
var generators = map[string]func(root string) (string, error){
	"fields.md": fields, "conditions.md": conditions, "metrics.md": metrics, "commands.md": commands,
	"exit-codes.md": exitCodes,
}

func run(root string) error {
	for name, generate := range generators {
		text, err := generate(root)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		file := filepath.Join(root, "docs", "reference", name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil { //nolint:gosec // public files
			return err
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil { //nolint:gosec // public files
			return err
		}
	}
	return nil
}
