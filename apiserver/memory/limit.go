package memory

import (
	"bytes"
	"errors"
	"io/fs"
	"math"
	"os"
	"path"
	"runtime/debug"
	"strconv"
	"strings"
)

// Unlimited is the limit of a process without a memory limit.
const Unlimited int64 = math.MaxInt64

// unlimitedFrom is the value from which a limit of cgroup version 1, which has no word for "unlimited", means that
// there is none.
const unlimitedFrom = 1 << 60

// Configure sets Go's memory limit from the limit of the cgroup, unless GOMEMLIMIT sets it. database is the size in
// bytes of the database file up to which its pages should stay in memory, 0 without an embedded member. Configure
// returns the limit in effect, or Unlimited.
func Configure(database int64) int64 {
	if os.Getenv("GOMEMLIMIT") == "" {
		if limit := CgroupLimit(os.DirFS("/")); limit != Unlimited {
			debug.SetMemoryLimit(limit - Reserve(limit, database))
		}
	}
	return Limit()
}

// Limit returns Go's memory limit in bytes, or Unlimited.
func Limit() int64 { return debug.SetMemoryLimit(-1) }

const (
	// reservedPart is the reciprocal of the share of the limit, at most maxReserve, that is reserved for the executable
	// and the kernel.
	reservedPart = 10
	maxReserve   = 1 << 30
	// databasePart is the reciprocal of the share of the limit that is reserved for the pages of the database file,
	// unless the file cannot become that large.
	databasePart = 5
)

// Reserve returns the part of a limit in bytes that Go does not use.
func Reserve(limit, database int64) int64 {
	return min(limit/reservedPart, maxReserve) + min(limit/databasePart, database)
}

// CgroupLimit returns the smallest memory limit of the process's cgroup and its ancestors, in version 1 or 2, or
// Unlimited. root is the root of the file system.
func CgroupLimit(root fs.FS) int64 {
	content, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return Unlimited
	}
	limit := Unlimited
	for line := range bytes.Lines(content) {
		// A line is ID:CONTROLLERS:PATH. The hierarchy of version 2 has no controllers.
		fields := strings.SplitN(strings.TrimSpace(string(line)), ":", 3)
		if len(fields) != 3 {
			continue
		}
		switch {
		case fields[1] == "":
			limit = min(limit, smallest(root, "sys/fs/cgroup", fields[2], "memory.max"))
			limit = min(limit, smallest(root, "sys/fs/cgroup/unified", fields[2], "memory.max"))
		case hasController(fields[1], "memory"):
			limit = min(limit, smallest(root, "sys/fs/cgroup/memory", fields[2], "memory.limit_in_bytes"))
		}
	}
	return limit
}

func hasController(list, name string) bool {
	for one := range strings.SplitSeq(list, ",") {
		if one == name {
			return true
		}
	}
	return false
}

// smallest returns the smallest limit of a cgroup and its ancestors. In a container, group can be a path of the host,
// of which only the root of the mount exists.
func smallest(root fs.FS, mount, group, file string) int64 {
	limit := Unlimited
	for group = path.Clean("/" + group); ; group = path.Dir(group) {
		if value, err := readLimit(root, path.Join(mount, group, file)); err == nil {
			limit = min(limit, value)
		}
		if group == "/" {
			return limit
		}
	}
}

func readLimit(root fs.FS, name string) (int64, error) {
	content, err := fs.ReadFile(root, name)
	if err != nil {
		return 0, err
	}
	text := strings.TrimSpace(string(content))
	if text == "max" {
		return Unlimited, nil
	}
	value, err := strconv.ParseInt(text, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange), value >= unlimitedFrom:
		return Unlimited, nil
	case err == nil && value <= 0:
		return 0, strconv.ErrRange
	}
	return value, err
}
