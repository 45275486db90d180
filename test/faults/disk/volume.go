// Package disk is a file system in memory that keeps the written data apart from the data that would survive a power
// failure, and that fails on request. Mount makes it a file system of the machine through FUSE.
//
// # Crashes
//
// Each file has its present content and its safe content, which is on the disk after a crash. A write or truncation
// changes the present content and is added to the pending changes of the file; fsync makes them safe. Names have the
// same two states for the whole volume: the creation, renaming and removal of files is a list of operations in one
// order, as in the journal of ext4 and XFS. The list becomes safe when a directory is synced, or a file whose own name
// or size has changed. A crash keeps a prefix of the list, and a part of the pending changes of files that Loss
// selects.
//
// A failed fsync discards the pending changes of the file, and a later fsync does not write them, as on Linux: they
// stay in the page cache and are lost in a crash. A volume that ignores fsync writes old changes back by itself when
// there are too many, as the kernel does.
package disk

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Loss selects the changes that were not synced and still reach the disk in a crash.
type Loss string

const (
	LoseNothing Loss = "nothing" // all changes reach the disk
	LoseAll     Loss = "all"
	LoseLast    Loss = "last"      // changes reach the disk in order, up to some point
	LoseSome    Loss = "scattered" // each sector reaches the disk with a probability of 1/2
)

// Losses are all values of Loss.
var Losses = []Loss{LoseNothing, LoseAll, LoseLast, LoseSome}

// Faults are the present faults of a volume.
type Faults struct {
	SyncDelay  time.Duration
	FailSync   bool // fsync returns EIO and loses the writes that it should have made durable
	IgnoreSync bool // fsync returns without an effect
	FailWrite  bool // writes return EIO
	FailRead   bool // reads return EIO, except those from the page cache
	// Free is the remaining space in bytes if Filled is set: other files fill the rest of the volume.
	Filled bool
	Free   int64
}

// rootInode is FUSE's number of the root directory.
const rootInode = 1

// writebackLimit is the number of bytes of unsynced changes of a file above which the older half becomes safe by
// itself.
const writebackLimit = 32 << 20

// names maps the inode of a directory and the name of an entry to the inode of the entry.
type names map[uint64]map[string]uint64

func (n names) clone() names {
	all := names{}
	for directory, entries := range n {
		all[directory] = maps.Clone(entries)
	}
	return all
}

// entry assigns a name in a directory to an inode. Inode 0 removes the name.
type entry struct {
	directory uint64
	name      string
	inode     uint64
}

func (n names) assign(entries []entry) {
	for _, e := range entries {
		if e.inode == 0 {
			delete(n[e.directory], e.name)
			continue
		}
		if n[e.directory] == nil {
			n[e.directory] = map[string]uint64{}
		}
		n[e.directory][e.name] = e.inode
	}
}

// file is a file, a directory or a socket.
type file struct {
	mode          uint32 // type and permissions
	modified      time.Time
	now, safe     content
	pending       []change // changes of now that are not in safe, oldest first
	pendingBytes  int64
	reserved      int64 // space allocated in advance, in bytes
	namesAreSafe  bool  // the operations that gave the file its present names are safe
	sizeWasSynced bool
	referenced    bool // the kernel or a process uses the file
}

func (f *file) isDirectory() bool { return f.mode&syscall.S_IFMT == syscall.S_IFDIR }

// used returns the space that the file occupies or has reserved, in bytes.
func (f *file) used() int64 { return max(int64(len(f.now.blocks))*blockSize, f.reserved) }

// Volume is a file system.
type Volume struct {
	mu       sync.Mutex
	capacity int64
	files    map[uint64]*file
	last     uint64 // highest inode that was assigned
	sequence int64  // number of changes, for their order
	now      names
	safe     names
	pending  [][]entry // operations on names that are in now and not in safe, oldest first
	faults   Faults
	halted   chan struct{} // closed by Halt
	changed  chan struct{} // closed when the faults change
	Syncs    int64         // number of fsyncs
}

// New returns an empty volume.
func New(capacity int64) *Volume {
	v := &Volume{capacity: capacity, halted: make(chan struct{}), changed: make(chan struct{})}
	v.Restore(Image{})
	return v
}

// Set changes the faults.
func (v *Volume) Set(change func(*Faults)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	change(&v.faults)
	close(v.changed)
	v.changed = make(chan struct{})
}

// Halt makes all further operations that change the volume fail with EIO, as if the power had failed at this moment.
func (v *Volume) Halt() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.isHalted() {
		close(v.halted)
	}
}

// Fails reports whether the volume is halted, or has a fault that makes operations fail.
func (v *Volume) Fails() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.isHalted() || v.faults.FailSync || v.faults.FailWrite || v.faults.FailRead || v.faults.Filled
}

func (v *Volume) isHalted() bool {
	select {
	case <-v.halted:
		return true
	default:
		return false
	}
}

// Crash simulates a power failure: it loses changes that were not synced, as loss selects, and removes all faults and
// the halt. No process may use the volume. lost describes the lost changes.
func (v *Volume) Crash(loss Loss, random *rand.Rand) (lost string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	operations, changes := len(v.pending), 0
	kept := operations
	switch loss {
	case LoseAll:
		kept = 0
	case LoseLast, LoseSome:
		kept = random.IntN(operations + 1)
	}
	for _, operation := range v.pending[:kept] {
		v.safe.assign(operation)
	}
	until := v.cut(random)
	lostChanges := 0
	for _, inode := range slices.Sorted(maps.Keys(v.files)) {
		f := v.files[inode]
		for _, c := range f.pending {
			changes++
			all := true
			for _, part := range c.sectors() {
				if loss == LoseNothing || loss == LoseLast && c.sequence < until || loss == LoseSome && random.IntN(2) == 0 {
					part.apply(&f.safe)
				} else {
					all = false
				}
			}
			if !all {
				lostChanges++
			}
		}
		f.settle()
	}
	v.now, v.pending, v.faults = v.safe.clone(), nil, Faults{}
	v.collect()
	v.halted = make(chan struct{})
	return fmt.Sprintf("%d of %d unsynced changes and %d of %d operations on names", lostChanges, changes,
		operations-kept, operations)
}

