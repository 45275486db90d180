package panics

import (
	"sync"
)

// Group is a sync.WaitGroup whose functions may panic. Wait passes the first panic to the goroutine of its caller,
// which is a request or a loop that reports panics. The other functions run to their end.
type Group struct {
	running sync.WaitGroup
	mu      sync.Mutex
	first   error // a *Panic
}

// Start calls do in a goroutine.
func (g *Group) Start(do func()) {
	g.running.Go(func() {
		err := Catch(func() error {
			do()
			return nil
		})
		if err == nil {
			return
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.first == nil {
			g.first = err
		}
	})
}

// Wait returns when all functions have returned, or panics with a *Panic if one of them has panicked.
func (g *Group) Wait() {
	g.running.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.first != nil {
		panic(g.first)
	}
}
