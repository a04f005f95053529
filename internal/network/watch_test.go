package network

import (
	"encoding/json"
	"net/netip"
	"testing"
	"time"
	"turnstone.dev/turnstone"
)

func TestWatchIsBounded(t *testing.T) {
	w := NewWatch()
	for i := range 65_535 {
		w.Refused(turnstone.Refusal{At: time.Now(), Protocol: "tcp",
			Address: netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), uint16(i)),
			Reason:  "not in allow"})
	}
	w.Refused(turnstone.Refusal{At: time.Now(), Protocol: "tcp",
		Address: netip.MustParseAddrPort("192.0.2.1:1"), Reason: "not in allow"})
	all, more := w.Take()
	total := more
	for _, r := range all {
		total += r.Count
	}
	if len(all) != maxWatched || total != 65_536 {
		t.Errorf("%d refusals are held, of %d", len(all), total)
	}
	f := turnstone.NetworkFacts{Refused: all, More: more}
	f.Cut(10)
	if b, err := json.Marshal(f); err != nil || len(f.Refused) != 10 || f.More != 65_536-10-1 {
		t.Errorf("cut: %d, %d more: %s %v", len(f.Refused), f.More, b, err)
	}
	if all, more := w.Take(); len(all) != 0 || more != 0 {
		t.Error("told twice")
	}
}
