package serving

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/util/wait"

	"quorate.dev/apiserver/request"
)

func TestCapacityOf(t *testing.T) {
	for descriptors, want := range map[int]capacity{
		100:     {connections: 50, perSource: 38, descriptor: 75},
		300:     {connections: 172, perSource: 129, descriptor: 236},
		1024:    {connections: 768, perSource: 576, descriptor: 896},
		1 << 20: {connections: 1044480, perSource: 783360, descriptor: 1046528},
	} {
		if got := capacityOf(descriptors); got != want {
			t.Errorf("%d descriptors: got %+v, want %+v", descriptors, got, want)
		}
	}
}

func TestAllows(t *testing.T) {
	c := capacity{connections: 10, perSource: 7, descriptor: 20}
	for _, test := range []struct {
		open, fromSource, descriptor int
		want                         bool
	}{
		{9, 6, 19, true}, {9, 6, -1, true}, {10, 6, 19, false}, {9, 7, 19, false}, {9, 6, 20, false},
	} {
		if got := c.allows(test.open, test.fromSource, test.descriptor); got != test.want {
			t.Errorf("%+v: %t", test, got)
		}
	}
	if none := (capacity{}); !none.allows(1<<20, 1<<20, 1<<20) {
		t.Error("a process without a limit refuses connections")
	}
}

// TestOrderOfEviction has candidates in the order in which they must be closed.
func TestOrderOfEviction(t *testing.T) {
	order := []candidate{
		{rank: rankOf(false, true), fromSource: 5, number: 8},
		{rank: rankOf(false, true), fromSource: 5, number: 9},
		{rank: rankOf(false, true), fromSource: 2, number: 1},
		{rank: rankOf(false, false), fromSource: 9, number: 2},
		{rank: rankOf(true, true), fromSource: 9, number: 3},
		{rank: rankOf(true, false), fromSource: 9, number: 4},
	}
	for i, one := range order {
		for j, other := range order {
			if got := one.before(other); got != (i < j) {
				t.Errorf("%+v before %+v: %t", one, other, got)
			}
		}
	}
}

func TestYields(t *testing.T) {
	own, other := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	for name, test := range map[string]struct {
		candidate  candidate
		fromSource int
		full, want bool
	}{
		"unused":                            {candidate{rank: unusedRank, source: other}, 9, false, true},
		"anonymous":                         {candidate{rank: anonymousRank, source: other}, 9, false, true},
		"busy":                              {candidate{rank: busyRank, source: other, fromSource: 99}, 1, false, false},
		"idle, of a source with more":       {candidate{rank: idleRank, source: other, fromSource: 9}, 3, false, true},
		"idle, of a source with as many":    {candidate{rank: idleRank, source: other, fromSource: 4}, 3, false, false},
		"unused, for a source at its share": {candidate{rank: unusedRank, source: other}, 9, true, false},
		"its own, at its share":             {candidate{rank: unusedRank, source: own}, 9, true, true},
	} {
		if got := test.candidate.yields(own, test.fromSource, test.full); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestSourceOf(t *testing.T) {
	for address, want := range map[string]string{
		"192.0.2.7:1":           "192.0.2.7",
		"[::ffff:192.0.2.7]:1":  "192.0.2.7",
		"[2001:db8:1:2:3::4]:1": "2001:db8:1:2::",
		"[fe80::1%eth0]:1":      "fe80::",
		"@":                     "invalid IP",
	} {
		if got := sourceOf(addressOf(address)).String(); got != want {
			t.Errorf("%s: %s, want %s", address, got, want)
		}
	}
}

type addressOf string

func (a addressOf) Network() string { return "tcp" }
func (a addressOf) String() string  { return string(a) }

// crowd is a server with room for four connections, three of them from one source. It authenticates requests for /user.
type crowd struct {
	address string
	all     *connections
}

func newCrowd(t *testing.T) crowd {
	t.Helper()
	o := options(t)
	o.Handler = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/user" {
			request.MarkAuthenticated(r.Context())
		}
	})
	s := serve(t, o)
	s.listener.mu.Lock()
	s.listener.capacity = capacity{connections: 4, perSource: 3, descriptor: 1 << 20}
	s.listener.mu.Unlock()
	return crowd{s.Addr().String(), s.listener}
}

// connect opens a connection from 127.0.0.SOURCE and, unless path is empty, completes a request on it.
func (c crowd) connect(t *testing.T, source byte, path string) net.Conn {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, source)}}
	conn, err := dialer.DialContext(t.Context(), "tcp", c.address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if path == "" {
		return conn
	}
	secure := tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
	if _, err := io.WriteString(secure, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		return conn // the server has refused the connection
	}
	_, _ = secure.Read(make([]byte, 1))
	return conn
}

// closed reports whether the server closes a connection. It waits for that.
func closed(conn net.Conn) bool {
	_, err := io.Copy(io.Discard, conn)
	return err == nil || !isTimeout(err)
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// awaitSources waits until the given numbers of connections are open from 127.0.0.1, 127.0.0.2 and so on.
func (c crowd) awaitSources(t *testing.T, want ...int) {
	t.Helper()
	var got []int
	err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, time.Minute, true, func(
		context.Context,
	) (bool, error) {
		c.all.mu.Lock()
		defer c.all.mu.Unlock()
		got = nil
		for i := range want {
			got = append(got, c.all.bySource[netip.AddrFrom4([4]byte{127, 0, 0, byte(i + 1)})])
		}
		return slices.Equal(got, want), nil
	})
	if err != nil {
		t.Fatalf("connections by source: %v, want %v", got, want)
	}
}

// TestUnusedConnectionsYield fills the server with connections that send nothing, and then connects as a user.
func TestUnusedConnectionsYield(t *testing.T) {
	c := newCrowd(t)
	first := c.connect(t, 1, "")
	c.awaitSources(t, 1, 0)
	c.connect(t, 1, "")
	c.connect(t, 1, "")
	c.awaitSources(t, 3, 0)
	c.connect(t, 1, "") // beyond the share of its source: the oldest one is closed
	if !closed(first) {
		t.Error("a source has more connections than its share")
	}
	c.awaitSources(t, 3, 0)
	c.connect(t, 2, "/user")
	c.connect(t, 2, "/user")
	c.connect(t, 2, "/user")
	c.awaitSources(t, 1, 3)
	// The users' connections do not yield to further unused ones, which close each other.
	for range 5 {
		c.connect(t, 1, "")
	}
	err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, time.Minute, true, func(
		context.Context,
	) (bool, error) {
		return counted(t, c.all.evicted) >= 8, nil
	})
	c.awaitSources(t, 1, 3)
	if evicted, refused := counted(t, c.all.evicted), counted(t, c.all.refused); err != nil ||
		evicted != 8 || refused != 0 {
		t.Errorf("%v connections evicted, %v refused: %v", evicted, refused, err)
	}
}

// TestIdleConnectionsYieldToOtherSources fills the server with idle connections of users.
func TestIdleConnectionsYieldToOtherSources(t *testing.T) {
	c := newCrowd(t)
	for range 3 {
		c.connect(t, 1, "/user")
	}
	c.connect(t, 2, "/user")
	c.awaitSources(t, 3, 1)
	c.connect(t, 2, "/user")
	c.awaitSources(t, 2, 2)
	if !closed(c.connect(t, 1, "")) {
		t.Error("a connection was accepted beyond the capacity")
	}
	c.awaitSources(t, 2, 2)
}

func counted(t *testing.T, counter prometheus.Counter) float64 {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(counter)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	return families[0].GetMetric()[0].GetCounter().GetValue()
}
