package parallel

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"quorate.dev/panics"
)

// TestPanicMovesToTheCaller lets one of eight concurrent calls panic. It checks that Each waits for the other seven
// calls, and then panics in the goroutine of its caller, which can recover the panic.
func TestPanicMovesToTheCaller(t *testing.T) {
	var calls atomic.Int32
	err := panics.Catch(func() error {
		Each(8, func(i int) {
			calls.Add(1)
			if i == 3 {
				panic(errors.New("index 3"))
			}
		})
		return nil
	})
	var caught, inner *panics.Panic
	if !errors.As(err, &caught) || calls.Load() != 8 {
		t.Fatalf("caught %v after %d calls", err, calls.Load())
	}
	if !errors.As(errors.Unwrap(caught), &inner) || !strings.Contains(inner.Error(), "index 3") ||
		!strings.Contains(inner.Error(), "parallel_test.go") {
		t.Errorf("the panic %v does not have the value and the stack of its origin", caught.Value)
	}
}

func TestEach(t *testing.T) {
	done := make([]bool, 5)
	Each(len(done), func(i int) { done[i] = true })
	for i, called := range done {
		if !called {
			t.Errorf("call %d was left out", i)
		}
	}
	Each(0, func(int) { t.Error("called") })
}
