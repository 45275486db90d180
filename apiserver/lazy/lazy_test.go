package lazy

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"
)

const idle = 8 * time.Minute

// TestValuesAreDroppedWhenIdle uses one of two values all the time.
func TestValuesAreDroppedWhenIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := &Set{}
		go set.Run(t.Context(), clock.RealClock{}, idle)
		var busy, unused Value[int]
		var made [2]int
		use := func(v *Value[int], i int) {
			got, err := v.Get(set, func() (int, error) { made[i]++; return i, nil })
			if got != i || err != nil {
				t.Errorf("got %d, %v", got, err)
			}
		}
		use(&unused, 1)
		for range 20 {
			use(&busy, 0)
			<-time.After(time.Minute)
		}
		if set.Len() != 1 {
			t.Errorf("%d values exist, want that in use", set.Len())
		}
		use(&unused, 1)
		if made != [2]int{1, 2} {
			t.Errorf("made %v times", made)
		}
		<-time.After(2 * idle)
		if set.Len() != 0 {
			t.Errorf("%d values exist", set.Len())
		}
	})
}

// TestValuesAreKeptWhileInUse: a value is not dropped before the time.
func TestValuesAreKeptWhileInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := &Set{}
		go set.Run(t.Context(), clock.RealClock{}, idle)
		<-time.After(idle / ticks / 2)
		var v Value[int]
		if _, err := v.Get(set, func() (int, error) { return 0, errors.New("kept too") }); err == nil {
			t.Error("no error")
		}
		<-time.After(idle - time.Second)
		if _, err := v.Get(set, func() (int, error) { t.Error("made again"); return 0, nil }); err == nil {
			t.Error("no error")
		}
	})
}

func TestConcurrentUse(t *testing.T) {
	set := &Set{}
	values := make([]Value[int], 10)
	var users sync.WaitGroup
	for range 4 {
		users.Go(func() {
			for i := range 1000 {
				if got, err := values[i%10].Get(set, func() (int, error) { return i % 10, nil }); got != i%10 || err != nil {
					t.Errorf("got %d, %v", got, err)
				}
				if i%50 == 0 {
					set.sweep()
				}
			}
		})
	}
	users.Wait()
	for range ticks + 2 {
		set.sweep()
	}
	if set.Len() != 0 {
		t.Errorf("%d values exist", set.Len())
	}
}
