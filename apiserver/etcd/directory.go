package etcd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"quorate.dev/apiserver/config"
)

// ErrDataDirectory is returned when a member cannot use its data directory. The message says what to do.
var ErrDataDirectory = errors.New("etcd data directory")

// ErrDamaged is returned when a member cannot start because its data is damaged, as after a loss of files.
var ErrDamaged error = damagedError{}

type damagedError struct{}

func (damagedError) Error() string { return "damaged" }

// ExitCode returns the exit code of the process.
func (damagedError) ExitCode() int { return config.DamagedDataExitCode }

// ErrLost is returned when a member must not start, because its data directory does not have the data that the member has
// voted with. Starting it could discard writes that it has acknowledged.
var ErrLost error = lostError{}

type lostError struct{}

func (lostError) Error() string { return "not the data of this member" }

// ExitCode returns the exit code of the process.
func (lostError) ExitCode() int { return config.LostDataExitCode }

func lost(directory, reason string) error {
	return fmt.Errorf("%w %s is %w: %s. If the other members have a quorum, remove this member from the cluster and let a new "+
		"member join with an empty directory; else continue with the data of the best member ('quorate etcd recover') or "+
		"restore a snapshot", ErrDataDirectory, directory, ErrLost, reason)
}

// lockTimeout bounds the wait for the database lock of a process that is stopping.
const lockTimeout = 200 * time.Millisecond

// checkDirectory detects, before etcd starts, problems for which etcd would wait silently or panic.
func checkDirectory(directory string) error {
	if err := checkWritable(directory); err != nil {
		return fmt.Errorf("%w %s cannot be written: make it a directory of mode 0700 owned by user %d: %w",
			ErrDataDirectory, directory, os.Getuid(), err)
	}
	return checkDatabase(directory, databaseOf(directory))
}

// databaseOf returns the path of the database in a data directory.
func databaseOf(directory string) string { return filepath.Join(directory, "member", "snap", "db") }

func checkWritable(directory string) error {
	if err := os.MkdirAll(directory, 0o700); err != nil {
		return err
	}
	file, err := os.CreateTemp(directory, ".writable-")
	if err != nil {
		return err
	}
	return errors.Join(file.Close(), os.Remove(file.Name()))
}

// checkDatabase opens and closes the database, which checks its lock and its meta pages. It also checks the length of the file:
// reading a page beyond its end kills the process with SIGBUS.
func checkDatabase(directory, path string) error {
	if info, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0 {
		return nil // bbolt initializes an empty file
	}
	db, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true, Timeout: lockTimeout})
	switch {
	case err == nil:
		err = errors.Join(checkLength(db), db.Close())
		if err == nil {
			return nil
		}
	case errors.Is(err, bolterrors.ErrTimeout):
		return fmt.Errorf("%w %s is in use by another process: stop that process, or use another directory: %w",
			ErrDataDirectory, directory, err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w %s cannot be read: make everything in it owned by user %d: %w",
			ErrDataDirectory, directory, os.Getuid(), err)
	}
	return corrupt(directory, err)
}

func checkLength(db *bolt.DB) error {
	return db.View(func(tx *bolt.Tx) error {
		info, err := os.Stat(db.Path())
		if err == nil && info.Size() < tx.Size() {
			err = fmt.Errorf("the database file has %d bytes and lacks those up to %d", info.Size(), tx.Size())
		}
		return err
	})
}

func corrupt(directory string, reason error) error {
	return fmt.Errorf("%w %s is %w: if other members are alive, remove this member from the cluster, empty "+
		"the directory and let the member join again; else restore a snapshot: %w", ErrDataDirectory, directory, ErrDamaged, reason)
}

// errPanicked is returned when etcd panics during its start, as it does when it cannot read its files.
var errPanicked = errors.New("etcd panicked")

// etcd has no error values for these messages.
const (
	noPeerAnswers  = "cannot fetch cluster info from peer urls"
	versionUnknown = "incompatible with current running cluster"
)

// joinsLater reports whether starting etcd may succeed when it is retried.
func joinsLater(err error) bool {
	return strings.Contains(err.Error(), noPeerAnswers) || strings.Contains(err.Error(), versionUnknown)
}

// damage has parts of the messages with which etcd reports damaged files.
var damage = []string{"corrupt", "crc mismatch", "checksum", "wal:", "unexpected EOF", "invalid database", "proto:"}

// explain adds advice to an error from starting etcd.
func explain(directory string, err error) error {
	message := err.Error()
	for _, words := range damage {
		if errors.Is(err, errPanicked) || strings.Contains(message, words) {
			return corrupt(directory, err)
		}
	}
	if strings.Contains(message, noPeerAnswers) {
		return fmt.Errorf("join the etcd cluster: no member of --etcd-initial-cluster answers; "+
			"check that they run and that the peer certificates have the same authority: %w", err)
	}
	if strings.Contains(message, "member count is unequal") || strings.Contains(message, "unmatched member") {
		return fmt.Errorf("join the etcd cluster: --etcd-initial-cluster differs from the cluster's member list; "+
			"add this member to the cluster before it starts: %w", err)
	}
	return fmt.Errorf("start etcd: %w", err)
}
