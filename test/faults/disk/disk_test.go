package disk

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	bolt "go.etcd.io/bbolt"
)

func choices() *rand.Rand { return rand.New(rand.NewPCG(1, 2)) }

// mounted returns a mounted volume and its directory.
func mounted(t *testing.T) (*Volume, string, func() error) {
	t.Helper()
	v, directory := New(1<<30), filepath.Join(t.TempDir(), "disk")
	unmount, err := v.Mount(directory)
	if err != nil {
		t.Skip("FUSE is not permitted: ", err)
	}
	return v, directory, unmount
}

// databaseVariable has the path of the database that a process of TestDatabase opens. This process serves the volume
// and must not map its files: a goroutine that waits for a page would stop the Go scheduler.
const databaseVariable = "QUORATE_TEST_DATABASE"

// TestDatabase: bbolt works on a volume, which it maps into memory; a crash loses what was not synced.
func TestDatabase(t *testing.T) {
	if path := os.Getenv(databaseVariable); path != "" {
		useDatabase(t, path)
		return
	}
	v, directory, unmount := mounted(t)
	for i := range 4 {
		process := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestDatabase$")
		process.Env = append(os.Environ(), databaseVariable+"="+filepath.Join(directory, "db"), fmt.Sprintf("RUN=%d", i))
		if output, err := process.CombinedOutput(); err != nil {
			t.Errorf("run %d: %v\n%s", i, err, output)
		}
		if err := unmount(); err != nil {
			t.Fatal(err)
		}
		t.Log(v.Crash(LoseAll, choices()))
		var err error
		if unmount, err = v.Mount(directory); err != nil {
			t.Fatal(err)
		}
	}
	if err := unmount(); err != nil {
		t.Fatal(err)
	}
}

