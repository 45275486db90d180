package disk

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// cacheTime is the time in seconds for which the kernel may cache names and attributes. It is long, because nothing
// changes the volume except through the kernel.
const cacheTime = 3600

// closeTime bounds the wait for the end of a file system that was unmounted while the kernel still used it.
const closeTime = 5 * time.Second

// Mount mounts a volume as a file system at a directory, which it creates. It needs /dev/fuse and the right to mount.
func (v *Volume) Mount(directory string) (unmount func() error, err error) {
	if err := os.MkdirAll(directory, 0o700); err != nil {
		return nil, err
	}
	device, err := connect(directory)
	if err != nil {
		return nil, fmt.Errorf("mount %s: %w", directory, err)
	}
	server, err := fuse.NewServer(&adapter{
		fuse.NewDefaultRawFileSystem(), v,
	}, fmt.Sprintf("/dev/fd/%d", device), &fuse.MountOptions{
		MaxWrite: maxTransfer, DisableXAttrs: true, ExplicitDataCacheControl: true, DisableReadDirPlus: true,
	})
	if err != nil {
		return nil, fmt.Errorf("mount %s: %w", directory, err)
	}
	ended := make(chan struct{})
	go func() { server.Serve(); close(ended) }()
	if err := refusePolls(directory); err != nil {
		return nil, fmt.Errorf("mount %s: %w", directory, err)
	}
	return func() error {
		err := syscall.Unmount(directory, 0)
		if errors.Is(err, syscall.EBUSY) {
			err = syscall.Unmount(directory, syscall.MNT_DETACH)
		}
		if err != nil {
			return fmt.Errorf("unmount %s: %w", directory, err)
		}
		select {
		case <-ended:
			return nil
		case <-time.After(closeTime):
			return fmt.Errorf("the file system %s is still in use after %v", directory, closeTime)
		}
	}, nil
}

// pollName is a name that go-fuse serves at the root of each file system: the file's only purpose is to be polled.
const pollName = ".go-fuse-epoll-hack"

// refusePolls polls a file once. The server does not support that, after which the kernel never asks it again.
// Otherwise the kernel would ask when Go's runtime adds an open file to its poller, which cannot wait for a server in
// the same process.
func refusePolls(directory string) error {
	file, err := syscall.Open(filepath.Join(directory, pollName), syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	_, err = unix.Poll([]unix.PollFd{{Fd: int32(file), Events: unix.POLLIN}}, 0)
	if errors.Is(err, unix.EINTR) {
		err = nil // the kernel has asked the server before it waits
	}
	return errors.Join(err, syscall.Close(file))
}

// maxTransfer is the maximum size of a read or write request of the kernel, in bytes.
const maxTransfer = 1 << 20

// connect mounts a file system and returns the file descriptor of its connection, which other processes do not inherit:
// they would keep the connection open.
func connect(directory string) (device int, err error) {
	device, err = syscall.Open("/dev/fuse", syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=%d,group_id=%d,max_read=%d,default_permissions",
		device, os.Geteuid(), os.Getegid(), maxTransfer)
	if err := syscall.Mount("faults", directory, "fuse.faults", syscall.MS_NOSUID|syscall.MS_NODEV, options); err != nil {
		return 0, errors.Join(err, syscall.Close(device))
	}
	return device, nil
}

// adapter serves the FUSE requests of the kernel. FUSE's node IDs are the inode numbers of the volume.
type adapter struct {
	fuse.RawFileSystem
	*Volume
}

func (a *adapter) String() string { return "faults" }

// attributes fills in the attributes of a file.
func (a *adapter) attributes(inode uint64, out *fuse.Attr) fuse.Status {
	a.mu.Lock()
	defer a.mu.Unlock()
	f := a.files[inode]
	if f == nil {
		return fuse.ENOENT
	}
	seconds, nanoseconds := uint64(f.modified.Unix()), uint32(f.modified.Nanosecond())
	*out = fuse.Attr{
		Ino: inode, Size: uint64(f.now.size), Blocks: uint64(f.used() / sectorSize), Mode: f.mode,
		Nlink: 1, Blksize: blockSize, Atime: seconds, Mtime: seconds, Ctime: seconds, Atimensec: nanoseconds,
		Mtimensec: nanoseconds, Ctimensec: nanoseconds,
		Owner: fuse.Owner{Uid: uint32(os.Getuid()), Gid: uint32(os.Getgid())},
	}
	return fuse.OK
}

func (a *adapter) entry(inode uint64, out *fuse.EntryOut) fuse.Status {
	a.reference(inode, true)
	out.NodeId, out.Generation, out.EntryValid, out.AttrValid = inode, 1, cacheTime, cacheTime
	return a.attributes(inode, &out.Attr)
}

func (a *adapter) Lookup(_ <-chan struct{}, header *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	a.mu.Lock()
	inode, ok := a.now[header.NodeId][name]
	a.mu.Unlock()
	if !ok {
		return fuse.ENOENT
	}
	return a.entry(inode, out)
}

func (a *adapter) Forget(inode, _ uint64) { a.reference(inode, false) }

func (a *adapter) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	out.AttrValid = cacheTime
	return a.attributes(in.NodeId, &out.Attr)
}

