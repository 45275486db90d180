package serviceip

import (
	"net/netip"
	"testing"
)

func TestAddressRange(t *testing.T) {
	for prefix, want := range map[string]struct {
		first, last string
		size        uint64
		reserved    uint64
	}{
		"10.0.0.0/28":    {"10.0.0.1", "10.0.0.14", 14, 0},
		"10.0.0.0/20":    {"10.0.0.1", "10.0.15.254", 4094, 256},
		"10.0.0.0/24":    {"10.0.0.1", "10.0.0.254", 254, 16},
		"10.96.0.0/12":   {"10.96.0.1", "10.111.255.254", 1<<20 - 2, 256},
		"192.168.0.0/29": {"192.168.0.1", "192.168.0.6", 6, 0},
		"fd00::/112":     {"fd00::1", "fd00::ffff", 65535, 256},
		"fd00::/32":      {"fd00::1", "fd00::7fff:ffff:ffff:ffff", 1<<63 - 1, 256},
	} {
		r := newAddressRange(netip.MustParsePrefix(prefix))
		if r.size != want.size || r.reserved != want.reserved {
			t.Errorf("%s: size %d, reserved %d; want %d, %d", prefix, r.size, r.reserved, want.size, want.reserved)
		}
		if first, last := r.at(0).String(), r.at(r.size-1).String(); first != want.first || last != want.last {
			t.Errorf("%s: %s to %s; want %s to %s", prefix, first, last, want.first, want.last)
		}
	}
}

func TestReservedAddressesComeLast(t *testing.T) {
	r := newAddressRange(netip.MustParsePrefix("10.0.0.0/26"))
	seen := map[netip.Addr]bool{}
	n := uint64(0)
	r.candidates(func(address netip.Addr) bool {
		if low := address.Less(r.at(r.reserved)); low != (n >= r.size-r.reserved) {
			t.Fatalf("address %d is %s", n, address)
		}
		if seen[address] || !r.contains(address) {
			t.Fatalf("%s comes twice or is not in the range", address)
		}
		seen[address] = true
		n++
		return false
	})
	if n != r.size {
		t.Errorf("%d addresses of %d", n, r.size)
	}
}

func TestRangeDoesNotContainNetworkAndBroadcast(t *testing.T) {
	r := newAddressRange(netip.MustParsePrefix("10.0.0.0/24"))
	for address, want := range map[string]bool{
		"10.0.0.0": false, "10.0.0.1": true, "10.0.0.254": true, "10.0.0.255": false, "10.0.1.1": false,
	} {
		if got := r.contains(netip.MustParseAddr(address)); got != want {
			t.Errorf("%s: %v, want %v", address, got, want)
		}
	}
}
