package main

import (
	"errors"
	"testing"

	"quorate.dev/test/upstream"
)

// TestIdentity checks that requests with the provider's token are an administrator's.
func TestIdentity(t *testing.T) {
	upstream.NeedsProcesses(t)
	directory := t.TempDir()
	i, err := startIdentity(directory)
	if err != nil {
		t.Fatal(err)
	}
	defer i.provider.Close()
	s, err := startOurs(t.Context(), directory, i.flags)
	if err != nil {
		t.Fatal(err)
	}
	s.tokenClient, err = i.client(t.Context(), s.admin)
	if err := errors.Join(err, s.stop()); err != nil {
		t.Error(err)
	}
}
