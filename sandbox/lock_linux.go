package sandbox

import (
	"errors"
	"os"
	"syscall"
)

// errRunning is returned if another process holds the lock.
var errRunning = errors.New("this sandbox is running; use it in this terminal with `quorate sandbox shell`, or stop " +
	"it with Ctrl-C in its own")

// acquire locks a file, which it creates if necessary. The kernel releases the lock when the process exits.
func acquire(file string) (*os.File, error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = errRunning
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
