// Package memory limits the memory of processes with cgroups of version 1 or 2.
package memory

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const root = "/sys/fs/cgroup"

// Group is a cgroup that counts and limits memory.
type Group struct {
	path         string
	usage, limit string // names of the files of the cgroup
	unlimited    string // content of the limit file without a limit
}

// NewGroup creates a cgroup below the cgroup of this process or, if that cannot have children with the memory
// controller, below its parent.
func NewGroup(name string) (*Group, error) {
	own, version, err := ownGroup()
	if err != nil {
		return nil, err
	}
	g := &Group{
		path: filepath.Join(own, name), usage: "memory.usage_in_bytes", limit: "memory.limit_in_bytes", unlimited: "-1",
	}
	if version == 1 {
		return g, os.Mkdir(g.path, 0o700)
	}
	g.usage, g.limit, g.unlimited = "memory.current", "memory.max", "max"
	// Only a group without processes passes its controllers on to others.
	for _, parent := range []string{own, filepath.Dir(own)} {
		enabled, err := os.ReadFile(filepath.Join(parent, "cgroup.subtree_control"))
		if err != nil || !slices.Contains(strings.Fields(string(enabled)), "memory") {
			continue
		}
		g.path = filepath.Join(parent, name)
		return g, os.Mkdir(g.path, 0o700)
	}
	return nil, fmt.Errorf("the groups around %s do not pass the memory controller on", own)
}

// ownGroup returns the directory of this process's cgroup that has the memory controller, and the version of cgroups.
func ownGroup() (path string, version int, err error) {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", 0, err
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		switch {
		case len(fields) < 3:
		case slices.Contains(strings.Split(fields[1], ","), "memory"):
			return filepath.Join(root, "memory", fields[2]), 1, nil
		case fields[1] == "":
			path = filepath.Join(root, fields[2])
		}
	}
	if path == "" {
		return "", 0, errors.New("this process has no cgroup with the memory controller")
	}
	return path, 2, nil
}

func (g *Group) write(file, text string) error {
	return os.WriteFile(filepath.Join(g.path, file), []byte(text), 0)
}

// Add moves a process into the group. Memory that it has used before is not counted.
func (g *Group) Add(process int) error { return g.write("cgroup.procs", strconv.Itoa(process)) }

// Processes returns the path of the file with the processes of the group. A process that writes its number to the file
// moves into the group.
func (g *Group) Processes() string { return filepath.Join(g.path, "cgroup.procs") }

// Usage returns the memory in use in bytes, including the page cache of files.
func (g *Group) Usage() (int64, error) {
	text, err := os.ReadFile(filepath.Join(g.path, g.usage))
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
}

// Limit limits the memory in bytes. The kernel first reclaims the page cache, and kills a process that needs more.
// Version 1 rejects a limit that the kernel cannot reach; Limit then sets the lowest limit that it accepts. Limit
// returns the limit that was set.
func (g *Group) Limit(bytes int64) (int64, error) {
	for {
		err := g.write(g.limit, strconv.FormatInt(bytes, 10))
		if !errors.Is(err, unix.EBUSY) {
			return bytes, err
		}
		bytes += bytes / 10
	}
}

// Unlimit removes the limit.
func (g *Group) Unlimit() error { return g.write(g.limit, g.unlimited) }

// Close removes the group. No process may be in it.
func (g *Group) Close() error { return os.Remove(g.path) }

// Usable returns the reason why groups cannot be created, or nil.
func Usable() error {
	g, err := NewGroup(fmt.Sprintf("faults-%d", os.Getpid()))
	if err != nil {
		return err
	}
	return g.Close()
}
