package network

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// echo returns the address of a server that returns what it gets.
func echo(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return serveEcho(t, listener)
}

func serveEcho(t *testing.T, listener net.Listener) string {
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c) }()
		}
	}()
	return listener.Addr().String()
}

// exchange sends a byte and waits for the answer.
func exchange(c net.Conn, patience time.Duration) error {
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := c.Write([]byte{1}); err != nil {
		return err
	}
	_, err := c.Read(make([]byte, 1))
	return err
}

// paths is what a Network and a Switch have in common.
type paths interface {
	Dial(ctx context.Context, from, to int, address string) (net.Conn, error)
	Set(from, to int, change func(*Rule))
	Reset(a, b int)
	Heal()
}

// TestRules: a cut holds bytes back in its direction only, a delay delays them, a reset closes connections.
func TestRules(t *testing.T) {
	n := New()
	t.Cleanup(n.Close)
	mustFollowRules(t, n, echo(t))
}

// mustFollowRules checks the path from node 1 to a server of node 2.
func mustFollowRules(t *testing.T, n paths, server string) {
	t.Helper()
	c, err := n.Dial(t.Context(), 1, 2, server)
	if err != nil {
		t.Fatal(err)
	}
	if err := exchange(c, time.Minute); err != nil {
		t.Error(err)
	}
	n.Set(2, 1, func(r *Rule) { r.Cut = true })
	if err := exchange(c, 100*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("across a cut: %v", err)
	}
	n.Heal()
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); err != nil {
		t.Errorf("what was held back: %v", err)
	}
	n.Set(1, 2, func(r *Rule) { r.Delay = 200 * time.Millisecond })
	begin := time.Now()
	if err := exchange(c, time.Minute); err != nil || time.Since(begin) < 200*time.Millisecond {
		t.Errorf("%v after %v", err, time.Since(begin))
	}
	n.Reset(2, 1)
	if err := exchange(c, time.Minute); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection is open after a reset: %v", err)
	}
	if c, err = n.Dial(t.Context(), 1, 2, server); err != nil {
		t.Fatal(err)
	}
	if err := exchange(c, time.Minute); err != nil {
		t.Errorf("a connection that was opened after a reset: %v", err)
	}
}

// TestListen: a listener knows the process that has opened a connection.
func TestListen(t *testing.T) {
	n := New()
	t.Cleanup(n.Close)
	const address = "127.94.7.3:9123"
	listener, err := n.Listen(address, echo(t), 2, func(c net.Conn) (int, bool) {
		process, err := Owner(c, []int{os.Getppid(), os.Getpid()})
		return 1, err == nil && process == os.Getpid()
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	if err := exchange(c, time.Minute); err != nil {
		t.Error(err)
	}
	n.Set(1, 2, func(r *Rule) { r.Cut = true })
	if err := exchange(c, 100*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("across a cut: %v", err)
	}
}
