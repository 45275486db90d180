package etcd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"runtime"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

const (
	// socketDirectory, in the data directory, is accessible only to its owner, because clients of the socket may do
	// anything.
	socketDirectory = "local"
	socketName      = "etcd.sock"
	// socketPathLimit is the length of the longest socket address that every system accepts.
	socketPathLimit = 103
)

// socketPath returns the path of the socket of the member with a data directory.
func socketPath(dataDirectory string) string {
	return filepath.Join(dataDirectory, socketDirectory, socketName)
}

// socketAddress is the address of a socket, valid while the directory is open.
type socketAddress struct {
	path      string
	directory *os.File // nil if path does not depend on it
}

// openSocketAddress returns the address of a socket. A path over socketPathLimit is addressed through an open directory
// in /proc, on Linux.
func openSocketAddress(path string) (socketAddress, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return socketAddress{}, err
	}
	if len(path) <= socketPathLimit || runtime.GOOS != "linux" {
		return socketAddress{path: path}, nil
	}
	directory, err := os.Open(filepath.Dir(path))
	if err != nil {
		return socketAddress{}, err
	}
	return socketAddress{path: fmt.Sprintf("/proc/self/fd/%d/%s", directory.Fd(), filepath.Base(path)),
		directory: directory}, nil
}

// urls returns the URLs of a socket address, none for the zero address.
func (a socketAddress) urls() []url.URL {
	if a.path == "" {
		return nil
	}
	return []url.URL{{Scheme: "unix", Path: a.path}}
}

func (a socketAddress) close() {
	if a.directory != nil {
		_ = a.directory.Close()
	}
}

// prepareSocket checks that a member can listen on its socket, which not every file system supports. The caller must
// keep the address open while the member listens.
func prepareSocket(dataDirectory string) (socketAddress, error) {
	path := socketPath(dataDirectory)
	directory := filepath.Dir(path)
	if err := os.Mkdir(directory, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return socketAddress{}, err
	}
	if err := os.Chmod(directory, 0o700); err != nil {
		return socketAddress{}, err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) { // left by a killed process
		return socketAddress{}, err
	}
	address, err := openSocketAddress(path)
	if err != nil {
		return socketAddress{}, err
	}
	listener, err := net.Listen("unix", address.path)
	if err != nil {
		address.close()
		return socketAddress{}, err
	}
	return address, listener.Close()
}

// ErrNotRunning is returned if no running member uses the data directory.
var ErrNotRunning = errors.New("no etcd member runs on the data directory")

// LocalConfig returns the configuration of a client for the running member that uses a data directory. The member must
// run as the same user.
func LocalConfig(ctx context.Context, dataDirectory string) (clientv3.Config, error) {
	path := socketPath(dataDirectory)
	connection, err := dialSocket(ctx, path)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return clientv3.Config{}, fmt.Errorf("connect to the etcd member on %s: %w", dataDirectory, err)
	case err != nil:
		return clientv3.Config{}, fmt.Errorf("%w %s: %w", ErrNotRunning, dataDirectory, err)
	}
	_ = connection.Close()
	return clientv3.Config{
		Endpoints: []string{"unix:" + socketName},
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return dialSocket(ctx, path)
		})},
	}, nil
}

func dialSocket(ctx context.Context, path string) (net.Conn, error) {
	address, err := openSocketAddress(path)
	if err != nil {
		return nil, err
	}
	defer address.close()
	return new(net.Dialer).DialContext(ctx, "unix", address.path)
}
