package request

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"k8s.io/apiserver/pkg/authentication/user"
	upstream "k8s.io/apiserver/pkg/endpoints/request"
)

// TestByteLimit sends requests of all sizes concurrently: the limit is never exceeded, and all are served.
func TestByteLimit(t *testing.T) {
	const bound = 100
	limit := NewByteLimit(bound)
	var mu sync.Mutex
	var held, most int64
	var group sync.WaitGroup
	for size := range int64(3 * bound) {
		group.Go(func() {
			mine, err := limit.Acquire(t.Context(), size)
			if err != nil {
				t.Error(err)
				return
			}
			defer mine.Release()
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

// TestByteLimitIsFair checks that small requests that would fit do not overtake a large one that waits.
func TestByteLimitIsFair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := NewByteLimit(100)
		first, err := limit.Acquire(t.Context(), 60)
		if err != nil {
			t.Fatal(err)
		}
		order := make(chan string, 2)
		acquire := func(name string, size int64) {
			held, err := limit.Acquire(t.Context(), size)
			if err != nil {
				t.Error(err)
				return
			}
			order <- name
			held.Release()
		}
		go acquire("larger than the bound", 1000)
		synctest.Wait()
		go acquire("small", 1)
		synctest.Wait()
		if len(order) > 0 {
			t.Errorf("%s has overtaken", <-order)
		}
		first.Shrink(10)
		synctest.Wait()
		if len(order) > 0 {
			t.Errorf("%s was served beside another", <-order)
		}
		first.Release()
		first.Release() // has no effect
		if got := <-order; got != "larger than the bound" {
			t.Errorf("first was %s", got)
		}
		<-order
	})
}

// TestByteLimitEndsWithItsCaller checks that a caller that stops waiting leaves nothing behind.
func TestByteLimitEndsWithItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := NewByteLimit(100)
		held, err := limit.Acquire(t.Context(), 1)
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
		held.Release()
		if held, err = limit.Acquire(t.Context(), 100); err != nil {
			t.Fatal(err)
		}
		held.Shrink(200) // has no effect
		held.Release()
	})
}

// TestByteLimitOfOneUser has one user hold as much as it can, and ask for more: others are served beside it.
func TestByteLimitOfOneUser(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := NewByteLimit(100)
		as := func(name string) context.Context {
			return upstream.WithUser(t.Context(), &user.DefaultInfo{Name: name})
		}
		var all []*Held
		acquire := func(name string, size int64) {
			held, err := limit.Acquire(as(name), size)
			if err != nil {
				t.Error(err)
				return
			}
			all = append(all, held)
		}
		for range 20 {
			go acquire("greedy", 20) // of a share of 25: one at a time
		}
		synctest.Wait()
		if len(all) != 1 {
			t.Fatalf("one user has got %d times 20 of 100 bytes", len(all))
		}
		acquire("other", 80)
		if all[1].Release(); len(all) != 2 {
			t.Fatalf("%d requests are served", len(all))
		}
		for released := 0; released < len(all); released++ {
			all[released].Release()
			synctest.Wait() // for the next of the greedy user
		}
		if len(all) != 21 || len(limit.users) != 0 {
			t.Errorf("%d requests were served, and %d users are remembered", len(all), len(limit.users))
		}
	})
}

// TestTryAcquire checks that callers that do not wait get the free bytes, within the share of their user, and that a
// refused call changes nothing.
func TestTryAcquire(t *testing.T) {
	limit := NewByteLimit(100)
	as := func(name string) context.Context {
		return upstream.WithUser(t.Context(), &user.DefaultInfo{Name: name})
	}
	first := limit.TryAcquire(as("alice"), 20)
	if first == nil {
		t.Fatal("nothing is free")
	}
	if limit.TryAcquire(as("alice"), 10) != nil {
		t.Error("a user got more than its share")
	}
	second := limit.TryAcquire(as("bob"), 80)
	if second == nil || limit.TryAcquire(as("carol"), 1) != nil {
		t.Error("the limit does not hold")
	}
	first.Release()
	if third := limit.TryAcquire(as("carol"), 20); third == nil {
		t.Error("released bytes are not free")
	} else {
		third.Release()
	}
	second.Release()
	if len(limit.users) > 0 {
		t.Errorf("%d users are left", len(limit.users))
	}
}
