package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

const (
	device = "tun0"
	// packetSize is the maximum size of a packet, as on Ethernet.
	packetSize = 1500
)

// Host is a network namespace whose only way out is a TUN device: each packet that a process in the namespace sends is
// read from packets, and each packet written to packets arrives in the namespace.
type Host struct {
	address   [4]byte
	namespace *os.File
	packets   *os.File
	calls     chan func() // functions for the thread that has created the namespace
}

// newHost returns a namespace with an address in a /24 network. It needs CAP_SYS_ADMIN and CAP_NET_ADMIN.
func newHost(address [4]byte) (*Host, error) {
	h := &Host{address: address}
	created := make(chan error)
	calls := make(chan func())
	go func() {
		runtime.LockOSThread() // never unlocked: the thread stays in the namespace, and ends with this goroutine
		created <- h.create()
		for call := range calls {
			call()
		}
	}()
	h.calls = calls
	if err := <-created; err != nil {
		h.close()
		return nil, fmt.Errorf("create a network namespace: %w", err)
	}
	return h, nil
}

// create creates the namespace and moves the calling thread into it.
func (h *Host) create() (err error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	if h.namespace, err = os.Open("/proc/thread-self/ns/net"); err != nil {
		return err
	}
	if h.packets, err = openDevice(); err != nil {
		return err
	}
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(socket)
	up := func(request *unix.Ifreq) { request.SetUint16(unix.IFF_UP | unix.IFF_RUNNING) }
	return errors.Join(
		configure(socket, "lo", unix.SIOCSIFFLAGS, up),
		configure(socket, device, unix.SIOCSIFMTU, func(request *unix.Ifreq) { request.SetUint32(packetSize) }),
		configure(socket, device, unix.SIOCSIFADDR, inet4(h.address)),
		configure(socket, device, unix.SIOCSIFNETMASK, inet4([4]byte{255, 255, 255, 0})),
		configure(socket, device, unix.SIOCSIFFLAGS, up),
	)
}

// openDevice creates a TUN device in the namespace of the calling thread.
func openDevice() (*os.File, error) {
	const path = "/dev/net/tun"
	file, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	request, err := unix.NewIfreq(device)
	if err == nil {
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(file, unix.TUNSETIFF, request)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("create a TUN device: %w", err), unix.Close(file))
	}
	return os.NewFile(uintptr(file), path), nil
}

// configure sends an ioctl request about a network device.
func configure(socket int, device string, number uint, set func(*unix.Ifreq)) error {
	request, err := unix.NewIfreq(device)
	if err != nil {
		return err
	}
	set(request)
	if err := unix.IoctlIfreq(socket, number, request); err != nil {
		return fmt.Errorf("request %#x about %s: %w", number, device, err)
	}
	return nil
}

func inet4(address [4]byte) func(*unix.Ifreq) {
	return func(request *unix.Ifreq) { _ = request.SetInet4Addr(address[:]) } // four bytes are an address
}

// Do calls a function on the thread that has created the namespace, one function at a time. Processes and sockets that
// the function creates belong to the namespace. The thread lives as long as the host, because the kernel kills a
// process with Pdeathsig when the thread that has started it ends.
func (h *Host) Do(act func() error) error {
	done := make(chan error)
	h.calls <- func() { done <- act() }
	return <-done
}

// Dial opens a connection from the namespace, on a new thread that enters the namespace. An unprivileged thread cannot
// return to its first namespace, so the thread ends afterwards.
func (h *Host) Dial(ctx context.Context, address string) (net.Conn, error) {
	type result struct {
		net.Conn
		error
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread()
		if err := unix.Setns(int(h.namespace.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- result{nil, fmt.Errorf("enter a network namespace: %w", err)}
			return
		}
		connection, err := new(net.Dialer).DialContext(ctx, "tcp4", address)
		done <- result{connection, err}
	}()
	dialled := <-done
	return dialled.Conn, dialled.error
}

// Address is the IP address of the host.
func (h *Host) Address() string { return net.IP(h.address[:]).String() }

// close ends the thread of the namespace. The kernel removes the namespace when no process and no connection uses it.
func (h *Host) close() {
	close(h.calls)
	for _, file := range []*os.File{h.packets, h.namespace} {
		if file != nil {
			_ = file.Close()
		}
	}
}
