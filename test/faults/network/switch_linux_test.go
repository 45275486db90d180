package network

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// startSwitch returns a network of the nodes 1 and 2.
func startSwitch(t *testing.T) *Switch {
	t.Helper()
	s, err := NewSwitch(1, 1, 2)
	if err != nil {
		t.Skip("network namespaces are not permitted: ", err)
	}
	t.Cleanup(s.Close)
	return s
}

// echo starts a server on a host, and returns its address. The server sends the received bytes back.
func (h *Host) echo(t *testing.T) string {
	t.Helper()
	var listener net.Listener
	err := h.Do(func() (err error) {
		listener, err = net.Listen("tcp", net.JoinHostPort(h.Address(), "0"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return serveEcho(t, listener)
}

// TestSwitchRules: packets follow the same rules as proxied bytes.
func TestSwitchRules(t *testing.T) {
	s := startSwitch(t)
	mustFollowRules(t, s, s.Host(2).echo(t))
}

// TestPacketFaults: packets are lost, repeated and reordered with about the given probabilities, and TCP repairs that.
func TestPacketFaults(t *testing.T) {
	s := startSwitch(t)
	faulty := func(r *Rule) { r.Lose, r.Duplicate, r.Reorder, r.Lag = 0.1, 0.1, 0.1, 20*time.Millisecond }
	s.Set(1, 2, faulty)
	s.Set(2, 1, faulty)
	const sent = 1000
	received := s.datagrams(t, sent)
	seen, repeated, overtaken := map[uint32]bool{}, 0, 0
	last := uint32(0)
	for _, number := range received {
		if seen[number] {
			repeated++
		} else if number < last {
			overtaken++
		}
		seen[number] = true
		last = max(last, number)
	}
	for fault, count := range map[string]int{"lost": sent - len(seen), "repeated": repeated, "overtaken": overtaken} {
		if count < sent/30 || count > sent/4 {
			t.Errorf("%d of %d packets were %s", count, sent, fault)
		}
	}
	s.mustCarry(t, bytes.Repeat([]byte("0123456789abcdef"), 20_000))
}

// datagrams sends numbered datagrams from node 1 to node 2, and returns the numbers that arrive.
func (s *Switch) datagrams(t *testing.T, count int) (numbers []uint32) {
	t.Helper()
	var receiver net.PacketConn
	var sender net.Conn
	err := s.Host(2).Do(func() (err error) {
		receiver, err = net.ListenPacket("udp", net.JoinHostPort(s.Host(2).Address(), "0"))
		return err
	})
	if err == nil {
		err = s.Host(1).Do(func() (err error) {
			sender, err = net.Dial("udp", receiver.LocalAddr().String())
			return err
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	defer receiver.Close()
	defer sender.Close()
	buffer := make([]byte, 4)
	for i := range count {
		if _, err := sender.Write(binary.BigEndian.AppendUint32(nil, uint32(i))); err != nil {
			t.Fatal(err)
		}
		// One datagram at a time fits into the buffers; a lost or a late one only delays the next.
		numbers = append(numbers, receive(t, receiver, buffer, 2*time.Millisecond)...)
	}
	return append(numbers, receive(t, receiver, buffer, time.Second)...)
}

// receive returns the numbers that arrive until none arrives for some time.
func receive(t *testing.T, from net.PacketConn, buffer []byte, patience time.Duration) (numbers []uint32) {
	t.Helper()
	for {
		if err := from.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		_, _, err := from.ReadFrom(buffer)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return numbers
		}
		if err != nil {
			t.Fatal(err)
		}
		numbers = append(numbers, binary.BigEndian.Uint32(buffer))
	}
}

// mustCarry sends data from node 1 to a server of node 2, which must return the same data.
func (s *Switch) mustCarry(t *testing.T, data []byte) {
	t.Helper()
	c, err := s.Dial(t.Context(), 1, 2, s.Host(2).echo(t))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	written := make(chan error, 1)
	go func() {
		_, err := c.Write(data)
		written <- err
	}()
	got := make([]byte, len(data))
	if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, data) {
		t.Errorf("got other data than was sent, or %v", err)
	}
	if err := <-written; err != nil {
		t.Error(err)
	}
}
