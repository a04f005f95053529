package snapshots

import (
	"fmt"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/host"
)

// A Part is a property in which a machine and its current host must agree.
type Part struct {
	What     string
	Was, Now string // Was is untrusted
	Bare     bool   // the values mean nothing to a user
}

// Differs names the first changed part, or the version of turn if no part has changed; "" if same.
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

// Digests returns a Part that is identified by its digest.
func Digests(what string, was, now turnstone.Digest) Part {
	return Part{What: what, Was: was.Short(), Now: now.Short()}
}

// Agents returns the Part of the agent, which belongs to turn.
func Agents(was, now turnstone.Digest) Part {
	return Digests("version of turn: its agent", was,
		now)
}

// Roots returns the Part of the template's image.
func Roots(was, now turnstone.Digest) Part { return Digests("image of the template", was, now) }

// Shapes returns the Part of the machine's shape.
func Shapes(was, now turnstone.Shape) Part {
	text := func(s turnstone.Shape) string {
		return fmt.Sprintf("%d CPUs, %s of memory, %s of disk, network %t", s.CPUs,
			s.Memory.Human(), s.Disk.Human(), s.Network)
	}
	return Part{What: fmt.Sprintf("shape (%s; now %s)", text(was), text(now)), Was: fmt.Sprint(was),
		Now: fmt.Sprint(now), Bare: true}
}
