package console

import (
	"errors"
	"strconv"
	"strings"

	"turnstone.dev/turnstone/internal/guest/kernel/need"
)

// CheckWord, with a nonce, on the kernel's command line makes the agent report what the kernel
// has instead of starting.
const CheckWord = "turnstone.check="

// What the report's lines begin with; see package agent.
const (
	agentName   = "turnstone-agent: "
	checkStart  = agentName + "check " // and the nonce and a blank
	checkHas    = "has "
	checkNot    = "lacks "
	checkKernel = "kernel "
	checkCPUs   = "cpus "
	checkOpen   = "open"
	checkEnd    = "ends"
)

// ErrNoEnd says that a report has no end yet.
var ErrNoEnd = errors.New("the agent's report breaks off")

// A KernelReport is what the agent says of the kernel that it runs on.
type KernelReport struct {
	Has     map[string]bool // by the name of a need; what is not in it the kernel does not tell
	Release string          // by uname(2); printable
	CPUs    int             // that are up
	Open    bool            // programs can read the kernel's memory
}

// maxRelease bounds a kernel's release: utsname has room for as many bytes.
const maxRelease = 64

// Report returns the report with this nonce, which is in the text of a console. Lines with
// another nonce, or with none, are not the agent's. With ErrNoEnd that is a part only.
func Report(text, nonce string) (r KernelReport, err error) {
	r.Has = map[string]bool{}
	for line := range strings.Lines(text) {
		_, said, found := strings.Cut(line, checkStart+nonce+" ")
		if !found || nonce == "" {
			continue
		}
		said = strings.TrimRight(said, "\r\n")
		if said == checkEnd && strings.HasSuffix(line, "\n") {
			return r, nil
		}
		r.add(said)
	}
	return r, ErrNoEnd
}

// add notes one line.
func (r *KernelReport) add(said string) {
	if name, ok := strings.CutPrefix(said, checkHas); ok {
		r.note(name, true)
	} else if name, ok := strings.CutPrefix(said, checkNot); ok {
		r.note(name, false)
	} else if release, ok := strings.CutPrefix(said, checkKernel); ok {
		r.Release = Printable(release[:min(len(release), maxRelease)])
	} else if n, ok := strings.CutPrefix(said, checkCPUs); ok {
		if cpus, err := strconv.ParseUint(n, 10, 16); err == nil {
			r.CPUs = int(cpus)
		}
	} else if said == checkOpen {
		r.Open = true
	}
}

func (r *KernelReport) note(name string, there bool) {
	if _, known := need.Of(name); known {
		r.Has[name] = there
	}
}
