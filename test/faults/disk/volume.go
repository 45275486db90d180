// Package disk is a file system in memory that distinguishes what was written from what would survive a loss of power, and
// that fails on request. Mount makes it a file system of the machine through FUSE.
//
// # What a crash loses
//
// Each file has its present content, and the content that is safe: what is on the disk after a crash. A write or truncation
// changes the present content and is added to the changes of the file; fsync makes them safe. Names have the same two states
// for the whole volume: the creation, renaming and removal of files is a list of operations in one order, as in the journal of
// ext4 and XFS. The list becomes safe when a directory is synced, or a file whose own name or size has changed. A crash keeps
// the first operations of the list, and of the changes of files what Loss says.
//
// A failed fsync forgets the changes that it should have made safe, and a later fsync does not write them, as on Linux: they
// stay in the page cache and are lost in a crash. A volume that ignores fsync writes old changes back by itself when there are
// too many, as the kernel does.
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

// Loss is what happens in a crash to changes that were not synced.
type Loss string

const (
	LoseNothing Loss = "nothing" // all changes reach the disk
	LoseAll     Loss = "all"
	LoseLast    Loss = "last"      // changes reach the disk in order, up to some point
	LoseSome    Loss = "scattered" // each sector reaches the disk or not
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
	// Free is the space that other files leave, in bytes, if Filled is set.
	Filled bool
	Free   int64
}

// rootInode is FUSE's number of the root directory.
const rootInode = 1

// writebackLimit is the number of bytes of unsynced changes of a file above which the older half becomes safe by itself.
const writebackLimit = 32 << 20

// names has the entries of each directory.
type names map[uint64]map[string]uint64

func (n names) clone() names {
	all := names{}
	for directory, entries := range n {
		all[directory] = maps.Clone(entries)
	}
	return all
}

// entry is the assignment of a name to an inode, or to none if the inode is 0.
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
	pending       []change // between safe and now
	pendingBytes  int64
	reserved      int64 // space allocated in advance, in bytes
	namesAreSafe  bool  // the operations that gave the file its present names are safe
	sizeWasSynced bool
	referenced    bool // by the kernel
}

func (f *file) isDirectory() bool { return f.mode&syscall.S_IFMT == syscall.S_IFDIR }

// used returns the space that the file takes.
func (f *file) used() int64 { return max(int64(len(f.now.blocks))*blockSize, f.reserved) }

// Volume is a file system.
type Volume struct {
	mu       sync.Mutex
	capacity int64
	files    map[uint64]*file
	last     uint64 // inode
	sequence int64  // of changes
	now      names
	safe     names
	pending  [][]entry // operations on names between safe and now
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

// Set replaces the faults.
func (v *Volume) Set(change func(*Faults)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	change(&v.faults)
	close(v.changed)
	v.changed = make(chan struct{})
}

// Halt makes all further operations that change the volume fail, as if the power was lost at this moment.
func (v *Volume) Halt() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.isHalted() {
		close(v.halted)
	}
}

func (v *Volume) isHalted() bool {
	select {
	case <-v.halted:
		return true
	default:
		return false
	}
}

// Crash loses changes that were not synced. No process may use the volume. Afterwards, it has no faults and is not halted.
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

// cut chooses the position in the order of all changes from which a crash loses them.
func (v *Volume) cut(random *rand.Rand) int64 {
	first := v.sequence
	for _, f := range v.files {
		if len(f.pending) > 0 {
			first = min(first, f.pending[0].sequence)
		}
	}
	return first + random.Int64N(v.sequence-first+1)
}

// settle makes the safe content the present one.
func (f *file) settle() {
	f.now, f.pending, f.pendingBytes, f.namesAreSafe, f.referenced = f.safe.clone(), nil, 0, true, false
}

// collect forgets files that have no name and are not open. All operations on names are safe.
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

// Image is a copy of what is safe on a volume.
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

// Flip inverts a bit of a file whose path contains a text, in a sector that has data. No process may use the volume.
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

// walk calls a function for all files in the order of their names.
func (v *Volume) walk(directory uint64, path string, visit func(path string, inode uint64)) {
	for _, name := range slices.Sorted(maps.Keys(v.now[directory])) {
		inode := v.now[directory][name]
		visit(path+"/"+name, inode)
		v.walk(inode, path+"/"+name, visit)
	}
}
