package snapshots

import (
	"fmt"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/host"
)

// A Part is one thing that a machine and the one that is there now must have in common.
type Part struct {
	What     string
	Was, Now string // Was may come from anywhere
	Bare     bool   // the values say nothing to a user
}

// Differs names the first of parts that is another now; "" where the machines are the same.
func Differs(same bool, parts ...Part) string {
	if same {
		return ""
	}
	for _, p := range parts {
		switch {
		case p.Was == p.Now:
		case p.Bare:
			return p.What
		default:
			return fmt.Sprintf("%s (%s, now %s)", p.What, host.Clip(p.Was), p.Now)
		}
	}
	return "version of turn"
}

// Digests is a Part that is known by its digest.
func Digests(what string, was, now turnstone.Digest) Part {
	return Part{What: what, Was: was.Short(), Now: now.Short()}
}

// Agents is the Part of the agent, which comes with turn.
func Agents(was, now turnstone.Digest) Part { return Digests("version of turn: its agent", was, now) }

// Roots is the Part of the template's image.
func Roots(was, now turnstone.Digest) Part { return Digests("image of the template", was, now) }

// Shapes is the Part of the machine's shape.
func Shapes(was, now turnstone.Shape) Part {
	text := func(s turnstone.Shape) string {
		return fmt.Sprintf("%d CPUs, %s of memory, %s of disk, network %t", s.CPUs, s.Memory.Human(), s.Disk.Human(), s.Network)
	}
	return Part{What: fmt.Sprintf("shape (%s; now %s)", text(was), text(now)), Was: fmt.Sprint(was), Now: fmt.Sprint(now), Bare: true}
}
