package etcd

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"
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
			m.Stop(context.Background())
		}
		t.Errorf("got %v", err)
	}
}
