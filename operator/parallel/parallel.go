// Package parallel runs functions at the same time on behalf of one caller.
//
// A panic in a goroutine ends the process, and with it the work for all other clusters. Here the panic moves to the
// goroutine of the caller, with the stack of its origin: a reconciliation that panics is reported, counted and retried by
// controller-runtime.
package parallel

import (
	"fmt"
	"runtime/debug"
	"sync"
)

// Each calls do with the numbers from 0 to n-1, each in a goroutine, and returns when all calls have returned. If one of
// them panics, Each panics with a *Panic.
func Each(n int, do func(int)) {
	var running sync.WaitGroup
	panics := make([]*Panic, n)
	for i := range n {
		running.Go(func() { panics[i] = Catch(func() { do(i) }) })
	}
	running.Wait()
	for _, p := range panics {
		if p != nil {
			panic(p)
		}
	}
}

// Panic is a panic of another goroutine.
type Panic struct {
	Value any
	Stack []byte
}

// Error implements error.
func (p *Panic) Error() string { return fmt.Sprintf("panic: %v\n%s", p.Value, p.Stack) }

// Catch calls do and returns its panic, or nil.
func Catch(do func()) (p *Panic) {
	defer func() {
		if value := recover(); value != nil {
			p = &Panic{Value: value, Stack: debug.Stack()}
		}
	}()
	do()
	return nil
}
