package console

import (
	"errors"
	"strings"

	"turnstone.dev/turnstone/kernel/need"
)

// CheckWord on the kernel's command line makes the agent report what the kernel has
// instead of starting.
const CheckWord = "turnstone.check"

// What the report's lines begin with; see package agent.
const (
	agentName = "turnstone-agent: "
	checkHas  = agentName + "check has "
	checkNot  = agentName + "check lacks "
	checkEnd  = agentName + "check ends"
)

// ErrNoEnd says that a report has no end yet.
var ErrNoEnd = errors.New("the agent's report breaks off")

// Report returns what a kernel has by the report that a console has in it: for each need
// that the agent speaks of whether the kernel has it. With ErrNoEnd that is a part only.
func Report(text string) (has map[string]bool, err error) {
	has = map[string]bool{}
	for line := range strings.Lines(text) {
		at := strings.Index(line, agentName)
		if at < 0 {
			continue
		}
		said := strings.TrimRight(line[at:], "\r\n")
		if said == checkEnd && strings.HasSuffix(line, "\n") {
			return has, nil
		}
		name, there := strings.CutPrefix(said, checkHas)
		if !there {
			if name, there = strings.CutPrefix(said, checkNot); !there {
				continue
			}
			there = false
		}
		if _, known := need.Of(name); known {
			has[name] = there
		}
	}
	return has, ErrNoEnd
}
