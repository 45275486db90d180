package disk

import (
	"syscall"
	"time"
)

// record assigns names to inodes. A later sync makes the assignments safe (see the package comment).
func (v *Volume) record(entries ...entry) {
	v.now.assign(entries)
	v.pending = append(v.pending, entries)
	for _, e := range entries {
		if f := v.files[e.inode]; f != nil {
			f.namesAreSafe = false
		}
		if parent := v.files[e.directory]; parent != nil {
			parent.modified = time.Now()
		}
	}
}

// mutable returns the error for an operation that changes the volume, or 0 if changes are possible.
func (v *Volume) mutable() syscall.Errno {
	if v.isHalted() || v.faults.FailWrite {
		return syscall.EIO
	}
	return 0
}

// free returns the unused space of the volume, in bytes.
func (v *Volume) free() int64 {
	if v.faults.Filled {
		return v.faults.Free
	}
	left := v.capacity
	for _, f := range v.files {
		left -= f.used()
	}
	return max(0, left)
}

// create creates a file, a directory or a socket.
func (v *Volume) create(directory uint64, name string, mode uint32) (uint64, *file, syscall.Errno) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if errno := v.mutable(); errno != 0 {
		return 0, nil, errno
	}
	if _, ok := v.now[directory][name]; ok {
		return 0, nil, syscall.EEXIST
	}
	if v.free() < blockSize {
		return 0, nil, syscall.ENOSPC
	}
	v.last++
	f := &file{mode: mode, modified: time.Now()}
	v.files[v.last] = f
	v.record(entry{directory, name, v.last})
	return v.last, f, 0
}

func (v *Volume) remove(directory uint64, name string, isDirectory bool) syscall.Errno {
	v.mu.Lock()
	defer v.mu.Unlock()
	if errno := v.mutable(); errno != 0 {
		return errno
	}
	inode, ok := v.now[directory][name]
	switch {
	case !ok:
		return syscall.ENOENT
	case isDirectory && !v.files[inode].isDirectory():
		return syscall.ENOTDIR
	case !isDirectory && v.files[inode].isDirectory():
		return syscall.EISDIR
	case isDirectory && len(v.now[inode]) > 0:
		return syscall.ENOTEMPTY
	}
	v.record(entry{directory, name, 0})
	return 0
}

func (v *Volume) rename(from uint64, name string, to uint64, newName string) syscall.Errno {
	v.mu.Lock()
	defer v.mu.Unlock()
	if errno := v.mutable(); errno != 0 {
		return errno
	}
	inode, ok := v.now[from][name]
	if !ok {
		return syscall.ENOENT
	}
	if former, ok := v.now[to][newName]; ok && v.files[former].isDirectory() && len(v.now[former]) > 0 {
		return syscall.ENOTEMPTY
	}
	v.record(entry{from, name, 0}, entry{to, newName, inode})
	return 0
}

func (v *Volume) read(inode uint64, offset int64, into []byte) (int, syscall.Errno) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.faults.FailRead {
		return 0, syscall.EIO
	}
	f := v.files[inode]
	if f == nil {
		return 0, syscall.EIO
	}
	return f.now.read(offset, into), 0
}

func (v *Volume) write(inode uint64, offset int64, data []byte) syscall.Errno {
	v.mu.Lock()
	defer v.mu.Unlock()
	if errno := v.mutable(); errno != 0 {
		return errno
	}
	f := v.files[inode]
	if f == nil {
		return syscall.EIO
	}
	if offset+int64(len(data)) > max(f.reserved, f.now.size) && v.free() < int64(len(data)) {
		return syscall.ENOSPC
	}
	v.change(f, change{offset: offset, data: append([]byte{}, data...)})
	return 0
}

func (v *Volume) truncate(inode uint64, size int64) syscall.Errno {
	v.mu.Lock()
	defer v.mu.Unlock()
	if errno := v.mutable(); errno != 0 {
		return errno
	}
	f := v.files[inode]
	if f == nil {
		return syscall.EIO
	}
	f.reserved = min(f.reserved, size)
	v.change(f, change{offset: size})
	return 0
}

// allocate reserves space up to the position end, and extends the file to end unless keepSize is set.
func (v *Volume) allocate(inode uint64, end int64, keepSize bool) syscall.Errno {
	v.mu.Lock()
	defer v.mu.Unlock()
	if errno := v.mutable(); errno != 0 {
		return errno
	}
	f := v.files[inode]
	if f == nil {
		return syscall.EIO
	}
	if end-f.used() > v.free() {
		return syscall.ENOSPC
	}
	f.reserved = max(f.reserved, end)
	if !keepSize && end > f.now.size {
		v.change(f, change{offset: end})
	}
	return 0
}

func (v *Volume) change(f *file, c change) {
	v.sequence++
	c.sequence = v.sequence
	size := f.now.size
	c.apply(&f.now)
	f.modified = time.Now()
	if f.now.size != size {
		f.sizeWasSynced = false
	}
	f.pending, f.pendingBytes = append(f.pending, c), f.pendingBytes+int64(len(c.data))
	if f.pendingBytes > writebackLimit {
		f.write(len(f.pending) / 2)
	}
}

// write applies the oldest pending changes, count of them, to the safe content.
func (f *file) write(count int) {
	for _, c := range f.pending[:count] {
		c.apply(&f.safe)
		f.pendingBytes -= int64(len(c.data))
	}
	f.pending = append([]change{}, f.pending[count:]...)
}

// sync implements fsync: it makes the changes of a file or directory safe, unless a fault prevents it.
func (v *Volume) sync(inode uint64) syscall.Errno {
	if errno := v.wait(); errno != 0 {
		return errno
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	f := v.files[inode]
	switch {
	case v.isHalted() || f == nil:
		return syscall.EIO
	case v.faults.FailSync:
		f.pending, f.pendingBytes = nil, 0
		return syscall.EIO
	case v.faults.IgnoreSync:
		return 0
	}
	v.Syncs++
	if f.isDirectory() || !f.namesAreSafe || !f.sizeWasSynced {
		v.syncNames()
	}
	f.write(len(f.pending))
	f.sizeWasSynced = true
	return 0
}

func (v *Volume) syncNames() {
	for _, operation := range v.pending {
		v.safe.assign(operation)
	}
	v.pending = nil
	for _, f := range v.files {
		f.namesAreSafe = true
	}
	v.collect()
}

// reference records whether the kernel or a process uses a file. A used file exists even without a name.
func (v *Volume) reference(inode uint64, used bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if f := v.files[inode]; f != nil {
		f.referenced = used
	}
	if !used && len(v.pending) == 0 {
		v.collect()
	}
}

// wait waits for the delay of a slow fsync. It ends early when the delay is removed, or with EIO when the volume is
// halted.
func (v *Volume) wait() syscall.Errno {
	begin := time.Now()
	for {
		v.mu.Lock()
		left, halted, changed := v.faults.SyncDelay-time.Since(begin), v.halted, v.changed
		v.mu.Unlock()
		if left <= 0 {
			return 0
		}
		timer := time.NewTimer(left)
		select {
		case <-timer.C:
		case <-changed:
		case <-halted:
			timer.Stop()
			return syscall.EIO
		}
		timer.Stop()
	}
}
