package container

import (
	"cmp"
	"path"
	"slices"
	"strings"
)

// Mount is a folder of this machine and the path at which a container sees it.
type Mount struct {
	Path   string // in the container, absolute
	Folder string // on this machine, absolute
}

// Mounts translate text. A process of the sandbox sees the machine's own file system, so wherever the arguments
// or variables of a container name a path below one of its mounts, the machine's path is put in its place. Paths
// inside of files are not translated.
type Mounts []Mount

// NewMounts orders mounts so that the innermost wins.
func NewMounts(mounts []Mount) Mounts {
	ordered := slices.Clone(mounts)
	for i := range ordered {
		ordered[i].Path = path.Clean(ordered[i].Path)
	}
	slices.SortStableFunc(ordered, func(a, b Mount) int { return cmp.Compare(len(b.Path), len(a.Path)) })
	return ordered
}

// Translate replaces each path below a mount. A path begins at the start of the text or after a character that
// no path contains, such as = or a comma, and ends likewise.
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

// pathCharacter reports whether a character belongs to a path. The colon does not: it separates paths in lists.
func pathCharacter(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("/._-@+%~", c) >= 0
}
