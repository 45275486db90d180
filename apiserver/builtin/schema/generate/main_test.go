package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

func TestEmbeddedSchemaIsUpToDate(t *testing.T) {
	if testing.Short() {
		t.Skip("runs the generator")
	}
	directory := t.TempDir()
	names := []string{"schema.gob.gz", "unstable.gob.gz"}
	if err := run(filepath.Join(directory, names[0]), filepath.Join(directory, names[1])); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		want, err := os.ReadFile(filepath.Join(directory, name))
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join("..", name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not what its generator writes; run go generate ./apiserver/builtin/schema", name)
		}
	}
}
