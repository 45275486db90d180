package etcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/go-logr/logr"
	bolt "go.etcd.io/bbolt"
	"go.uber.org/zap"
)

// expectRefusal checks that a member does not start and that the error has the advice.
func expectRefusal(t *testing.T, err error, advice string) {
	t.Helper()
	if !errors.Is(err, ErrDataDirectory) || !strings.Contains(err.Error(), advice) {
		t.Errorf("got %v, want advice: %s", err, advice)
	}
}

func TestDirectoryInUse(t *testing.T) {
	member := single(t)
	await(t, "ready", start(t, member).Ready())
	_, err := Start(t.Context(), member)
	expectRefusal(t, err, "stop that process")
}

func TestDirectoryCannotBeMade(t *testing.T) {
	member := single(t)
	file := filepath.Join(member.DataDirectory, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	member.DataDirectory = filepath.Join(file, "etcd")
	_, err := Start(t.Context(), member)
	expectRefusal(t, err, "owned by user")
}

func TestDamagedFiles(t *testing.T) {
	garbage := []byte(strings.Repeat("damage", 2000))
	overwrite := func(file string, offset int64) error {
		f, err := os.OpenFile(file, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		_, err = f.WriteAt(garbage, offset)
		return errors.Join(err, f.Close())
	}
	for name, c := range map[string]struct {
		pattern string
		damage  func(file string) error
	}{
		"database replaced":     {"member/snap/db", func(file string) error { return os.WriteFile(file, garbage, 0o600) }},
		"database truncated":    {"member/snap/db", func(file string) error { return os.Truncate(file, 10000) }},
		"log emptied":           {"member/wal/*.wal", func(file string) error { return os.Truncate(file, 0) }},
		"log replaced":          {"member/wal/*.wal", func(file string) error { return os.WriteFile(file, garbage, 0o600) }},
		"log overwritten":       {"member/wal/*.wal", func(file string) error { return overwrite(file, 8) }},
		"log overwritten later": {"member/wal/*.wal", func(file string) error { return overwrite(file, 300) }},
	} {
		t.Run(name, func(t *testing.T) {
			member := single(t)
			m := start(t, member)
			await(t, "ready", m.Ready())
			if err := m.Stop(t.Context()); err != nil {
				t.Fatal(err)
			}
			files, err := filepath.Glob(filepath.Join(member.DataDirectory, c.pattern))
			if err != nil || len(files) == 0 {
				t.Fatal(files, err)
			}
			if err := c.damage(files[0]); err != nil {
				t.Fatal(err)
			}
			_, err = Start(t.Context(), member)
			expectRefusal(t, err, "restore a snapshot")
			if !errors.Is(err, ErrDamaged) {
				t.Errorf("%v is not ErrDamaged", err)
			}
		})
	}
}

// TestUnwrittenIsNotDamaged: files that etcd cannot write while it starts, on a full disk for example, are not damaged.
func TestUnwrittenIsNotDamaged(t *testing.T) {
	for message, damaged := range map[string]bool{
		"failed to commit tx":                    false,
		"failed to save hard state and entries":  false,
		"failed to save Raft snapshot":           false,
		"failed to recover from snapshot":        true,
		"assertion failed: Page expected to be:": true,
	} {
		err := explain("directory", fmt.Errorf("%w: %s", errPanicked, message))
		expectRefusal(t, err, "directory")
		if got := errors.Is(err, ErrDamaged); got != damaged {
			t.Errorf("%q is damage: %v, want %v: %v", message, got, damaged, err)
		}
	}
}

// overwriteLeaf overwrites a page in the middle of those that contain data.
func overwriteLeaf(file string) error {
	db, err := bolt.Open(file, 0o600, &bolt.Options{ReadOnly: true, PreLoadFreelist: true})
	if err != nil {
		return err
	}
	pageSize := int64(db.Info().PageSize)
	var leaves []int64
	err = db.View(func(tx *bolt.Tx) error {
		for id := int64(2); id*pageSize < tx.Size(); id++ { // after the meta pages
			page, err := tx.Page(int(id))
			if err != nil {
				return err
			}
			if page != nil && page.Type == "leaf" {
				leaves = append(leaves, id)
			}
		}
		return nil
	})
	if err := errors.Join(err, db.Close()); err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(bytes.Repeat([]byte("x"), int(pageSize)), leaves[len(leaves)/2]*pageSize)
	return errors.Join(err, f.Close())
}

func TestStartEndsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	member := single(t)
	if m, err := Start(ctx, member); !errors.Is(err, context.Canceled) {
		if m != nil {
			m.Stop(t.Context())
		}
		t.Errorf("got %v", err)
	}
}

// TestMachineErrorIsNotDamage checks that a member whose file system is full or whose disk fails does not report
// damaged data: the operator would replace it and delete its volume.
func TestMachineErrorIsNotDamage(t *testing.T) {
	// etcd logs the error and panics with the message only.
	fatal := func(cause error) (err error) {
		defer func() { err = panicked(recover()) }()
		newZapLogger(logr.Discard()).Fatal("failed to read WAL, cannot be repaired", zap.Error(cause))
		return nil
	}
	full := &fs.PathError{Op: "fallocate", Path: "0.wal", Err: syscall.ENOSPC}
	for name, test := range map[string]struct {
		err     error
		damaged bool
	}{
		"full while the log is read":        {fatal(full), false},
		"full, wrapped":                     {fatal(fmt.Errorf("open: %w", full)), false},
		"full while the database is opened": {errors.New("file resize error: truncate db: no space left on device"), false},
		"no file descriptors":               {fatal(syscall.EMFILE), false},
		"the quota of a user is exceeded":   {fatal(syscall.EDQUOT), false},
		"a read-only file system":           {fatal(syscall.EROFS), false},
		"a log that cannot be repaired":     {fatal(io.ErrUnexpectedEOF), true},
		"a disk that fails":                 {fatal(syscall.EIO), false},
		"another panic":                     {panicked("tocommit(5) is out of range"), true},
	} {
		for _, got := range []error{explain("/data", test.err), corrupt("/data", test.err)} {
			if errors.Is(got, ErrDamaged) != test.damaged || !errors.Is(got, ErrDataDirectory) {
				t.Errorf("%s: %v", name, got)
			}
			if !test.damaged && !strings.Contains(got.Error(), "nothing shows that its data is damaged") {
				t.Errorf("%s: no advice in %v", name, got)
			}
		}
	}
}
