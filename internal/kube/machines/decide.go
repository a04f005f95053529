package machines

import (
	"cmp"
	"slices"
	"time"
)

// A Size is what a machine has, or what is used of it.
type Size struct {
	CPUs   uint64 // of sandboxes: a processor may have several
	Memory uint64 // bytes
}

// A Node is a node of the server.
type Node struct {
	Name     string // that of its machine in the cluster
	Capacity Size
	Work     Size // of sandboxes and turns, paused ones too, without those that only wait in pools
	Drains   bool
}

func (n Node) busy() bool { return n.Work != (Size{}) }

// A Pod stands for the room of a machine.
type Pod struct {
	Name    string
	Machine string // where it is; empty: the scheduler has found none
	For     string // the only machine that will do; empty: any
	Kept    bool   // it may not be evicted
	Created time.Time
}

// Rules say how many machines there are.
type Rules struct {
	Min, Max int
	// Spare is the part of the room that is kept free, in percent of what is used.
	Spare int
	// Idle is how long a machine has nothing to do before its pod goes.
	Idle time.Duration
}

// A Plan is what to do with pods.
type Plan struct {
	Any    int      // pods for any machine that has none
	For    []string // machines with work that have none
	Remove []string // names of pods
	Keep   []string // names of pods that may not be evicted from now on
	Free   []string // names of pods that may be
}

// lostTime is how long a pod may wait for the machine that it is for.
const lostTime = 5 * time.Minute

// decide returns what is to be done. idle has since when machines have been idle. waiting is whether
// requests have waited for room since the last look.
func decide(now time.Time, r Rules, nodes []Node, pods []Pod, waiting bool, idle map[string]time.Time) Plan {
	var p Plan
	work := make(map[string]bool, len(nodes)) // of those that answer
	var busy int
	for _, n := range nodes {
		if work[n.Name] = n.busy(); n.busy() {
			busy++
		}
	}
	pods = slices.Clone(pods) // of two pods of a machine, the one that is there stays
	slices.SortStableFunc(pods, func(a, b Pod) int { return cmp.Compare(b.Machine, a.Machine) })
	has := make(map[string]bool, len(pods))
	var there []Pod // pods that count as a machine's
	for _, pod := range pods {
		at := cmp.Or(pod.Machine, pod.For)
		_, answers := work[pod.Machine]
		switch {
		case at != "" && has[at], pod.Machine == "" && pod.For != "" && !work[pod.For] &&
			now.Sub(pod.Created) > lostTime:
			p.Remove = append(p.Remove, pod.Name)
			continue
		case pod.Machine != "" && work[at] && !pod.Kept:
			p.Keep = append(p.Keep, pod.Name)
		case pod.Machine != "" && answers && !work[at] && pod.Kept:
			p.Free = append(p.Free, pod.Name)
		}
		if at != "" {
			has[at] = true
		}
		there = append(there, pod)
	}
	for _, n := range nodes {
		if work[n.Name] && !has[n.Name] {
			p.For = append(p.For, n.Name)
		}
	}
	want := max(wanted(r, nodes, waiting), min(busy, r.Max))
	if more := want - len(there) - len(p.For); more > 0 {
		p.Any = more
	} else if more < 0 {
		p.Remove = append(p.Remove, surplus(now, r, there, work, idle, -more)...)
	}
	return p
}

// wanted returns how many machines are needed for what is used, and what is to be spare.
func wanted(r Rules, nodes []Node, waiting bool) int {
	var used, each Size
	open := 0
	for _, n := range nodes {
		used.CPUs += n.Work.CPUs
		used.Memory += n.Work.Memory
		if n.Drains || n.Capacity.CPUs == 0 || n.Capacity.Memory == 0 {
			continue
		}
		open++
		if each == (Size{}) {
			each = n.Capacity
		}
		// machines differ: the smallest counts, so that there are rather too many
		each.CPUs, each.Memory = min(each.CPUs, n.Capacity.CPUs), min(each.Memory, n.Capacity.Memory)
	}
	n := 0
	if open > 0 {
		n = max(parts(used.CPUs, each.CPUs, r.Spare), parts(used.Memory, each.Memory, r.Spare))
	}
	if waiting {
		n = max(n, open+1)
	}
	return min(max(n, r.Min), r.Max)
}

// parts returns how many pieces of a size are a whole and its percentage more, rounded up.
func parts(whole, size uint64, percent int) int {
	need := float64(whole) * (1 + float64(percent)/100) / float64(size)
	n := int(min(need, 1<<30))
	if float64(n) < need {
		n++
	}
	return n
}

// surplus returns up to n pods that go: first those without a machine, then those of the machines
// that have been idle for the longest.
func surplus(now time.Time, r Rules, pods []Pod, work map[string]bool, idle map[string]time.Time, n int) (all []string) {
	var may []Pod
	for _, pod := range pods {
		since, still := idle[pod.Machine]
		if pod.Machine == "" && pod.For == "" || pod.Machine != "" && !work[pod.Machine] && still &&
			now.Sub(since) >= r.Idle {
			may = append(may, pod)
		}
	}
	slices.SortFunc(may, func(a, b Pod) int {
		return cmp.Or(idle[a.Machine].Compare(idle[b.Machine]), b.Created.Compare(a.Created),
			cmp.Compare(a.Name, b.Name))
	})
	for _, pod := range may[:min(n, len(may))] {
		all = append(all, pod.Name)
	}
	return all
}
