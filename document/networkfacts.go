package document

import (
	"fmt"
	"strings"

	"turnstone.dev/turnstone"
)

// maxRefusals bounds the refusals that are shown of one step; the others are counted.
const maxRefusals = 10

// A StepNetwork is what a step did on the network.
type StepNetwork struct {
	Connections int64 // that were opened
	Sent        int64 // bytes that the guest sent on them
	Received    int64 // bytes that it got
	Refused     []NetworkRefusal
	MoreRefused int64    // attempts that are in none of Refused
	Notes       []string // further lines, as "recorded, but cannot be replayed: …"
}

// A NetworkRefusal is something that a step was not let do, maybe more than once.
type NetworkRefusal struct {
	Protocol string // "tcp", "udp", "dns", "icmp"
	Target   string // HOST:PORT, ADDRESS:PORT or a name
	Reason   string
	Count    int64
	Command  string // the source of what ran then; empty if it is not known
}

// appendNetwork writes a line for the traffic, and one for each refusal.
func appendNetwork(lines []string, n *StepNetwork) []string {
	if n == nil {
		return lines
	}
	if n.Connections > 0 {
		lines = appendParagraph(lines, fmt.Sprintf("network: %s, %s sent, %s received", plural(n.Connections, "connection"),
			turnstone.Bytes(n.Sent).Human(), turnstone.Bytes(n.Received).Human()))
	}
	more := n.MoreRefused
	for i, r := range n.Refused {
		if i >= maxRefusals {
			more += max(1, r.Count)
			continue
		}
		lines = appendParagraph(lines, r.line())
	}
	if more > 0 {
		lines = appendParagraph(lines, "network: refused "+plural(more, "more attempt"))
	}
	for _, note := range n.Notes {
		lines = appendParagraph(lines, "network: "+escapeMarkdown(oneLine(note, maxNote)))
	}
	return lines
}

// line says what was refused, as one line of markdown.
func (r NetworkRefusal) line() string {
	var b strings.Builder
	b.WriteString("network: refused " + escapeMarkdown(oneLine(r.Protocol+" "+r.Target, maxNote)))
	if r.Reason != "" {
		b.WriteString(" (" + escapeMarkdown(oneLine(r.Reason, maxNote)) + ")")
	}
	if r.Count > 1 {
		fmt.Fprintf(&b, " ×%d", r.Count)
	}
	if text := commandText(r.Command); text != "" {
		b.WriteString(", by " + codeSpan(text))
	}
	return b.String()
}
