package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"quorate.dev/sandbox/addresses"
	"quorate.dev/sandbox/management"
	"quorate.dev/sandbox/names"
)

const (
	lockFile  = "lock"
	stateFile = "sandbox.json"
)

// home is the directory of a sandbox. The process of a running sandbox locks it.
type home struct {
	shown string // path as the user gave it
	path  string // absolute
	lock  *os.File
	state state
	fresh bool // this process has created the sandbox
}

// state is the content of sandbox.json.
type state struct {
	Network addresses.Network `json:"network"`
}

// openHome opens the directory of a sandbox, which it creates if necessary, and locks it.
func openHome(directory string) (*home, error) {
	path, err := filepath.Abs(directory)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("create the directory of the sandbox: %w; choose another one with --dir", err)
	}
	if err := protect(path); err != nil {
		return nil, err
	}
	file, err := acquire(filepath.Join(path, lockFile))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", directory, err)
	}
	h := &home{shown: directory, path: path, lock: file}
	if err := h.load(); err != nil {
		h.close()
		return nil, err
	}
	return h, nil
}

// checkOwner returns an error if another user may have written to the directory of a sandbox, for example because the
// other user created it in /tmp before the sandbox started: private keys would be written to files of that user, and
// kubectl would run commands of that user's kubeconfigs. A symbolic link must belong to the user too.
func checkOwner(path string) (fs.FileMode, error) {
	link, err := os.Lstat(path)
	if err != nil {
		return 0, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	if !isOwn(link) || !isOwn(info) {
		return 0, fmt.Errorf("%s belongs to another user; choose another directory with --dir", path)
	}
	return info.Mode().Perm(), nil
}

// writable are the permissions with which other users can write to a directory.
const writable = 0o022

// errWritable returns an error that tells the user how to replace a directory in which other users can write.
func errWritable(path string) error {
	return fmt.Errorf("other users can write to %s; delete it, or choose another directory with --dir", path)
}

// protect makes the directory accessible to its owner only. It returns an error if other users may have written to the
// directory, or if it contains files that do not belong to a sandbox: --dir may name the user's home directory, whose
// permissions must not change.
func protect(path string) error {
	mode, err := checkOwner(path)
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return err
	}
	if mode&writable != 0 && len(entries) > 0 {
		return errWritable(path)
	}
	if len(entries) > 0 && !slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == lockFile }) {
		return fmt.Errorf("%s has files but is not the directory of a sandbox; choose another directory with --dir", path)
	}
	return os.Chmod(path, 0o700) //nolint:gosec // a directory
}

// checkProtected returns an error if other users may have written to the directory of an existing sandbox.
func checkProtected(path string) error {
	mode, err := checkOwner(path)
	if err == nil && mode&writable != 0 {
		err = errWritable(path)
	}
	return err
}

func (h *home) close() { h.lock.Close() }

func (h *home) file(elements ...string) string {
	return filepath.Join(append([]string{h.path}, elements...)...)
}

// show returns the path of a file below the path that the user gave.
func (h *home) show(elements ...string) string {
	return filepath.Join(append([]string{h.shown}, elements...)...)
}

func (h *home) load() error {
	err := h.read()
	if errors.Is(err, fs.ErrNotExist) {
		return h.settle()
	}
	if err != nil {
		return err
	}
	if err := occupied(h.state.Network); err != nil {
		return fmt.Errorf("%w; stop the program that listens on the address, or delete the sandbox with "+
			"`quorate sandbox delete --dir %s` to use other addresses", err, h.shown)
	}
	return nil
}

// read reads and checks the state.
func (h *home) read() error {
	content, err := os.ReadFile(h.file(stateFile))
	if errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err == nil {
		err = json.Unmarshal(content, &h.state)
	}
	if err == nil && (h.state.Network < addresses.FirstNetwork || h.state.Network > addresses.LastNetwork) {
		err = fmt.Errorf("invalid network %d", h.state.Network)
	}
	if err != nil {
		return fmt.Errorf("read %s: %w; delete the sandbox with `quorate sandbox delete --dir %s` and start it again",
			h.show(stateFile), err, h.shown)
	}
	return nil
}

// settle chooses the network of a new sandbox: the first free one, beginning at the hash of the directory's path.
func (h *home) settle() error {
	if _, err := os.Stat(h.file("management")); err == nil {
		return fmt.Errorf("%s is missing but the sandbox has data; delete it with `quorate sandbox delete --dir %s`",
			h.show(stateFile), h.shown)
	}
	count := uint32(addresses.LastNetwork - addresses.FirstNetwork + 1)
	hash := fnv.New32a()
	hash.Write([]byte(h.path))
	var err error
	for offset := range count {
		network := addresses.FirstNetwork + addresses.Network((hash.Sum32()+offset)%count)
		if err = occupied(network); err == nil {
			h.fresh, h.state.Network = true, network
			return h.save()
		}
	}
	return fmt.Errorf("no loopback network is free: %w", err)
}

func (h *home) save() error {
	content, err := json.Marshal(h.state)
	if err != nil {
		return err
	}
	return os.WriteFile(h.file(stateFile), append(content, '\n'), 0o600)
}

// occupied returns an error if a server's address in the network is in use.
func occupied(network addresses.Network) error {
	for _, address := range []netip.AddrPort{
		netip.AddrPortFrom(network.Server(), management.SecurePort), netip.AddrPortFrom(network.Resolver(), names.Port),
	} {
		socket, err := net.Listen("tcp4", address.String())
		if err != nil {
			return err
		}
		socket.Close()
	}
	return nil
}

// remove deletes the directory of a sandbox, which must not be running.
func remove(directory string) error {
	if _, err := os.Stat(filepath.Join(directory, lockFile)); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is not the directory of a sandbox", directory)
	}
	if _, err := checkOwner(directory); err != nil {
		return err
	}
	file, err := acquire(filepath.Join(directory, lockFile))
	if err != nil {
		return fmt.Errorf("%s: %w", directory, err)
	}
	defer file.Close()
	return os.RemoveAll(directory)
}
