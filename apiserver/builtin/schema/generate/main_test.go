package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

func TestEmbeddedSchemaIsUpToDate(t *testing.T) {
	fresh := filepath.Join(t.TempDir(), "schema.gob.gz")
	if err := run(fresh); err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(fresh)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../schema.gob.gz")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("schema.gob.gz is not what its generator writes; run go generate ./apiserver/builtin/schema")
	}
}
