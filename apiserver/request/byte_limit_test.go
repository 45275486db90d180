package request

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
)

// TestByteLimit has requests of all sizes come at once: never is more held than the bound, and all are served.
func TestByteLimit(t *testing.T) {
	const bound = 100
	limit := NewByteLimit(bound)
	var mu sync.Mutex
	var held, most int64
	var group sync.WaitGroup
	for size := range int64(3 * bound) {
		group.Go(func() {
			release, err := limit.Acquire(t.Context(), size)
			if err != nil {
				t.Error(err)
				return
			}
			defer release()
			mu.Lock()
			held += min(size, bound)
			most = max(most, held)
			mu.Unlock()
			mu.Lock()
			held -= min(size, bound)
			mu.Unlock()
		})
	}
	group.Wait()
	if most > bound || held != 0 {
		t.Errorf("%d bytes were held, and %d are", most, held)
	}
}

// TestByteLimitIsFair has a large request come before small ones that would fit: they do not overtake it.
func TestByteLimitIsFair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := NewByteLimit(100)
		first, err := limit.Acquire(t.Context(), 60)
		if err != nil {
			t.Fatal(err)
		}
		order := make(chan string, 2)
		acquire := func(name string, size int64) {
			release, err := limit.Acquire(t.Context(), size)
			if err != nil {
				t.Error(err)
				return
			}
			order <- name
			release()
		}
		go acquire("larger than the bound", 1000)
		synctest.Wait()
		go acquire("small", 1)
		synctest.Wait()
		if len(order) > 0 {
			t.Errorf("%s has overtaken", <-order)
		}
		first()
		if got := <-order; got != "larger than the bound" {
			t.Errorf("first was %s", got)
		}
		<-order
	})
}

// TestByteLimitEndsWithItsCaller leaves nothing behind of one who stops waiting.
func TestByteLimitEndsWithItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := NewByteLimit(100)
		release, err := limit.Acquire(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() {
			_, err := limit.Acquire(ctx, 100)
			ended <- err
		}()
		synctest.Wait()
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		release()
		if release, err = limit.Acquire(t.Context(), 100); err != nil {
			t.Fatal(err)
		}
		release()
	})
}
