package network

import (
	"fmt"
	"net/netip"
	"testing"
	"time"
)

func TestNamesAreBounded(t *testing.T) {
	n := NewNames(100, time.Hour)
	addr := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{1, 2, byte(i >> 8), byte(i)}) }
	for i := range 1000 {
		n.Add(addr(i), "a.example")
		n.Of(addr(0)) // in use
	}
	if len(n.byAddr) != 100 || n.order.Len() != 100 || !n.has(addr(0), "a.example") ||
		n.has(addr(1), "a.example") || !n.has(addr(999), "a.example") {
		t.Fatal(len(n.byAddr))
	}
	for i := range 100 {
		n.Add(addr(0), fmt.Sprintf("n%d.example", i))
	}
	if got := n.Of(addr(0)); len(got) != namesPerAddress || got[0] != "n99.example" {
		t.Fatal(got)
	}
	short := NewNames(10, 10*time.Millisecond)
	short.Add(addr(0), "a.example")
	time.Sleep(20 * time.Millisecond) //wait: longer than the names are remembered; more is as good
	if short.Latest(addr(0)) != "" || len(short.byAddr) != 0 {
		t.Fatal("it is remembered for ever")
	}
}
