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

	"quorate.dev/sandbox/addresses"
	"quorate.dev/sandbox/management"
	"quorate.dev/sandbox/names"
)

const (
	lockFile  = "lock"
	stateFile = "sandbox.json"
)

// home is the directory of a sandbox, locked by one process at a time.
type home struct {
	shown string // as given by the user
	path  string // absolute
	lock  *os.File
	state state
	fresh bool // the directory is new
}

// state is the persistent state of a sandbox.
type state struct {
	Network addresses.Network `json:"network"`
}

// openHome creates or opens a directory, and locks it.
func openHome(directory string) (*home, error) {
	path, err := filepath.Abs(directory)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("creating the directory of the sandbox: %w; choose another one with --dir", err)
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

func (h *home) close() { h.lock.Close() }

func (h *home) file(elements ...string) string {
	return filepath.Join(append([]string{h.path}, elements...)...)
}

// show returns the path of a file relative to the user's --dir.
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

// read reads the state.
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
		return fmt.Errorf("reading %s: %w; delete the sandbox with `quorate sandbox delete --dir %s` and start it again",
			h.show(stateFile), err, h.shown)
	}
	return nil
}

// settle chooses the network of a new sandbox: the first free one, starting at the hash of its path.
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

// occupied returns an error if an address of the network is in use.
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

// remove deletes the directory of a stopped sandbox.
func remove(directory string) error {
	if _, err := os.Stat(filepath.Join(directory, lockFile)); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is not the directory of a sandbox", directory)
	}
	file, err := acquire(filepath.Join(directory, lockFile))
	if err != nil {
		return fmt.Errorf("%s: %w", directory, err)
	}
	defer file.Close()
	return os.RemoveAll(directory)
}
