package fixedport

import (
	"net"
	"strconv"
	"testing"
	"time"
)

// TestPast: a port that was left is its owner's for a while, and nobody else's; and what is remembered is
// bounded.
func TestPast(t *testing.T) {
	var p Past
	now := time.Now()
	at := func(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
	p.leave(at(First), "a", now)
	for _, c := range []struct {
		owner string
		after time.Duration
		want  bool
	}{{"a", 0, false}, {"b", 0, true}, {"b", rest - 1, true}, {"b", rest, false}} {
		if got := p.others(at(First), c.owner, now.Add(c.after)); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
	for port := First; port < End; port++ {
		p.leave(at(port), "flood", now)
		p.leave(at(port), "flood", now)
	}
	if len(p.of) != maxPast || len(p.order) != maxPast {
		t.Errorf("%d ports are remembered, in an order of %d", len(p.of), len(p.order))
	}
	// All others were another one's.
	l, err := p.Listen(t.Context(), "127.0.0.1", "b")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if port := l.Addr().(*net.TCPAddr).Port; port >= End-maxPast {
		t.Errorf("the port %d was another owner's", port)
	}
}
