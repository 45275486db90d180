// Package parallel runs functions concurrently on behalf of one caller.
//
// A panic in a goroutine ends the whole process, and with it the work for all other clusters. Package parallel instead
// passes the panic, with the stack of its origin, to the goroutine of the caller. There, controller-runtime recovers
// it: the reconciliation fails, is counted in the metric of panics, and is retried.
package parallel

import (
	"sync"

	"quorate.dev/panics"
)

// Each calls do with the numbers from 0 to n-1, each in its own goroutine, and returns when all calls have returned. If
// calls panic, Each panics with the *panics.Panic of the call with the lowest number.
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
