package receipt

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/lang/syntax"
	"turnstone.dev/turnstone/wire"
)

// BeginNetwork discards the network activity before the first step.
func (s *Steps) BeginNetwork(before turnstone.NetworkTotals) { s.totals = before }

// maxRefused bounds the reported rejections of one step.
const maxRefused = 50

// Network adds the step's network activity to its result.
func (st *Step) Network(facts turnstone.NetworkFacts) {
	s := st.steps
	before := s.totals
	s.totals = facts.Totals
	rep := &turnstone.NetworkReport{Connections: facts.Totals.Connections - before.Connections,
		Sent:     facts.Totals.Sent - before.Sent,
		Received: facts.Totals.Received - before.Received, MoreRefused: facts.More +
			facts.Totals.Untold - before.Untold}
	shown := &document.StepNetwork{Connections: rep.Connections, Sent: rep.Sent,
		Received: rep.Received}
	for i := range facts.Refused {
		f := &facts.Refused[i]
		if i >= maxRefused {
			rep.MoreRefused += f.Count
			continue
		}
		one := turnstone.RefusalReport{Protocol: f.Protocol, Host: s.host(f.Host),
			Target: s.host(targetOf(f.Host, f.Address)), Reason: s.Line(f.Reason), Count: f.Count}
		if f.Address.IsValid() {
			one.Address = f.Address.String()
		}
		if c := runningAt(s.commands[st.at], f.At, f.Host, f.Address); c != nil {
			one.Command, one.Place = c.Text, c.Place
		}
		rep.Refused = append(rep.Refused, one)
		shown.Refused = append(shown.Refused, document.NetworkRefusal{Protocol: one.Protocol,
			Target: one.Target, Reason: one.Reason, Count: one.Count, Command: one.Command})
	}
	for _, c := range facts.Ended {
		c.Host = s.host(c.Host)
		s.ended[st.at] = append(s.ended[st.at], c)
	}
	shown.MoreRefused = rep.MoreRefused
	if nothingHappened(rep) {
		return
	}
	st.res.Network, s.networks[st.at] = shown, rep
}

// host is line for a text with the name of a host.
func (s *Steps) host(text string) string { return s.Line(s.opts.Secrets.Hosts().Mask(text)) }

func nothingHappened(n *turnstone.NetworkReport) bool {
	return n.Connections == 0 && n.Sent == 0 && n.Received == 0 && len(n.Refused) == 0 &&
		n.MoreRefused == 0
}

// A guestClock determines the start of a step in the guest, which reports only times since then. A
// record arrives after its command has ended: each gives an upper bound for the start, and the
// fastest record gives the best bound. It is used by one goroutine at a time.
type guestClock struct{ latest time.Time }

// newGuestClock begins with a certain bound: shortly after the request of the step.
func newGuestClock(asked time.Time) *guestClock { return &guestClock{asked.Add(time.Hour)} }

func (g *guestClock) told(records []wire.ShellRecord) {
	now := time.Now()
	for i := range records {
		r := &records[i]
		ended := time.Duration(r.Start + r.Duration)
		if z := now.Add(-ended); z.Before(g.latest) {
			g.latest = z
		}
	}
}

func (g *guestClock) zero() time.Time { return g.latest }

// clockSlack bounds the difference between the guest's times of commands and the host's times of
// packets. The guest's are the later ones: see guestClock.
const clockSlack = 300 * time.Millisecond

// quietPrograms open no connections.
var quietPrograms = []string{"sleep", "true", "false", ":", "echo", "test", "[", "cd", "export",
	"exit", "return", "wait", "read", "set", "shift", "local", "declare", "kill"}

// runningAt returns the command that most likely acted at a time of the host on host and address: a
// command that names them, otherwise a command that can open a connection; of those the one that
// ran then, or was started last, or was nearest. Commands that only group others do not count.
func runningAt(c *commands, when time.Time, host string,
	address netip.AddrPort) *turnstone.CommandReport {
	if c == nil {
		return nil
	}
	at := when.Sub(c.zero)
	var best *turnstone.CommandReport
	rank, gap := -1, time.Duration(0)
	for i := range c.reports {
		rep := &c.reports[i]
		if rep.Kind != string(syntax.KindSimple) || rep.Text == "" {
			continue
		}
		from := time.Duration(rep.Start)
		off := max(0, from-at, at-from-time.Duration(rep.Duration))
		if off > clockSlack {
			continue
		}
		how := likely(rep.Text, host, address)
		if how > rank || how == rank && (off < gap || off == gap && rep.Start >= best.Start) {
			best, rank, gap = rep, how, off
		}
	}
	return best
}

// likely rates how likely a command has acted on host and address.
func likely(text, host string, address netip.AddrPort) int {
	if host != "" && strings.Contains(text, host) || address.IsValid() &&
		strings.Contains(text, address.Addr().String()) {
		return 2
	}
	program, _, _ := strings.Cut(strings.TrimSpace(text), " ")
	if slices.Contains(quietPrograms, program) && !strings.Contains(text, "/dev/") {
		return 0
	}
	return 1
}

// targetOf returns a rejection's target in its usual form.
func targetOf(host string, address netip.AddrPort) string {
	switch {
	case host == "" && !address.IsValid():
		return ""
	case !address.IsValid():
		return host
	case host == "" && address.Port() == 0:
		return address.Addr().String()
	case host == "":
		return address.String()
	case address.Port() == 0:
		return host
	}
	return fmt.Sprintf("%s:%d", host, address.Port())
}
