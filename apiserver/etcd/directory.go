package etcd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"quorate.dev/apiserver/config"
)

// ErrDataDirectory is returned when a member cannot use its data directory. The message tells the administrator how to
// repair the problem.
var ErrDataDirectory = errors.New("etcd data directory")

// ErrDamaged is returned when a member cannot start because its data is damaged, for example because files are missing.
var ErrDamaged error = damagedError{}

type damagedError struct{}

func (damagedError) Error() string { return "damaged" }

// ExitCode returns the exit code of the process.
func (damagedError) ExitCode() int { return config.DamagedDataExitCode }

// ErrLost is returned when a member must not start, because its data directory does not contain the votes and entries
// that the member has sent to other members. Starting the member could discard acknowledged writes.
var ErrLost error = lostError{}

type lostError struct{}

func (lostError) Error() string { return "not the data of this member" }

// ExitCode returns the exit code of the process.
func (lostError) ExitCode() int { return config.LostDataExitCode }

// ErrWritesLost is returned when a member has acknowledged writes that the other members of its cluster lack. Its data
// may be the only copy of these writes.
var ErrWritesLost error = writesLostError{}

type writesLostError struct{}

func (writesLostError) Error() string { return "acknowledged writes are lost" }

// ExitCode returns the exit code of the process.
func (writesLostError) ExitCode() int { return config.LostWritesExitCode }

func lost(directory, reason string) error {
	return fmt.Errorf("%w %s is %w: %s. If the other members have a quorum, remove this member from the cluster and let "+
		"a new member join with an empty directory; else continue with the data of the best member ('quorate etcd "+
		"recover') or restore a snapshot", ErrDataDirectory, directory, ErrLost, reason)
}

// lockTimeout bounds the wait for the database lock of a process that is stopping.
const lockTimeout = 200 * time.Millisecond

// checkDirectory detects, before etcd starts, problems for which etcd would wait silently or panic.
func checkDirectory(directory string) error {
	if err := checkWritable(directory); isMachineError(err) {
		return unusable(directory, err)
	} else if err != nil {
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

// checkDatabase opens and closes the database, which checks its lock and its meta pages. It also checks the length of
// the file: reading a page beyond its end kills the process with SIGBUS. If an earlier process ended while it opened
// the database, it also reads all pages.
func checkDatabase(directory, path string) error {
	if info, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0 {
		return nil // bbolt initializes an empty file
	}
	db, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true, Timeout: lockTimeout})
	switch {
	case err == nil:
		err = errors.Join(checkContent(db, path), db.Close())
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

func checkContent(db *bolt.DB, path string) error {
	if err := checkLength(db); err != nil {
		return err
	}
	if openingInterrupted(path) {
		return checkPages(db)
	}
	return nil
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

// corrupt returns the error for a data directory that cannot be read. Machine errors do not mean that the data is
// damaged.
func corrupt(directory string, reason error) error {
	if isMachineError(reason) {
		return unusable(directory, reason)
	}
	return fmt.Errorf("%w %s is %w: if other members are alive, remove this member from the cluster, empty "+
		"the directory and let the member join again; else restore a snapshot: %w", ErrDataDirectory, directory,
		ErrDamaged, reason)
}

// machineErrors has errors that mean that the machine lacks a resource, such as disk space, or that its disk does not
// respond. They do not mean that the data is damaged, and a later start may succeed. For example, etcd writes to its
// log when it starts, and panics if the file system is full.
var machineErrors = []syscall.Errno{
	syscall.ENOSPC, syscall.EDQUOT, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EROFS, syscall.EIO,
}

// isMachineError reports whether an error wraps an error in machineErrors, or contains its text, because bbolt does not
// wrap all errors.
func isMachineError(err error) bool {
	return err != nil && slices.ContainsFunc(machineErrors, func(number syscall.Errno) bool {
		return errors.Is(err, number) || strings.Contains(err.Error(), number.Error())
	})
}

// unusable returns the error for a data directory that cannot be used because of a machine error.
func unusable(directory string, reason error) error {
	return fmt.Errorf("%w %s cannot be used now, and nothing shows that its data is damaged. Check that its disk works, "+
		"and that there is enough space, memory and file descriptors; then start the member again: %w",
		ErrDataDirectory, directory, reason)
}

// errPanicked is returned when etcd panics during its start, as it does when it cannot read its files.
var errPanicked = errors.New("etcd panicked")

// panicked returns the error for a panic of etcd. If etcd has logged the cause, it is the panic's reason.
func panicked(reason any) error {
	if cause, ok := reason.(error); ok {
		return fmt.Errorf("%w: %w", errPanicked, cause)
	}
	return fmt.Errorf("%w: %v", errPanicked, reason)
}

// These are messages of errors for which etcd has no error values.
const (
	noPeerAnswers  = "cannot fetch cluster info from peer urls"
	versionUnknown = "incompatible with current running cluster"
)

// joinsLater reports whether an error from starting etcd is temporary, so that the start is retried.
func joinsLater(err error) bool {
	return strings.Contains(err.Error(), noPeerAnswers) || strings.Contains(err.Error(), versionUnknown)
}

// damage has parts of the messages with which etcd reports damaged files.
var damage = []string{"corrupt", "crc mismatch", "checksum", "wal:", "unexpected EOF", "invalid database", "proto:"}

// unwritten has parts of the messages with which etcd panics when it cannot write its files, for example because the
// disk is full. Such a panic does not damage the data.
var unwritten = []string{"failed to commit tx", "failed to save"}

// isDamage reports whether an error from starting etcd means that files are damaged.
func isDamage(err error) bool {
	contains := func(words string) bool { return strings.Contains(err.Error(), words) }
	if errors.Is(err, errPanicked) {
		return !slices.ContainsFunc(unwritten, contains)
	}
	return slices.ContainsFunc(damage, contains)
}

// explain adds advice to an error from starting etcd.
func explain(directory string, err error) error {
	if isMachineError(err) {
		return unusable(directory, err)
	}
	message := err.Error()
	if isDamage(err) {
		return corrupt(directory, err)
	}
	if errors.Is(err, errPanicked) {
		return fmt.Errorf("%w %s cannot be written: check that its disk works and is not full: %w",
			ErrDataDirectory, directory, err)
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
