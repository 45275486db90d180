package panics

import (
	"errors"
	"io"
	"strings"
	"testing"
)

func TestCatch(t *testing.T) {
	if err := Catch(func() error { return nil }); err != nil {
		t.Errorf("got %v", err)
	}
	if err := Catch(func() error { return io.EOF }); !errors.Is(err, io.EOF) {
		t.Errorf("got %v", err)
	}
	err := Catch(func() error { panic(io.EOF) })
	var caught *Panic
	if !errors.As(err, &caught) || !errors.Is(err, io.EOF) || !strings.Contains(err.Error(), "panic: EOF\n") ||
		!strings.Contains(err.Error(), "panics_test.go") {
		t.Errorf("got %v", err)
	}
	var none map[string]int
	if err := Catch(func() error { none["x"] = 1; return nil }); err == nil {
		t.Error("a runtime error is not caught")
	}
}
