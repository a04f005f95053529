package document

import (
	"fmt"
	"strings"

	"turnstone.dev/turnstone"
)

// maxRefusals bounds the listed refusals of a step; the others are counted.
const maxRefusals = 10

// StepNetwork describes a step's network activity.
type StepNetwork struct {
	Connections int64 // opened connections
	Sent        int64 // bytes that the guest sent
	Received    int64 // bytes that the guest received
	Refused     []NetworkRefusal
	MoreRefused int64    // attempts that are not in Refused
	Notes       []string // further lines, such as "recorded, but cannot be replayed: …"
}

// A NetworkRefusal is a rejected network access of a step, with its number of attempts.
type NetworkRefusal struct {
	Protocol string // "tcp", "udp", "dns", "icmp"
	Target   string // HOST:PORT, ADDRESS:PORT or a name
	Reason   string
	Count    int64
	Command  string // source of the command that ran at that time; empty if unknown
}

// appendNetwork writes a line for the traffic and a line for each refusal.
func appendNetwork(lines []string, n *StepNetwork) []string {
	if n == nil {
		return lines
	}
	if n.Connections > 0 {
		lines = appendParagraph(lines,
			fmt.Sprintf("network: %s, %s sent, %s received", plural(n.Connections, "connection"),
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

// line returns the refusal as a line of markdown.
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
