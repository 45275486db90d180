package operator

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/test/faults/disk"
	"quorate.dev/test/history/check"
)

const (
	diskCapacity  = 1 << 30
	mountInterval = 5 * time.Millisecond
	freeInterval  = time.Second
)

// disks are the file systems of the test on the folders of a sandbox's volumes.
type disks struct {
	root string // of the folders
	logf func(format string, arguments ...any)

	mu  sync.Mutex
	all map[string]*device // by name of the PersistentVolume
	// claims returns the names of the volumes that are claimed; nil means that they are not known yet.
	claims func(context.Context) (map[string]bool, error)
}

// device is the file system on a folder, or has no volume if the folder was used before the file system could be
// mounted.
type device struct {
	volume   *disk.Volume
	unmounts []func() error // of the volume, and of those below it
}

// run mounts a volume on each new folder, and unmounts volumes whose claims are deleted, until ctx ends. Then it
// unmounts all.
func (d *disks) run(ctx context.Context) {
	freed := time.Now()
	for check.Pause(ctx, mountInterval) {
		d.mountNew()
		if time.Since(freed) > freeInterval {
			freed = time.Now()
			d.free(ctx)
		}
	}
	d.unmountExcept(nil)
}

// free unmounts the volumes whose claims are deleted, so that the sandbox can delete their folders.
func (d *disks) free(ctx context.Context) {
	d.mu.Lock()
	claims := d.claims
	d.mu.Unlock()
	if claims == nil {
		return
	}
	if existing, err := claims(ctx); err == nil {
		d.unmountExcept(existing)
	}
}

// follow sets the source of the names of claimed volumes.
func (d *disks) follow(claims func(context.Context) (map[string]bool, error)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.claims = claims
}

func (d *disks) mountNew() {
	folders, err := os.ReadDir(d.root)
	if err != nil {
		return // the sandbox has not created it yet
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, folder := range folders {
		if name := folder.Name(); d.all[name] == nil {
			d.all[name] = d.mount(name)
		}
	}
}

// mount mounts a volume on a folder. A member that has started before would keep using the folder below.
func (d *disks) mount(name string) *device {
	path := filepath.Join(d.root, name)
	below, err := os.Open(path)
	if err != nil {
		return nil // deleted
	}
	defer below.Close()
	v := disk.New(diskCapacity)
	unmount, err := v.Mount(path)
	if err != nil {
		d.logf("%s stays a folder: %v", name, err)
		return &device{}
	}
	if files, err := below.ReadDir(1); len(files) > 0 {
		d.logf("%s stays a folder, which was in use: %v, %v", name, err, unmount())
		return &device{}
	}
	return &device{v, []func() error{unmount}}
}

// unmountExcept unmounts all volumes but some.
func (d *disks) unmountExcept(names map[string]bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, device := range d.all {
		if !names[name] {
			d.unmount(device)
		}
	}
}

func (d *disks) unmount(device *device) {
	if device.volume != nil {
		device.volume.Halt() // nothing waits for a slow sync
	}
	for _, unmount := range slices.Backward(device.unmounts) {
		if err := unmount(); err != nil {
			d.logf("%v", err)
		}
	}
	device.volume, device.unmounts = nil, nil
}

// volume returns the volume with the name of a PersistentVolume.
func (d *disks) volume(name string) (*disk.Volume, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.all[name] == nil || d.all[name].volume == nil {
		return nil, fmt.Errorf("%s is a folder", name)
	}
	return d.all[name].volume, nil
}

// replace mounts another volume over the one of a PersistentVolume, which processes that end may still use.
func (d *disks) replace(name string, volume *disk.Volume) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	device := d.all[name]
	unmount, err := volume.Mount(filepath.Join(d.root, name))
	if err != nil {
		return err
	}
	device.volume, device.unmounts = volume, append(device.unmounts, unmount)
	return nil
}

// claimed returns the names of the volumes of all claims.
func (s *sandbox) claimed(ctx context.Context) (map[string]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	list := &core.PersistentVolumeClaimList{}
	if err := s.objects.List(ctx, list); err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for _, claim := range list.Items {
		names[volumeName(claim.UID)] = true
	}
	return names, nil
}

func volumeName(claim types.UID) string { return "pvc-" + string(claim) }

// disk returns the target of a nemesis, and the name of its volume.
func (n *execution) disk() (member, name string, volume *disk.Volume, err error) {
	if n.disks == nil {
		return "", "", nil, errors.New("volumes cannot be mounted")
	}
	if member, err = n.target(); err != nil {
		return "", "", nil, err
	}
	claim := &core.PersistentVolumeClaim{}
	if err := n.objects.Get(n.ctx, ctrl.ObjectKey{Namespace: "default", Name: member}, claim); err != nil {
		return "", "", nil, err
	}
	name = volumeName(claim.UID)
	volume, err = n.disks.volume(name)
	return member, name, volume, err
}

// onDisk returns a nemesis that causes a fault of a member's disk.
func onDisk(set func(*execution, *disk.Faults)) func(*execution) error {
	return func(n *execution) error {
		member, _, volume, err := n.disk()
		if err != nil {
			return err
		}
		defer n.claims.disturb(member+" had the disk fault "+n.Kind, false, false)()
		volume.Set(func(f *disk.Faults) { set(n, f) })
		n.wait()
		volume.Set(func(f *disk.Faults) { *f = disk.Faults{} })
		return nil
	}
}

// losePower kills a member, and discards the writes of the member that were not synced to its volume. The kernel still
// caches pages of the volume, with the discarded writes. losePower therefore mounts the remaining data as a new file
// system over the volume, so that the restarted member reads only what was synced.
func (n *execution) losePower() error {
	member, name, volume, err := n.disk()
	if err != nil {
		return err
	}
	defer n.claims.disturb(member+" lost the power", false, false)()
	volume.Halt()
	_, _ = n.signal(memberArgument(member), syscall.SIGKILL) // it may be down
	left, lost := volume.AfterCrash(disk.Loss(n.Options["lose"]), n.random)
	if err := n.disks.replace(name, left); err != nil {
		return err
	}
	_, _ = n.signal(memberArgument(member), syscall.SIGKILL) // one that has started on the halted volume
	n.note("%s lost %s", member, lost)
	return nil
}
