package turn

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/provision"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/turn/netrecord"
	"turnstone.dev/turnstone/internal/turn/place"
)

// maxProgress bounds the result of one step in a checkpoint in bytes.
const maxProgress = 1 << 30

// Resume runs the steps of an interrupted turn that its checkpoint does not have, in a new sandbox on
// the checkpoint's state, and ends the turn. req is the request of the turn. Of several callers, in
// any process, one succeeds; the others get an error of kind Invalid. Otherwise Resume is like Run.
func (x *Runner) Resume(ctx context.Context, req plan.Request, id turnstone.TurnID, obs Observer) (
	*turnstone.TurnReport, error) {
	r, err := x.begin(ctx, req, nil, nil, id, obs)
	if err != nil {
		return nil, err
	}
	defer r.close()
	return r.run(ctx), nil
}

// A resumption is what a resumed turn goes on from.
type resumption struct {
	base     provision.Base // the checkpoint
	progress [][]byte       // the results of the finished steps
}

// reopen takes the place of the interrupted turn id.
func (r *run) reopen(ctx context.Context, id turnstone.TurnID) error {
	cs, err := r.host.Context(ctx)
	if err != nil {
		return err
	}
	if cs, _, err = cs.Resolve(ctx, string(id)); err != nil {
		return err
	}
	if err := r.keepsNetwork(ctx, cs, id); err != nil {
		return err
	}
	at, err := place.Resume(ctx, cs, r.host.Repo, id)
	if err != nil {
		return err
	}
	from := &resumption{}
	c := at.Resumed
	if c.Step == 0 {
		return r.startAgain(ctx, cs, at)
	}
	from.base, err = place.OfCheckpoint(ctx, cs, at.Turn, c)
	var rec *turnstone.TurnRecord
	if err == nil {
		rec, err = cs.ReadRecord(ctx, c.Record)
	}
	if err == nil && (c.Step < 1 || c.Step > len(r.doc.Steps) || len(rec.Progress) != c.Step ||
		len(rec.Steps) != c.Step) {
		err = turnstone.Errorf("executor.resume", turnstone.KindIntegrity, string(id),
			"its checkpoint is about %d steps, and does not have them", c.Step)
	}
	for i := 0; err == nil && i < len(rec.Progress); i++ {
		var b []byte
		b, err = cs.Read(ctx, rec.Progress[i], maxProgress)
		from.progress = append(from.progress, b)
	}
	if err != nil {
		at.Abandon(ctx)
		return err
	}
	r.at, r.from, r.kept = at, from, &keptSteps{step: c.Step, record: rec}
	r.info.ID, r.info.Started = id, rec.Started
	return nil
}

// keepsNetwork rejects a network other than the one that the turn id began with: the turn's record
// and what is signed of it have one network, which has to be that of all steps.
func (r *run) keepsNetwork(ctx context.Context, cs *repo.ContextStore, id turnstone.TurnID) error {
	c, err := cs.DB.Checkpoint(ctx, id)
	if err != nil || c == nil { // Reopen says what the turn is
		return err
	}
	rec, err := cs.ReadRecord(ctx, c.Record)
	if err != nil {
		return err
	}
	fail := func(format string, args ...any) error {
		return turnstone.Errorf("executor.resume", turnstone.KindInvalid,
			fmt.Sprintf("turn %d", rec.Number), format, args...).
			WithHint("resume it with the network that it began with, or run its document again")
	}
	on := map[bool]string{true: "on", false: "off"}
	if now, began := r.plan.Shape.Network, rec.Shape.Network; now != began {
		return fail("its network was %s, and is %s now", on[began], on[now])
	}
	if began := netrecord.Spec(rec.Network); r.plan.Shape.Network &&
		!sameRules(&began, &r.plan.Net.Asked) {
		return fail("its network rules were others")
	}
	return nil
}

// sameRules reports whether a and b open and refuse the same. Who requested it does not matter: the
// request of a resumed turn is its record's.
func sameRules(a, b *turnstone.NetworkSpec) bool {
	set := func(rules []string) []string { return slices.Compact(slices.Sorted(slices.Values(rules))) }
	return slices.Equal(set(a.Allow), set(b.Allow)) && slices.Equal(set(a.Deny), set(b.Deny)) &&
		a.Only == b.Only && a.Open == b.Open && a.NoHostCA == b.NoHostCA
}

// restore sets the results of the steps that finished before a resumed turn was interrupted.
func (r *run) restore() error {
	if r.from == nil {
		if len(r.resumptions()) > 0 {
			r.info.Resumed = r.steps.Line(r.describeResumptions())
		}
		return nil
	}
	r.inputs.Done = r.kept.record.Inputs
	r.info.Resumed = r.steps.Line(r.describeResumptions())
	return r.steps.Restore(r.from.progress)
}

// describeResumptions returns what a receipt says about the turn's resumptions.
func (r *run) describeResumptions() string {
	all := r.resumptions()
	if all[len(all)-1].After == 0 {
		return describeAttempt(len(all) + 1)
	}
	var after []string
	for _, one := range all {
		if one.After == 0 {
			after = append(after, "nothing")
			continue
		}
		after = append(after, r.doc.Steps[min(one.After, len(r.doc.Steps))-1].Name)
	}
	times := "once"
	if len(all) > 1 {
		times = fmt.Sprintf("%d times", len(all))
	}
	return times + ", after " + strings.Join(after, ", ") + ": in a new machine, without the " +
		"processes of the steps before"
}

// resumptions returns the times that the turn was resumed.
func (r *run) resumptions() []turnstone.Resumption {
	if r.at == nil || r.at.Resumed == nil { // a turn that failed before it had a place
		return nil
	}
	return r.at.Resumed.Resumed
}

// startsOn returns the plan and the base of the turn's sandbox. A resumed turn continues in the
// environment and the directory of its checkpoint, which have the plan's already.
func (r *run) startsOn() (*plan.Plan, provision.Base) {
	if r.from == nil {
		return r.plan, r.at.Base
	}
	on := *r.plan
	on.Env, on.Cwd = nil, r.from.base.State.Cwd
	return &on, r.from.base
}

// below returns the tree below the disk of the turn's sandbox; zero: that of its template.
func (r *run) below() (ref turnstone.TreeRef) {
	_, base := r.startsOn()
	switch {
	case r.base != ref:
		return r.base
	case base.State != nil:
		return base.State.Tree
	}
	return ref
}

// timeLeft returns the time that the turn's time limit leaves for the steps.
func (r *run) timeLeft() time.Duration {
	if r.from == nil {
		return r.plan.Timeout
	}
	left := r.plan.Timeout
	for _, step := range r.doc.Steps[:r.kept.step] {
		left -= r.steps.Result(step).Duration
	}
	return max(left, time.Second)
}