// useDatabase checks what the runs before have synced, and writes a value. The third run does not sync it.
func useDatabase(t *testing.T, path string) {
	run, err := strconv.Atoi(os.Getenv("RUN"))
	if err != nil {
		t.Fatal(err)
	}
	db, err := bolt.Open(path, 0o600, &bolt.Options{NoSync: run == 2})
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bolt.Tx) error {
		bucket, err := tx.CreateBucketIfNotExists([]byte("bucket"))
		if err != nil {
			return err
		}
		for i := range run {
			if got, want := len(bucket.Get([]byte{byte(i)})) > 0, i != 2; got != want {
				t.Errorf("value %d is there: %v", i, got)
			}
		}
		return bucket.Put([]byte{byte(run)}, bytes.Repeat([]byte("x"), 100000))
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestNames: a crash loses names that were not synced, in order, and a file that was synced keeps its own.
func TestNames(t *testing.T) {
	v := New(1 << 20)
	a, _, _ := v.create(rootInode, "a", syscall.S_IFREG)
	if errno := v.write(a, 0, []byte("1")); errno != 0 {
		t.Fatal(errno)
	}
	v.sync(a)
	b, _, _ := v.create(rootInode, "b", syscall.S_IFREG)
	v.rename(rootInode, "a", rootInode, "c")
	v.write(b, 0, []byte("2"))
	v.Crash(LoseAll, choices())
	if len(v.now[rootInode]) != 1 || v.now[rootInode]["a"] != a {
		t.Errorf("the names are %v", v.now)
	}
	got := make([]byte, 2)
	if n, errno := v.read(a, 0, got); n != 1 || got[0] != '1' || errno != 0 {
		t.Errorf("read %d, %q, %v", n, got, errno)
	}
}

// TestAfterCrash: what a crash leaves does not change the volume itself.
func TestAfterCrash(t *testing.T) {
	v := New(1 << 20)
	a, _, _ := v.create(rootInode, "a", syscall.S_IFREG)
	v.write(a, 0, []byte("1"))
	v.sync(a)
	v.write(a, 1, []byte("2"))
	v.create(rootInode, "b", syscall.S_IFREG)
	v.Halt()
	left, _ := v.AfterCrash(LoseAll, choices())
	got := make([]byte, 3)
	if n, _ := left.read(a, 0, got); n != 1 || len(left.now[rootInode]) != 1 {
		t.Errorf("%q and the names %v are left", got[:n], left.now)
	}
	if errno := left.write(a, 1, []byte("3")); errno != 0 {
		t.Error(errno)
	}
	if n, _ := v.read(a, 0, got); string(got[:n]) != "12" || len(v.now[rootInode]) != 2 {
		t.Errorf("the volume has %q and the names %v", got[:n], v.now)
	}
}

// TestFailedSync: what a failed sync should have written is lost, although a later sync succeeds.
func TestFailedSync(t *testing.T) {
	v := New(1 << 20)
	a, _, _ := v.create(rootInode, "a", syscall.S_IFREG)
	v.sync(a)
	v.write(a, 0, []byte("1"))
	v.Set(func(f *Faults) { f.FailSync = true })
	if errno := v.sync(a); errno != syscall.EIO {
		t.Fatal(errno)
	}
	v.Set(func(f *Faults) { f.FailSync = false })
	v.sync(a)
	v.Crash(LoseNothing, choices())
	if n, _ := v.read(a, 0, make([]byte, 1)); n != 0 {
		t.Error("the write is there")
	}
}

// TestLoss: each loss keeps what it says.
func TestLoss(t *testing.T) {
	for _, loss := range Losses {
		v := New(1 << 20)
		a, _, _ := v.create(rootInode, "a", syscall.S_IFREG)
		v.sync(a)
		for i := range 100 {
			v.write(a, int64(i)*sectorSize, bytes.Repeat([]byte{1}, sectorSize))
		}
		v.Crash(loss, choices())
		data := make([]byte, 100*sectorSize)
		n, _ := v.read(a, 0, data)
		kept, ordered := 0, true
		for i := 0; i < n; i += sectorSize {
			if data[i] == 1 {
				ordered = ordered && kept == i/sectorSize
				kept++
			}
		}
		want := map[Loss]bool{LoseNothing: kept == 100, LoseAll: kept == 0, LoseLast: kept < 100 && ordered,
			LoseSome: kept > 20 && kept < 80 && !ordered}
		if !want[loss] {
			t.Errorf("%s: %d are kept, in order: %v", loss, kept, ordered)
		}
	}
}

// TestFull: a full volume refuses new data, and accepts what was allocated.
func TestFull(t *testing.T) {
	v := New(1 << 20)
	a, _, _ := v.create(rootInode, "a", syscall.S_IFREG)
	if errno := v.allocate(a, 10*blockSize, false); errno != 0 {
		t.Fatal(errno)
	}
	v.Set(func(f *Faults) { f.Filled = true })
	if errno := v.write(a, 0, make([]byte, 10*blockSize)); errno != 0 {
		t.Error(errno)
	}
	if errno := v.write(a, 10*blockSize, make([]byte, 1)); errno != syscall.ENOSPC {
		t.Error(errno)
	}
	if _, _, errno := v.create(rootInode, "b", syscall.S_IFREG); errno != syscall.ENOSPC {
		t.Error(errno)
	}
}

// TestImage: an image is not changed by later writes, and replaces them.
func TestImage(t *testing.T) {
	v, directory, unmount := mounted(t)
	path := filepath.Join(directory, "a")
	write := func(text string) {
		t.Helper()
		file, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := file.WriteString(text); err != nil {
			t.Fatal(err)
		}
		if err := file.Sync(); err != nil {
			t.Fatal(err)
		}
		file.Close()
	}
	write("first")
	image := v.Image()
	write("second and longer")
	if err := unmount(); err != nil {
		t.Fatal(err)
	}
	v.Restore(image)
	unmount, err := v.Mount(directory)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "first" {
		t.Errorf("%q, %v", got, err)
	}
	if err := unmount(); err != nil {
		t.Fatal(err)
	}
	if _, err := v.Flip("a", choices()); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 5)
	if v.read(v.now[rootInode]["a"], 0, got); string(got) == "first" {
		t.Error("no bit was flipped")
	}
}
