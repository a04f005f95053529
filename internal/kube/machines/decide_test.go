package machines

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// room is what a machine of these tests has.
var room = Size{CPUs: 8, Memory: 16 << 30}

func node(name string, memory uint64) Node {
	return Node{Name: name, Capacity: room, Work: Size{Memory: memory << 30}}
}

func TestDecide(t *testing.T) {
	now := time.Unix(1e6, 0)
	rules := Rules{Min: 1, Max: 5, Spare: 25, Idle: time.Minute}
	long := func(names ...string) map[string]time.Time {
		m := map[string]time.Time{}
		for i, n := range names {
			m[n] = now.Add(time.Duration(i-60) * time.Minute)
		}
		return m
	}
	for _, tt := range []struct {
		name    string
		nodes   []Node
		pods    []Pod
		waiting bool
		idle    map[string]time.Time
		want    Plan
	}{
		{name: "nothing is there: the least number", want: Plan{Any: 1}},
		{name: "enough", nodes: []Node{node("a", 4)}, pods: []Pod{{Name: "p", Machine: "a", Kept: true}}},
		{name: "a machine that has work may not be evicted", nodes: []Node{node("a", 4)},
			pods: []Pod{{Name: "p", Machine: "a"}}, want: Plan{Keep: []string{"p"}}},
		{name: "and one without may", nodes: []Node{node("a", 0)},
			pods: []Pod{{Name: "p", Machine: "a", Kept: true}}, want: Plan{Free: []string{"p"}}},
		{name: "work where no pod is", nodes: []Node{node("a", 4)}, want: Plan{For: []string{"a"}}},
		{name: "more work than one machine has room for, with the spare", nodes: []Node{node("a", 13)},
			pods: []Pod{{Name: "p", Machine: "a", Kept: true}}, want: Plan{Any: 1}},
		{name: "one is asked for already", nodes: []Node{node("a", 13)},
			pods: []Pod{{Name: "p", Machine: "a", Kept: true}, {Name: "q"}}},
		{name: "many processors", nodes: []Node{{Name: "a", Capacity: room, Work: Size{CPUs: 20, Memory: 1}}},
			pods: []Pod{{Name: "p", Machine: "a", Kept: true}}, want: Plan{Any: 3}},
		{name: "a draining machine is no room", nodes: []Node{node("a", 1),
			{Name: "b", Capacity: Size{1 << 20, 1 << 60}, Drains: true}},
			pods: []Pod{{Name: "p", Machine: "a", Kept: true}}},
		{name: "requests wait", nodes: []Node{node("a", 1)}, waiting: true,
			pods: []Pod{{Name: "p", Machine: "a", Kept: true}}, want: Plan{Any: 1}},
		{name: "never more than the most", nodes: []Node{node("a", 900)},
			pods: []Pod{{Name: "p", Machine: "a", Kept: true}}, want: Plan{Any: 4}},
		{name: "what is idle for the longest goes", nodes: []Node{node("a", 1), node("b", 0), node("c", 0)},
			pods: []Pod{{Name: "p", Machine: "a", Kept: true}, {Name: "q", Machine: "b"}, {Name: "r", Machine: "c"}},
			idle: map[string]time.Time{"b": now.Add(-2 * time.Minute), "c": now.Add(-time.Hour)},
			want: Plan{Remove: []string{"r", "q"}}},
		{name: "what was idle for a moment stays", nodes: []Node{node("a", 1), node("b", 0)},
			pods: []Pod{{Name: "p", Machine: "a", Kept: true}, {Name: "q", Machine: "b"}},
			idle: map[string]time.Time{"b": now}},
		{name: "first what has no machine", nodes: []Node{node("a", 0), node("b", 0)},
			pods: []Pod{{Name: "p", Machine: "a"}, {Name: "q"}}, idle: long("a", "b"),
			want: Plan{Remove: []string{"q"}}},
		{name: "the least number stays", nodes: []Node{node("a", 0)},
			pods: []Pod{{Name: "p", Machine: "a"}}, idle: long("a")},
		{name: "a node that does not answer keeps its pod", nodes: nil,
			pods: []Pod{{Name: "p", Machine: "a", Kept: true}, {Name: "q", Machine: "b"}}},
		{name: "two pods of one machine", nodes: []Node{node("a", 1)},
			pods: []Pod{{Name: "q", For: "a"}, {Name: "p", Machine: "a", Kept: true}},
			want: Plan{Remove: []string{"q"}}},
		{name: "a pod for a machine that is gone", nodes: []Node{node("a", 1)}, pods: []Pod{
			{Name: "p", Machine: "a", Kept: true}, {Name: "q", For: "b", Created: now.Add(-lostTime - 1)}},
			want: Plan{Remove: []string{"q"}}},
	} {
		got := decide(now, rules, tt.nodes, tt.pods, tt.waiting, tt.idle)
		if fmt.Sprint(got) != fmt.Sprint(tt.want) {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}

// TestDecideProperties: whatever is there, no pod of a machine with work goes or may be evicted, each
// such machine gets one, and the bounds hold; and when a plan was carried out, the next one is empty.
func TestDecideProperties(t *testing.T) {
	now := time.Unix(1e6, 0)
	rapid.Check(t, func(t *rapid.T) {
		r := Rules{Min: rapid.IntRange(0, 3).Draw(t, "min"), Max: rapid.IntRange(3, 9).Draw(t, "max"),
			Spare: rapid.IntRange(0, 100).Draw(t, "spare"), Idle: time.Minute}
		var nodes []Node
		idle := map[string]time.Time{}
		for i := range rapid.IntRange(0, 6).Draw(t, "nodes") {
			n := node(fmt.Sprint("m", i), rapid.SampledFrom([]uint64{0, 0, 1, 8, 16}).Draw(t, "work"))
			n.Drains = rapid.Bool().Draw(t, "drains")
			if !n.busy() {
				idle[n.Name] = now.Add(-time.Duration(rapid.IntRange(0, 120).Draw(t, "idle")) * time.Second)
			}
			nodes = append(nodes, n)
		}
		var pods []Pod
		used := map[string]bool{}
		for i := range rapid.IntRange(0, 8).Draw(t, "pods") {
			p := Pod{Name: fmt.Sprint("p", i), Kept: rapid.Bool().Draw(t, "kept"), Created: now}
			at := fmt.Sprint("m", rapid.IntRange(0, 7).Draw(t, "at"))
			switch rapid.IntRange(0, 2).Draw(t, "where") {
			case 0:
				if !used[at] { // the scheduler puts no two on a machine
					used[at], p.Machine = true, at
				}
			case 1:
				p.For = at
			}
			pods = append(pods, p)
		}
		plan := decide(now, r, nodes, pods, rapid.Bool().Draw(t, "waiting"), idle)
		after := carriedOut(plan, pods, now)
		for _, n := range nodes {
			if !n.busy() {
				continue
			}
			if !slices.ContainsFunc(after, func(p Pod) bool {
				return p.Machine == n.Name && p.Kept || p.Machine == "" && p.For == n.Name
			}) {
				t.Fatalf("%s has work, and nothing keeps it: %+v of %+v", n.Name, plan, pods)
			}
		}
		if plan.Any > 0 && len(after) > max(r.Max, len(nodes)) {
			t.Fatalf("%d pods: %+v", len(after), plan)
		}
		if len(after) < r.Min {
			t.Fatalf("%d pods, fewer than %d", len(after), r.Min)
		}
		if again := decide(now, r, nodes, after, false, idle); again.Any+len(again.For)+len(again.Keep)+
			len(again.Free) > 0 {
			t.Fatalf("the next look wants %+v after %+v", again, plan)
		}
	})
}

// carriedOut returns the pods after a plan. New ones have no machine yet.
func carriedOut(p Plan, pods []Pod, now time.Time) (after []Pod) {
	for _, pod := range pods {
		if slices.Contains(p.Remove, pod.Name) {
			continue
		}
		pod.Kept = (pod.Kept || slices.Contains(p.Keep, pod.Name)) && !slices.Contains(p.Free, pod.Name)
		after = append(after, pod)
	}
	for i := range p.Any {
		after = append(after, Pod{Name: fmt.Sprint("any", i), Created: now})
	}
	for i, m := range p.For {
		after = append(after, Pod{Name: fmt.Sprint("for", i), For: m, Kept: true, Created: now})
	}
	return after
}
