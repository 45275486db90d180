package isolation

import (
	"os"
	"syscall"
)

// ownMounts returns the attributes with which a process starts in a new mount namespace. If this user is not root, the
// process is root of a new user namespace.
func ownMounts() *syscall.SysProcAttr {
	attributes := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if os.Getuid() != 0 {
		attributes.Cloneflags |= syscall.CLONE_NEWUSER
		attributes.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		attributes.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	return attributes
}

// hideMounts prevents mounts in this namespace from propagating to other namespaces.
func hideMounts() error { return syscall.Mount("none", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, "") }
