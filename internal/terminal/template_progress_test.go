package terminal

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
)

func TestBar(t *testing.T) {
	for _, c := range []struct {
		e    turnstone.BuildEvent
		want string
	}{
		{turnstone.BuildEvent{Item: "x.whl", Done: 50, Total: 100, Rate: 2048},
			"[##########          ]  50% x.whl 50 bytes, 2.0 KiB/s"},
		{turnstone.BuildEvent{Item: "x.whl", Done: 200, Total: 100},
			"[####################] 100% x.whl 200 bytes"},
		{turnstone.BuildEvent{Item: "\x1b[31mx", Done: 1, Total: -1}, " 1 byte"},
	} {
		if got := bar(c.e); !strings.Contains(got, c.want) && c.e.Total > 0 ||
			strings.ContainsRune(got, '\x1b') {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

// TestBuildingShowsFetches checks that a terminal's live line has the bar; otherwise a fetch is
// reported from time to time.
func TestBuildingShowsFetches(t *testing.T) {
	e := turnstone.BuildEvent{Template: "mine", Phase: "installing", Item: "x.whl", Done: 1 << 20,
		Total: 4 << 20, Rate: 1 << 20}
	var out bytes.Buffer
	now := time.Unix(1000, 0)
	p := newProgress(&out, style{width: func() int { return 200 }}, 0)
	p.now = func() time.Time { return now }
	p.Preparing("template mine: installing")
	p.Building(e)
	if strings.Contains(out.String(), "x.whl") {
		t.Errorf("at once: %q", out.String())
	}
	now = now.Add(11 * time.Second)
	p.Building(e)
	p.Building(e)
	p.Close()
	if n := strings.Count(out.String(),
		"template mine: installing: x.whl, 1.0 MiB of 4.0 MiB, 1.0 MiB/s\n"); n != 1 {
		t.Errorf("%d lines in %q", n, out.String())
	}

	out.Reset()
	live := newProgress(&out, style{live: true, width: func() int { return 200 }}, 0)
	live.Preparing("template mine: installing")
	live.Building(e)
	live.mu.Lock()
	live.draw()
	live.mu.Unlock()
	live.Close()
	if !strings.Contains(out.String(), "[#####               ]  25% x.whl 1.0 MiB, 1.0 MiB/s") {
		t.Errorf("%q", out.String())
	}
}
