// Package parallel runs functions at the same time on behalf of one caller.
//
// A panic in a goroutine ends the process, and with it the work for all other clusters. Here the panic moves to the
// goroutine of the caller, with the stack of its origin: a reconciliation that panics is reported, counted and retried by
// controller-runtime.
package parallel

import (
	"sync"

	"quorate.dev/panics"
)

// Each calls do with the numbers from 0 to n-1, each in a goroutine, and returns when all calls have returned. If one of
// them panics, Each panics with a
// *panics.Panic.
func Each(n int, do func(int)) {
	var running sync.WaitGroup
	errs := make([]error, n)
	for i := range n {
		running.Go(func() {
			errs[i] = panics.Catch(func() error {
				do(i)
				return nil
			})
		})
	}
	running.Wait()
	for _, err := range errs {
		if err != nil {
			panic(err)
		}
	}
}
