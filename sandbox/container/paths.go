package container

import (
	"cmp"
	"path"
	"slices"
	"strings"
)

// Mount is a file or folder of this machine and its mount path in a container.
type Mount struct {
	Path   string // mount path in the container, absolute
	Folder string // path on this machine, absolute
}

// Mounts translates mount paths. Processes of the sandbox use the machine's file system, so that arguments and
// variables of containers must have the paths on this machine. Paths in files are not translated.
type Mounts []Mount

// NewMounts sorts mounts by length of path, so that the innermost mount takes precedence.
func NewMounts(mounts []Mount) Mounts {
	ordered := slices.Clone(mounts)
	for i := range ordered {
		ordered[i].Path = path.Clean(ordered[i].Path)
	}
	slices.SortStableFunc(ordered, func(a, b Mount) int { return cmp.Compare(len(b.Path), len(a.Path)) })
	return ordered
}

// Translate replaces the mount path at the beginning of each path in a text. A path begins after a character that is
// not part of a path, such as = or a comma.
func (m Mounts) Translate(text string) string {
	var result strings.Builder
	for at := 0; at < len(text); {
		if text[at] == '/' && (at == 0 || !pathCharacter(text[at-1])) {
			if mount, ok := m.find(text[at:]); ok {
				result.WriteString(mount.Folder)
				at += len(mount.Path)
				continue
			}
		}
		result.WriteByte(text[at])
		at++
	}
	return result.String()
}

func (m Mounts) find(text string) (Mount, bool) {
	for _, mount := range m {
		rest, ok := strings.CutPrefix(text, mount.Path)
		if ok && mount.Path != "/" && (rest == "" || rest[0] == '/' || !pathCharacter(rest[0])) {
			return mount, true
		}
	}
	return Mount{}, false
}

// pathCharacter reports whether a character is part of a path. A colon is not, because it separates paths.
func pathCharacter(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("/._-@+%~", c) >= 0
}
