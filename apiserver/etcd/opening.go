package etcd

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"

	bolt "go.etcd.io/bbolt"
)

// When bbolt opens a database for writing, it reads all pages in a separate goroutine. A damaged page causes a panic in
// that goroutine, which cannot be recovered: the process would exit at every start, without an error that other
// components can interpret. Therefore a mark file exists while a process opens the database. A process that finds the
// mark of an earlier process reads the pages itself before etcd does, and can report the damage as an error. If the
// earlier process was killed for another reason, reading the pages again is the only cost.

// openingMark returns the path of the mark of a database.
func openingMark(database string) string {
	return filepath.Join(filepath.Dir(database), ".opening")
}

// openingInterrupted reports whether an earlier process ended while it opened a database.
func openingInterrupted(database string) bool {
	_, err := os.Stat(openingMark(database))
	return err == nil
}

// markOpening creates the mark. It ignores errors, such as a full file system, because the mark is not essential.
func markOpening(database string) { _ = os.WriteFile(openingMark(database), nil, 0o600) }

// markOpened removes the mark, if it exists, after etcd has opened the database or has returned an error.
func markOpened(database string) { _ = os.Remove(openingMark(database)) }

// checkPages reads all branch and leaf pages of a database, and returns an error if a page is damaged.
func checkPages(db *bolt.DB) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // pages are mapped into memory
	defer func() {
		if reason := recover(); reason != nil {
			err = fmt.Errorf("the database cannot be read: %v", reason)
		}
	}()
	return db.View(func(tx *bolt.Tx) error {
		return tx.ForEach(func(_ []byte, bucket *bolt.Bucket) error {
			_ = bucket.Stats() // visits all pages
			return nil
		})
	})
}
