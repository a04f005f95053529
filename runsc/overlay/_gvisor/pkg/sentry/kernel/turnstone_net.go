// Packets on their way to and from a deterministic sandbox. This file is added by Turnstone's build.

package kernel

import (
	"time"

	"gvisor.dev/gvisor/pkg/sentry/inet"
)

const (
	// answerTime is the real time that an answer from outside the sandbox may take: a recording is
	// served by a process of the host, which may be busy.
	answerTime = 2 * time.Second
	// loopTime is the same for packets on the loopback interface, which other goroutines carry.
	loopTime = 20 * time.Millisecond
)

// A traffic tells when packets may still be on their way, so that the clock must not jump over a
// program's limit for its answer. It is used by one goroutine.
type traffic struct {
	stack inet.Stack
	links map[string]*link // by the interface's name
}

// A link is what was seen of a network interface.
type link struct {
	packets uint64
	changed time.Time
	waited  bool // in vain, since the last packet
}

func newTraffic(stack inet.Stack) *traffic {
	return &traffic{stack: stack, links: make(map[string]*link)}
}

// settled reports whether no packet passed for so long that none is on its way. After one such wait
// the next is for the next packet: a connection that nobody uses costs no more time.
func (n *traffic) settled() bool {
	if n.stack == nil {
		return true
	}
	all := true
	for _, i := range n.stack.Interfaces() { // the agent may add one at any time
		l := n.links[i.Name]
		if l == nil {
			l = &link{waited: true}
			n.links[i.Name] = l
		}
		var s inet.StatDev // as a line of /proc/net/dev: the packets received, and sent
		if n.stack.Statistics(&s, i.Name) == nil && s[1]+s[9] != l.packets {
			l.packets, l.changed, l.waited = s[1]+s[9], time.Now(), false
		}
		within := answerTime
		if i.Name == "lo" {
			within = loopTime
		}
		l.waited = l.waited || time.Since(l.changed) >= within
		all = all && l.waited
	}
	return all
}
