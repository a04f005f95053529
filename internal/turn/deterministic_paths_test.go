package turn_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/proof"
	"turnstone.dev/turnstone/internal/proof/key"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/repo/chain"
	"turnstone.dev/turnstone/internal/turn/replay"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/wire"
)

// A start is what a sandbox gets from its host.
type start struct {
	machine *substrate.Determinism
	config  wire.SandboxConfigureParams
}

// starts returns the list to which w's driver adds each start.
func (w *world) starts() *[]start {
	var all []start
	w.driver.Configured = func(m substrate.Machine, p *wire.SandboxConfigureParams) {
		all = append(all, start{m.Determinism, *p})
	}
	return &all
}

// TestDeterministicTurn checks that receipt, report, record, statement and replay of a
// deterministic turn have its tier, seed and clock, and that its machine gets nothing that differs
// between runs.
func TestDeterministicTurn(t *testing.T) {
	w := newWorld(t)
	all := w.starts()
	text := "---\ndeterministic: true\nclock: 2000-02-29\n---\n" +
		step("name=a", "echo one > f; echo $((1+1))")
	// The guest of this test has the clock of the host, so files' times differ.
	first := w.run(t.Context(), plan.Request{Session: "s"}, text, nil)
	if first.Result != turnstone.ResultPassed || first.Determinism == nil {
		t.Fatalf("%+v\n%s", first.Determinism, first.Receipt)
	}
	d := *first.Determinism
	if d.Tier != turnstone.TierSeeded || d.Clock.Format("2006-01-02") != "2000-02-29" ||
		d.Validate() != nil {
		t.Errorf("%+v", d)
	}
	_, claims, err := document.ReadReceipt("r.md", []byte(first.Receipt))
	if err != nil || claims.Info.Determinism == nil || *claims.Info.Determinism != d {
		t.Errorf("%v: the report has %+v, and the receipt is\n%s", err, d, first.Receipt)
	}
	cs := ok[*repo.ContextStore](t)(w.host.Context(t.Context()))
	rec := ok[*turnstone.TurnRecord](t)(cs.ReadRecord(t.Context(), first.Record))
	if rec.Determinism == nil || *rec.Determinism != d || rec.Shape.CPUs != 1 ||
		rec.Shape.Network {
		t.Errorf("%+v of %+v", rec.Determinism, rec)
	}
	trust := ok[*key.Trust](t)(key.Ring{Dir: w.host.Dir}.ListOf(nil))
	if v := ok[*turnstone.VerifyReport](t)(chain.Verify(t.Context(), w.host.Repo,
		chain.Request{Ref: "s@1", Trust: trust})); !v.OK {
		t.Errorf("%+v", v)
	}
	s := ok[*proof.Signed](t)(proof.OpenReceipt(t.Context(), "r.md", []byte(first.Receipt)))
	if got := s.Predicate.Determinism; got == nil || got.Tier != string(d.Tier) ||
		got.Seed != fmt.Sprint(d.Seed) || !got.Clock.Equal(d.Clock) {
		t.Errorf("the statement has %+v", got)
	}
	again := ok[*turnstone.ReplayReport](t)(replay.Run(t.Context(), w.Runner, cs, string(first.ID),
		replay.Options{}, nil))
	if !again.Same || again.Turn.Determinism == nil || *again.Turn.Determinism != d {
		t.Errorf("%+v, %+v", again, again.Turn.Determinism)
	}
	frozen := ok[*turnstone.FrozenReport](t)(w.frozen(first.Receipt, plan.Request{}))
	if !frozen.Same || frozen.Turn.Determinism == nil || *frozen.Turn.Determinism != d {
		t.Errorf("%+v, %+v", frozen, frozen.Turn.Determinism)
	}
	if len(*all) != 3 || !reflect.DeepEqual((*all)[0], (*all)[1]) ||
		!reflect.DeepEqual((*all)[0], (*all)[2]) {
		t.Errorf("%+v", *all)
	}
	other := uint64(7) // the caller's flags win
	frozen = ok[*turnstone.FrozenReport](t)(w.frozen(first.Receipt, plan.Request{Seed: &other}))
	if got := frozen.Turn.Determinism; got == nil || got.Seed != 7 || !got.Clock.Equal(d.Clock) {
		t.Errorf("%+v", got)
	}
	got := (*all)[0]
	if got.machine == nil || got.config.Hostname != "turn" ||
		got.config.Time != "2000-02-29T00:00:00Z" {
		t.Errorf("%+v", got)
	}
}

// TestSeedOfASession checks that the derived seed follows the state that a turn starts from.
func TestSeedOfASession(t *testing.T) {
	w := newWorld(t)
	text := "---\ndeterministic: true\n---\n" + step("name=a", "echo $((++N)); export N")
	seeds := map[uint64]int{}
	for i := range 3 {
		rep := w.run(t.Context(), plan.Request{Session: "s"}, text, nil)
		if was, twice := seeds[rep.Determinism.Seed]; twice {
			t.Errorf("turns %d and %d have the same seed", was, i)
		}
		seeds[rep.Determinism.Seed] = i
	}
	rep := w.run(t.Context(), plan.Request{Session: "other"}, text, nil)
	if i, same := seeds[rep.Determinism.Seed]; !same || i != 0 {
		t.Errorf("the first turn of another session has another seed than that of the first")
	}
}

// TestNothingStarts checks that a refused deterministic turn leaves no turn behind.
func TestNothingStarts(t *testing.T) {
	w := newWorld(t)
	all := w.starts()
	doc := ok[*document.Document](t)(document.Parse("d.md",
		[]byte("---\ndeterministic: true\nnetwork: on\n---\n"+step("name=a", "true"))))
	rep, err := w.Run(t.Context(), plan.Request{Document: doc, Image: image, Session: "s",
		Grant: []string{"network"}}, nil)
	if rep != nil || turnstone.KindOf(err) != turnstone.KindInvalid || len(*all) != 0 ||
		!strings.Contains(err.Error(), "a deterministic turn has no network") {
		t.Errorf("%+v, %v", rep, err)
	}
}
