package console

import (
	"errors"
	"strconv"
	"strings"

	"turnstone.dev/turnstone/internal/guest/kernel/need"
)

// CheckWord, with a nonce, on the kernel's command line makes the agent report the kernel's
// features instead of starting.
const CheckWord = "turnstone.check="

// The beginnings of the report's lines; see package agent.
const (
	agentName   = "turnstone-agent: "
	checkStart  = agentName + "check " // followed by the nonce and a space
	checkHas    = "has "
	checkNot    = "lacks "
	checkKernel = "kernel "
	checkCPUs   = "cpus "
	checkOpen   = "open"
	checkEnd    = "ends"
)

// errNoEnd means that a report has no end yet.
var errNoEnd = errors.New("the agent's report is incomplete")

// A KernelReport is the agent's report on its kernel.
type KernelReport struct {
	Has     map[string]bool // by the name of a need; missing names: the kernel does not tell
	Release string          // from uname(2); printable
	CPUs    int             // online CPUs
	Open    bool            // programs can read the kernel's memory
}

// maxRelease bounds a kernel's release: utsname has room for that many bytes.
const maxRelease = 64

// Report returns the report with this nonce from the text of a console. Lines with another nonce,
// or without a nonce, are not the agent's. With errNoEnd the report is only partial.
func Report(text, nonce string) (r KernelReport, err error) {
	r.Has = map[string]bool{}
	for line := range strings.Lines(text) {
		_, said, found := strings.Cut(line, checkStart+nonce+" ")
		if !found || nonce == "" {
			continue
		}
		said = strings.TrimRight(said, "\r\n")
		if said == checkEnd { // also without its line feed, which a machine that ends may not send
			return r, nil
		}
		r.add(said)
	}
	return r, errNoEnd
}

// add records a line.
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
