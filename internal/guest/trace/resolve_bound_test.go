package trace

import (
	"slices"
	"strings"
	"testing"

	"turnstone.dev/turnstone/internal/lang/syntax"
	"turnstone.dev/turnstone/wire"
)

// looksFor returns the number of comparisons to resolve records in a script.
func looksFor(script string, records []wire.ShellRecord) (*Report, int) {
	s := syntax.ParseAs([]byte(script), "bash")
	rep := FromWire(records, &wire.ShellFinishedEvent{})
	r := newResolver(s, rep)
	for i := range rep.Records {
		r.record(&rep.Records[i])
	}
	return rep, r.looks
}

// TestResolveWork: a sandbox's data must not cost its host more than a few comparisons per record.
func TestResolveWork(t *testing.T) {
	const commands = 20_000
	same := make([]wire.ShellRecord, MaxRecords)
	odd := make([]wire.ShellRecord, MaxRecords)
	for i := range same {
		same[i] = wire.ShellRecord{ID: int64(i), Parent: 0, Kind: "simple", Text: "true", Line: 1,
			Site: int64(i % MaxSites)}
		odd[i] = same[i]
		odd[i].Text = "echo " + strings.Repeat("x", i%MaxText)
	}
	same[0].Kind, same[0].Parent = "list", -1
	odd[0] = same[0]
	rep, looks := looksFor(strings.Repeat("true;", commands)+"\n", same)
	if looks > 4*commands {
		t.Errorf("%d comparisons for %d records of %d commands in one line", looks,
			len(same), commands)
	}
	if len(rep.Records) != MaxRecords || rep.Records[MaxRecords-1].Command < 0 {
		t.Errorf("%d records, the last is %+v", len(rep.Records), rep.Records[MaxRecords-1])
	}
	rep, looks = looksFor(strings.Repeat("echo $(:)y;", commands)+"\n", odd)
	if looks <= commands || looks > maxLooks+MaxRecords*2 {
		t.Errorf("%d comparisons, want about %d at most", looks, maxLooks)
	}
	if len(rep.Records) != MaxRecords {
		t.Errorf("%d records", len(rep.Records))
	}
}

// TestResolveChain: a record's resolution uses only its direct parent.
func TestResolveChain(t *testing.T) {
	chain := make([]wire.ShellRecord, MaxRecords)
	for i := range chain {
		chain[i] = wire.ShellRecord{ID: int64(i), Parent: int64(i - 1), Kind: "list", Text: "x",
			Line: 1, Site: int64(i % MaxSites)}
	}
	chain[0].Kind, chain[0].Text = "simple", "f"
	last := MaxRecords - 1
	chain[last].Kind, chain[last].Text = "simple", "echo in"
	s := syntax.ParseAs([]byte("f() { echo in; }; f\n"), "bash")
	rep := FromWire(chain, &wire.ShellFinishedEvent{})
	n := testing.AllocsPerRun(1, func() { Resolve(s, rep) })
	if got := rep.Records[last].Command; got < 0 || source(s, got) != "echo in" {
		t.Errorf("the innermost one is command %d", got)
	}
	r := newResolver(s, rep)
	for i := range rep.Records {
		r.record(&rep.Records[i])
	}
	if around := r.outers[last]; around.caller != &rep.Records[last] {
		t.Errorf("%+v", around)
	}
	if around := r.outers[last-1]; around.caller != &rep.Records[0] ||
		around.command != rep.Records[0].Command {
		t.Errorf("the one before it has %+v around it", around)
	}
	if n > 20*MaxRecords {
		t.Errorf("%.0f allocations", n)
	}
}

// TestFromWire: records arrive ordered by their ends, and a sandbox may send impossible values.
func TestFromWire(t *testing.T) {
	rep := FromWire([]wire.ShellRecord{
		{ID: 2, Parent: 1, Kind: "simple", Text: "echo a", Line: 1, Site: 2},
		{ID: 1, Parent: 0, Kind: "for", Text: "i", Line: 1, Site: 1},
		{ID: 2, Parent: 1, Kind: "simple", Text: "echo again", Line: 1},
		{ID: 0, Parent: -1, Kind: "list", Line: 1},
		{ID: MaxRecords, Parent: 0, Kind: "simple"}, {ID: -1, Parent: -1, Kind: "simple"},
		{ID: 3, Parent: 3, Kind: "simple"},
		{ID: 4, Parent: 0, Site: MaxSites, Kind: "simple"}, {ID: 5, Parent: 0, Kind: "no such"},
		{ID: 6, Parent: 0},
	}, &wire.ShellFinishedEvent{Sites: []wire.ShellSite{
		{ID: 1, Kind: "for", Text: "i"}, {ID: 1, Kind: "for", Text: "again"}, {ID: -1, Kind: "for"},
		{ID: MaxSites, Kind: "for"}, {ID: 3, Kind: "for", Count: -1},
		{ID: 4, Kind: "for", Duration: -1}, {ID: 5, Kind: "for", Line: -1}, {ID: 0, Kind: "for"},
		{ID: 6, Kind: "no such"}, {ID: 7},
	}})
	var ids, sites []int
	for _, r := range rep.Records {
		ids = append(ids, r.ID)
	}
	for _, s := range rep.Sites {
		sites = append(sites, s.ID)
	}
	if !slices.Equal(ids, []int{0, 1, 2}) || rep.Records[2].Words != "echo a" {
		t.Errorf("records %v: %+v", ids, rep.Records)
	}
	if !slices.Equal(sites, []int{1, 0}) || rep.Sites[0].Words != "i" {
		t.Errorf("sites %v: %+v", sites, rep.Sites)
	}
}
