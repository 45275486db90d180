package main

import (
	"path/filepath"
	"testing"
)

func TestIdentityMakesItsDirectory(t *testing.T) {
	i, err := startIdentity(filepath.Join(t.TempDir(), "servers"))
	if err != nil {
		t.Fatal(err)
	}
	if len(i.flags) == 0 || i.token == "" {
		t.Errorf("got %v", i.flags)
	}
}
