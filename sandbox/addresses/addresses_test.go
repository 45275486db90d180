package addresses

import (
	"errors"
	"net/netip"
	"testing"
)

func TestPoolIsStableAndExclusive(t *testing.T) {
	pool := NewPool(Network(99).Pods())
	first, err := pool.Allocate("uid-1", "default/demo-0")
	if err != nil {
		t.Fatal(err)
	}
	if again, _ := pool.Allocate("uid-1", "default/demo-0"); again != first {
		t.Errorf("the same owner got %s, then %s", first, again)
	}
	second, _ := pool.Allocate("uid-2", "default/demo-0")
	if second == first {
		t.Errorf("two owners share %s", first)
	}
	pool.Release("uid-1")
	if third, _ := pool.Allocate("uid-3", "default/demo-0"); third != first {
		t.Errorf("the name's place is free, but got %s instead of %s", third, first)
	}
	if !Network(99).Pods().Contains(first) || Network(99).Services().Contains(first) {
		t.Errorf("%s is not a Pod address", first)
	}
}

func TestPoolExhaustion(t *testing.T) {
	pool := NewPool(netip.MustParsePrefix("127.9.9.0/30"))
	for _, owner := range []string{"a", "b"} {
		if _, err := pool.Allocate(owner, "same"); err != nil {
			t.Fatalf("allocating for %s: %v", owner, err)
		}
	}
	if _, err := pool.Allocate("c", "same"); !errors.Is(err, ErrExhausted) {
		t.Errorf("third of two addresses: %v", err)
	}
}

func TestReserve(t *testing.T) {
	pool := NewPool(Network(99).Pods())
	address := netip.MustParseAddr("127.99.64.7")
	for range 2 {
		if !pool.Reserve("uid-1", address) {
			t.Error("a free address could not be reserved twice by its owner")
		}
	}
	if pool.Reserve("uid-2", address) {
		t.Error("a taken address was reserved by another")
	}
	if pool.Reserve("uid-2", netip.MustParseAddr("127.1.64.7")) {
		t.Error("an address of another network was reserved")
	}
	if got, _ := pool.Allocate("uid-1", "default/other"); got != address {
		t.Errorf("the owner of %s got %s", address, got)
	}
}