func (a *adapter) SetAttr(_ <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	if size, ok := in.GetSize(); ok {
		if errno := a.truncate(in.NodeId, int64(size)); errno != 0 {
			return fuse.Status(errno)
		}
	}
	if mode, ok := in.GetMode(); ok {
		a.mu.Lock()
		if f := a.files[in.NodeId]; f != nil {
			f.mode = f.mode&syscall.S_IFMT | mode&0o7777
		}
		a.mu.Unlock()
	}
	out.AttrValid = cacheTime
	return a.attributes(in.NodeId, &out.Attr)
}

func (a *adapter) made(directory uint64, name string, mode uint32, out *fuse.EntryOut) fuse.Status {
	inode, _, errno := a.create(directory, name, mode)
	if errno != 0 {
		return fuse.Status(errno)
	}
	return a.entry(inode, out)
}

func (a *adapter) Mknod(_ <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	return a.made(in.NodeId, name, in.Mode, out)
}

func (a *adapter) Mkdir(_ <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	return a.made(in.NodeId, name, syscall.S_IFDIR|in.Mode&0o7777, out)
}

func (a *adapter) Create(_ <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	out.OpenFlags = fuse.FOPEN_KEEP_CACHE
	return a.made(in.NodeId, name, syscall.S_IFREG|in.Mode&0o7777, &out.EntryOut)
}

func (a *adapter) Unlink(_ <-chan struct{}, header *fuse.InHeader, name string) fuse.Status {
	return fuse.Status(a.remove(header.NodeId, name, false))
}

func (a *adapter) Rmdir(_ <-chan struct{}, header *fuse.InHeader, name string) fuse.Status {
	return fuse.Status(a.remove(header.NodeId, name, true))
}

func (a *adapter) Rename(_ <-chan struct{}, in *fuse.RenameIn, from, to string) fuse.Status {
	if in.Flags != 0 {
		return fuse.EINVAL
	}
	return fuse.Status(a.rename(in.NodeId, from, in.Newdir, to))
}

func (a *adapter) Open(_ <-chan struct{}, _ *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	out.OpenFlags = fuse.FOPEN_KEEP_CACHE
	return fuse.OK
}

func (a *adapter) Read(_ <-chan struct{}, in *fuse.ReadIn, buffer []byte) (fuse.ReadResult, fuse.Status) {
	n, errno := a.read(in.NodeId, int64(in.Offset), buffer)
	return fuse.ReadResultData(buffer[:n]), fuse.Status(errno)
}

func (a *adapter) Write(_ <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	if errno := a.write(in.NodeId, int64(in.Offset), data); errno != 0 {
		return 0, fuse.Status(errno)
	}
	return uint32(len(data)), fuse.OK
}

func (a *adapter) Fsync(_ <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	return fuse.Status(a.sync(in.NodeId))
}

func (a *adapter) FsyncDir(_ <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	return fuse.Status(a.sync(in.NodeId))
}

func (a *adapter) Flush(<-chan struct{}, *fuse.FlushIn) fuse.Status { return fuse.OK }

func (a *adapter) Access(<-chan struct{}, *fuse.AccessIn) fuse.Status { return fuse.OK }

func (a *adapter) Fallocate(_ <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	const keepSize = 1
	if in.Mode&^keepSize != 0 {
		return fuse.Status(syscall.EOPNOTSUPP)
	}
	return fuse.Status(a.allocate(in.NodeId, int64(in.Offset+in.Length), in.Mode == keepSize))
}

func (a *adapter) OpenDir(<-chan struct{}, *fuse.OpenIn, *fuse.OpenOut) fuse.Status { return fuse.OK }

func (a *adapter) ReadDir(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	a.mu.Lock()
	defer a.mu.Unlock()
	entries := a.now[in.NodeId]
	sorted := slices.Sorted(maps.Keys(entries))
	for i := int(in.Offset); i < len(sorted); i++ {
		inode := entries[sorted[i]]
		entry := fuse.DirEntry{Name: sorted[i], Ino: inode, Mode: a.files[inode].mode, Off: uint64(i + 1)}
		if !out.AddDirEntry(entry) {
			break
		}
	}
	return fuse.OK
}

func (a *adapter) StatFs(_ <-chan struct{}, _ *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	a.mu.Lock()
	defer a.mu.Unlock()
	free := uint64(a.free() / blockSize)
	*out = fuse.StatfsOut{Blocks: uint64(a.capacity / blockSize), Bfree: free, Bavail: free, Bsize: blockSize,
		Frsize: blockSize, NameLen: 255, Files: 1 << 20, Ffree: 1 << 20}
	return fuse.OK
}