// AfterCrash returns another volume with the content that a crash leaves of this one, which must be halted. Processes
// may still use this volume.
func (v *Volume) AfterCrash(loss Loss, random *rand.Rand) (left *Volume, lost string) {
	left = New(v.capacity)
	v.copyTo(left)
	return left, left.Crash(loss, random)
}

// copyTo copies the files and names of v to an empty volume, including their pending changes.
func (v *Volume) copyTo(other *Volume) {
	v.mu.Lock()
	defer v.mu.Unlock()
	other.last, other.sequence, other.pending = v.last, v.sequence, slices.Clone(v.pending)
	other.now, other.safe = v.now.clone(), v.safe.clone()
	for inode, f := range v.files {
		copied := *f
		copied.now, copied.safe, copied.pending = f.now.clone(), f.safe.clone(), slices.Clone(f.pending)
		other.files[inode] = &copied
	}
}

// cut returns a random position in the order of all pending changes. With LoseLast, a crash loses the changes from this
// position on.
func (v *Volume) cut(random *rand.Rand) int64 {
	first := v.sequence
	for _, f := range v.files {
		if len(f.pending) > 0 {
			first = min(first, f.pending[0].sequence)
		}
	}
	return first + random.Int64N(v.sequence-first+1)
}

// settle discards the pending changes: the safe content becomes the present one.
func (f *file) settle() {
	f.now, f.pending, f.pendingBytes, f.namesAreSafe, f.referenced = f.safe.clone(), nil, 0, true, false
}

// collect removes files that have no name and are not open. All operations on names must be safe.
func (v *Volume) collect() {
	named := map[uint64]bool{rootInode: true}
	var walk func(directory uint64)
	walk = func(directory uint64) {
		for _, inode := range v.now[directory] {
			if !named[inode] {
				named[inode] = true
				walk(inode)
			}
		}
	}
	walk(rootInode)
	for inode, f := range v.files {
		if !named[inode] && !f.referenced {
			delete(v.files, inode)
			delete(v.now, inode)
			delete(v.safe, inode)
		}
	}
}

// Image is a copy of the safe content of a volume.
type Image struct {
	files map[uint64]*file
	names names
	last  uint64
}

// Image returns a copy of the synced state of the volume, which a loss of power does not change.
func (v *Volume) Image() Image {
	v.mu.Lock()
	defer v.mu.Unlock()
	image := Image{files: map[uint64]*file{}, names: v.safe.clone(), last: v.last}
	for inode, f := range v.files {
		image.files[inode] = &file{mode: f.mode, modified: f.modified, safe: f.safe.clone(), reserved: f.reserved}
	}
	return image
}

// Restore replaces everything on the volume by an image; the zero image is empty. No process may use the volume.
func (v *Volume) Restore(image Image) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.files = map[uint64]*file{rootInode: {mode: syscall.S_IFDIR | 0o700, modified: time.Now()}}
	v.last = max(image.last, rootInode)
	for inode, f := range image.files {
		restored := *f
		restored.settle()
		v.files[inode] = &restored
	}
	v.safe = image.names.clone()
	v.now, v.pending, v.faults = v.safe.clone(), nil, Faults{}
	v.collect()
	v.halted = make(chan struct{})
}

// ErrNothing means that no file has data that could be damaged.
var ErrNothing = errors.New("no file has data")

// Flip inverts a random bit of a random non-zero byte in a file whose path contains text. where describes the place. No
// process may use the volume.
func (v *Volume) Flip(text string, random *rand.Rand) (where string, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	type place struct {
		path  string
		inode uint64
		index int64
	}
	var places []place
	v.walk(rootInode, "", func(path string, inode uint64) {
		if !strings.Contains(path, text) {
			return
		}
		for _, index := range slices.Sorted(maps.Keys(v.files[inode].safe.blocks)) {
			if *v.files[inode].safe.blocks[index] != [blockSize]byte{} {
				places = append(places, place{path, inode, index})
			}
		}
	})
	if len(places) == 0 {
		return "", ErrNothing
	}
	chosen := places[random.IntN(len(places))]
	f := v.files[chosen.inode]
	block := *f.safe.blocks[chosen.index]
	var filled []int
	for i, b := range block {
		if b != 0 {
			filled = append(filled, i)
		}
	}
	at := filled[random.IntN(len(filled))]
	block[at] ^= 1 << random.IntN(8)
	f.safe.blocks[chosen.index] = &block
	f.settle()
	return fmt.Sprintf("byte %d of %s", chosen.index*blockSize+int64(at), chosen.path), nil
}

// walk calls visit for all files below a directory, in the order of their names.
func (v *Volume) walk(directory uint64, path string, visit func(path string, inode uint64)) {
	for _, name := range slices.Sorted(maps.Keys(v.now[directory])) {
		inode := v.now[directory][name]
		visit(path+"/"+name, inode)
		v.walk(inode, path+"/"+name, visit)
	}
}
