package etcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/client/pkg/v3/types"
)

func TestDecide(t *testing.T) {
	for _, c := range []struct {
		name   string
		voters int
		hashes string // of members 1, 2, ...; "-": no response
		want   []agreement
	}{
		{"all equal", 3, "aaa", []agreement{agrees, agrees, agrees}},
		{"the first", 3, "baa", []agreement{damaged, agrees, agrees}},
		{"the middle", 3, "aba", []agreement{agrees, damaged, agrees}},
		{"the last", 3, "aab", []agreement{agrees, agrees, damaged}},
		{"one of five", 5, "aaaba", []agreement{agrees, agrees, agrees, damaged, agrees}},
		{"two of five, one after the other", 5, "abaac", []agreement{agrees, damaged, agrees, agrees, deviates}},
		{"one has stopped", 5, "a-aac", []agreement{agrees, incomplete, agrees, agrees, deviates}},
		{"one is down", 3, "-ab", []agreement{incomplete, undecided, undecided}},
		{"one is down, the others are equal", 3, "-aa", []agreement{incomplete, agrees, agrees}},
		{"all different", 3, "abc", []agreement{undecided, undecided, undecided}},
		{"two voters", 2, "ab", []agreement{undecided, undecided}},
		{"two voters, equal", 2, "aa", []agreement{agrees, agrees}},
		{"alone", 3, "--a", []agreement{incomplete, incomplete, incomplete}},
	} {
		all := map[types.ID]string{}
		for i, sum := range c.hashes {
			if sum != '-' {
				all[types.ID(i+1)] = string(sum)
			}
		}
		stopping := 0
		for i, want := range c.want {
			if all[types.ID(i+1)] == "" {
				continue
			}
			got := decide(types.ID(i+1), maps.Clone(all), c.voters)
			if got != want {
				t.Errorf("%s: member %d: %d, want %d", c.name, i+1, got, want)
			}
			if got == damaged {
				stopping++
			}
		}
		if stopping > 1 {
			t.Errorf("%s: %d members stop at the same time", c.name, stopping)
		}
	}
}

// TestFlippedBitInValue changes a byte of a value in the database of a stopped member, which etcd does not notice. The
// member stops when it has compared its data, and does not start again.
func TestFlippedBitInValue(t *testing.T) {
	for damagedMember := range 3 {
		t.Run(fmt.Sprintf("m%d", damagedMember), func(t *testing.T) {
			t.Parallel()
			flags, members := voters(t, 3)
			for i := range 100 {
				put(t, members[0], fmt.Sprintf("key-%d", i))
			}
			for i, m := range members {
				awaitKey(t, m, "key-99")
				if result, _, err := m.compareData(t.Context()); err != nil || result != agrees {
					t.Errorf("m%d before the damage: %d, %v", i, result, err)
				}
			}
			m := members[damagedMember]
			stop(t, m)
			flipValue(t, flags[damagedMember].DataDirectory, "key-7")
			m, err := Start(t.Context(), flags[damagedMember], func(o *options) {
				o.hashDelay, o.hashRetry = time.Millisecond, 100*time.Millisecond
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { m.Stop(context.WithoutCancel(t.Context())) })
			select {
			case err = <-m.Err():
			case <-time.After(60 * time.Second):
				t.Fatal("the member has not stopped")
			}
			if !errors.Is(err, ErrDamaged) {
				t.Fatalf("got error %v, want ErrDamaged", err)
			}
			if _, err := Start(t.Context(), flags[damagedMember]); !errors.Is(err, ErrDamaged) {
				t.Errorf("the next start: got error %v, want ErrDamaged", err)
			}
			put(t, members[(damagedMember+1)%3], "the others go on")
		})
	}
}

// flipValue flips a bit of the value of the newest revision of a key.
func flipValue(t *testing.T, directory, key string) {
	t.Helper()
	db, err := bolt.Open(databaseOf(directory), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bolt.Tx) error {
		bucket := tx.Bucket([]byte("key"))
		for cursor, revision, value := cursorAtEnd(bucket); revision != nil; revision, value = cursor.Prev() {
			if i := bytes.Index(value, []byte("value")); i >= 0 && bytes.Contains(value, []byte(key)) {
				changed := bytes.Clone(value)
				changed[i] ^= 1
				return bucket.Put(bytes.Clone(revision), changed)
			}
		}
		return errors.New("no such key")
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
}

func cursorAtEnd(bucket *bolt.Bucket) (cursor *bolt.Cursor, revision, value []byte) {
	cursor = bucket.Cursor()
	revision, value = cursor.Last()
	return cursor, revision, value
}
