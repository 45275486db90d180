package backup

import (
	"context"
	"errors"
	"path"
	"strconv"
	"strings"
	"sync"
	"testing"

	"quorate.dev/apiserver/backup/format"
	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/test/upstream"
)

// TestConcurrentBackups creates backups of the same path at the same time, like operators in two hosting clusters
// that share a bucket. The attempts of one UID succeed, the others fail, and the stored backup is complete.
func TestConcurrentBackups(t *testing.T) {
	flags := etcdtest.Flags(t)
	member := etcdtest.Start(t, flags)
	if _, err := member.Client().Put(t.Context(), "/registry/a", "value"); err != nil {
		t.Fatal(err)
	}
	for name, d := range destinations(t) {
		t.Run(name, func(t *testing.T) {
			for round := range 5 {
				target := "shared/" + strconv.Itoa(round)
				succeeded := createConcurrently(t, d, flags.DataDirectory, target)
				if len(succeeded) != 1 {
					t.Errorf("backups with the UIDs %v succeeded, want one", succeeded)
				}
				for uid := range succeeded { // create verifies the stored backup
					mustRun(t, d, "create", "--data-dir", flags.DataDirectory, "--path", target, "--uid", uid)
				}
				if files := storedFiles(t, d, target); len(files) != 2 {
					t.Errorf("stored files %q, want a manifest and a snapshot", files)
				}
			}
		})
	}
}

// createConcurrently makes two attempts to create each of three backups, and returns the UIDs of those that succeeded.
func createConcurrently(t *testing.T, d destination, member, target string) map[string]bool {
	t.Helper()
	var lock sync.Mutex
	var group sync.WaitGroup
	succeeded := map[string]bool{}
	for attempt := range 6 {
		uid := strconv.Itoa(attempt % 3)
		group.Go(func() {
			_, err := run(t, d, "create", "--data-dir", member, "--path", target, "--uid", uid)
			lock.Lock()
			defer lock.Unlock()
			switch {
			case err == nil:
				succeeded[uid] = true
			case !strings.Contains(err.Error(), "contains another backup"):
				t.Log(err) // a complete attempt with the same UID has deleted the snapshot of this one
			}
		})
	}
	group.Wait()
	return succeeded
}

// open opens the store of a destination.
func (d destination) open(t *testing.T) store {
	t.Helper()
	var s store
	var err error
	if d.flags[0] == "--directory" {
		s, err = openDirectory(d.flags[1])
	} else {
		s, err = openBucket(s3Options{endpoint: d.flags[1], bucket: upstream.S3Bucket, region: "us-east-1", pathStyle: true})
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// storedFiles returns the names of the files of a backup.
func storedFiles(t *testing.T, d destination, target string) (names []string) {
	t.Helper()
	files, err := d.open(t).find(t.Context(), target)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		names = append(names, path.Base(file))
	}
	return names
}

// TestUnfinishedSnapshots checks that the snapshots of attempts that were killed are deleted: by the next attempt of
// their UID, or with the backup. The snapshots of other UIDs, whose upload may be in progress, are kept.
func TestUnfinishedSnapshots(t *testing.T) {
	flags := etcdtest.Flags(t)
	if _, err := etcdtest.Start(t, flags).Client().Put(t.Context(), "/registry/a", "value"); err != nil {
		t.Fatal(err)
	}
	for name, d := range destinations(t) {
		t.Run(name, func(t *testing.T) {
			s := d.open(t)
			own, foreign, unrelated := format.SnapshotFile("1", true), format.SnapshotFile("2", false), "README"
			for _, file := range []string{own, foreign, unrelated} {
				if err := s.put(t.Context(), "a/"+file, strings.NewReader("x"), 1); err != nil {
					t.Fatal(err)
				}
			}
			made := mustRun(t, d, "create", "--data-dir", flags.DataDirectory, "--path", "a", "--uid", "1")
			expect := func(want ...string) {
				t.Helper()
				if got := storedFiles(t, d, "a"); len(got) != len(want) || strings.Join(got, " ") != strings.Join(want, " ") {
					t.Errorf("stored files %q, want %q", got, want)
				}
			}
			files := []string{unrelated, format.ManifestFile, made.Manifest.File, foreign}
			if foreign < made.Manifest.File {
				files[2], files[3] = files[3], files[2]
			}
			expect(files...)
			if _, err := run(t, d, "delete", "--path", "a", "--uid", "1"); err != nil {
				t.Error(err)
			}
			expect(unrelated, foreign)
			if _, err := run(t, d, "delete", "--path", "a"); err != nil {
				t.Error(err)
			}
			expect(unrelated)
		})
	}
}

// TestCreateKeepsFiles checks that create of a store does not replace an existing file.
func TestCreateKeepsFiles(t *testing.T) {
	for name, d := range destinations(t) {
		t.Run(name, func(t *testing.T) {
			s := d.open(t)
			if err := s.create(t.Context(), "a/b", []byte("first")); err != nil {
				t.Fatal(err)
			}
			if err := s.create(t.Context(), "a/b", []byte("second")); !errors.Is(err, errExists) {
				t.Errorf("got %v, want %v", err, errExists)
			}
			if files := storedFiles(t, d, "a"); len(files) != 1 {
				t.Errorf("stored files %q", files)
			}
			if files := storedFiles(t, d, "missing"); len(files) != 0 {
				t.Errorf("a directory that does not exist has the files %q", files)
			}
		})
	}
}

// forgetful is a store whose response to the creation of a file is lost, so that the request is repeated.
type forgetful struct{ store }

func (f forgetful) create(ctx context.Context, name string, content []byte) error {
	return errors.Join(f.store.create(ctx, name, content), f.store.create(ctx, name, content))
}

// TestRepeatedManifest checks that a backup whose manifest is written by a repeated request is complete.
func TestRepeatedManifest(t *testing.T) {
	d, err := openDirectory(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	c := &creation{store: forgetful{d}, path: "a", log: t.Logf}
	c.manifest.UID, c.manifest.File = "1", format.SnapshotFile("1", false)
	c.manifest.FormatVersion = format.Version
	if err := d.put(t.Context(), "a/"+c.manifest.File, strings.NewReader("x"), 1); err != nil {
		t.Fatal(err)
	}
	if m, err := c.complete(t.Context()); err != nil || m.File != c.manifest.File {
		t.Errorf("%+v, %v", m, err)
	}
	if files, err := d.find(t.Context(), "a"); err != nil || len(files) != 2 {
		t.Errorf("files %q, %v", files, err)
	}
}

// TestCreateWithoutLinks checks that create does not replace an existing file on a file system without links.
func TestCreateWithoutLinks(t *testing.T) {
	d, err := openDirectory(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []error{nil, errExists} {
		if err := d.write("a/partial", strings.NewReader("x"), 1); err != nil {
			t.Fatal(err)
		}
		if err := d.createWithoutLinks("a/partial", "a/b"); !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
		if files, err := d.find(t.Context(), "a"); err != nil || len(files) != 1 || files[0] != "a/b" {
			t.Errorf("files %q, %v", files, err)
		}
	}
}
