// Package replay runs a turn again, and compares the results.
package replay

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/repo"
	results "turnstone.dev/turnstone/internal/repo/compare"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/turn"
	"turnstone.dev/turnstone/internal/turn/netrecord"
)

// maxDifferences bounds the files that a replay lists.
const maxDifferences = 1000

// Options are the options of a replay. All other settings come from the stored turn.
type Options struct {
	Secrets   []string       // NAME=VALUE: secrets are not stored and must be given again
	Substrate string         // a name of driver.Names(); empty: the substrate of the first run
	Tier      turnstone.Tier // of a deterministic replay; empty: as the first run
	Grant     []string       // as in Request: a record may be imported, so it grants nothing itself
}

// Run runs the turn that ref names again, with the runner r, in a clean sandbox on the state of its
// parent, with the same document, files and environment. The new turn is in no session.
func Run(ctx context.Context, r *turn.Runner, cs *repo.ContextStore, ref string, opts Options,
	obs turn.Observer) (*turnstone.ReplayReport, error) {
	cs, old, err := cs.Resolve(ctx, ref)
	if err != nil {
		return nil, err
	}
	rec, err := cs.Record(ctx, old)
	if err != nil {
		return nil, err
	}
	req, err := replayed(ctx, cs, old, rec, opts)
	if err != nil {
		return nil, err
	}
	p := repetition{old: old, rec: rec, req: req}
	return p.run(ctx, r, cs, turn.Repeat{Inputs: rec.Inputs, Parents: old.Parents,
		Session: old.Session, Of: old.ID}, obs)
}

// replayed is again for a turn that begins at its beginning.
func replayed(ctx context.Context, cs *repo.ContextStore, old turnstone.Turn,
	rec *turnstone.TurnRecord, opts Options) (*plan.Request, error) {
	req, err := again(ctx, cs, old, rec, opts)
	if err != nil {
		return nil, err
	}
	fail := func(format string, args ...any) *turnstone.Error {
		return turnstone.Errorf("executor.replay", turnstone.KindInvalid,
			fmt.Sprintf("turn %d", rec.Number), format, args...)
	}
	if s := netrecord.Spec(rec.Network); len(s.Headers) > 0 && rec.Network.Index == nil {
		return nil, fail("it was given the secret header %s, which was not kept",
			s.Headers[0].Label()).
			WithHint("with network: record a turn can be replayed without them")
	}
	for _, in := range rec.Inputs {
		if in.Tar.Digest == "" {
			return nil, fail("the files added to %s were not kept: they were too large, or held a "+
				"secret", in.Dest)
		}
	}
	return req, nil
}

// again returns the request of the turn old, whose record is rec. The parent comes from the
// database, because a record may be imported.
func again(ctx context.Context, cs *repo.ContextStore, old turnstone.Turn,
	rec *turnstone.TurnRecord, opts Options) (*plan.Request, error) {
	fail := func(kind turnstone.Kind, hint, format string, args ...any) error {
		return turnstone.Errorf("executor.replay", kind, fmt.Sprintf("turn %d", rec.Number),
			format, args...).WithHint(hint)
	}
	if rec.Kind != turnstone.TurnKindRun {
		return nil, fail(turnstone.KindInvalid, "", "it is a %s, and ran nothing", rec.Kind)
	}
	doc, err := Document(ctx, cs, rec)
	if err != nil {
		return nil, err
	}
	// The values that the record has are requested again as the document's, because the caller did
	// not choose them.
	front := &doc.Front
	front.Files, front.Session, front.Branch, front.Home = nil, "", "", ""
	front.Lifetime, front.Snapshot, front.Checkpoint = "", "", ""
	front.Image, front.Timeout = rec.Image, rec.Timeout
	front.NetworkRules = netrecord.Rules(rec.Network, rec)
	front.CPUs, front.Memory, front.Disk = rec.Shape.CPUs, rec.Shape.Memory, rec.Shape.Disk
	front.Network = &rec.Shape.Network
	req := &plan.Request{Document: doc, Env: rec.Env, Secrets: opts.Secrets, Grant: opts.Grant,
		Substrate: cmp.Or(opts.Substrate, rec.Substrate)}
	if pinned(req, rec.Determinism); opts.Tier != "" && opts.Tier != req.Tier {
		on := true
		req.Deterministic, req.Tier, req.Substrate = &on, opts.Tier, opts.Substrate
		unused, err := networkUnused(ctx, cs, rec)
		if err != nil {
			return nil, err
		}
		if unused { // otherwise no tier accepts the turn
			off := false
			front.Network, front.NetworkRules = &off, nil
		}
	}
	var given []string
	for _, kv := range opts.Secrets {
		given = append(given, envName(kv))
	}
	for _, name := range rec.Secrets {
		if !slices.Contains(given, name) {
			return nil, fail(turnstone.KindInvalid, "give it again with --secret "+name,
				"it was given the secret %s, which was not kept", name)
		}
	}
	return req, nil
}

// networkUnused reports whether a turn did nothing with its network, as its trace says.
func networkUnused(ctx context.Context, cs *repo.ContextStore, rec *turnstone.TurnRecord) (bool,
	error) {
	if rec.Trace == nil {
		return false, nil
	}
	unused := true
	err := cs.ReadTrace(ctx, rec, func(l turnstone.TraceLine) error {
		if l.Step != nil && (l.Step.Network != nil || len(l.Step.Connections) > 0) {
			unused = false
		}
		return nil
	})
	return unused, err
}

// Document returns the document of a recorded turn.
func Document(ctx context.Context, cs *repo.ContextStore, rec *turnstone.TurnRecord) (
	*document.Document, error) {
	src, err := cs.Read(ctx, rec.Document, document.MaxFile)
	if err != nil {
		return nil, err
	}
	return document.Parse(fmt.Sprintf("turn-%d.md", rec.Number), src)
}

// Again runs the turn old again, on the state of its parent, with the changes that change makes to
// the request. hold keeps the new turn, which is in no session.
func Again(ctx context.Context, r *turn.Runner, cs *repo.ContextStore, old turnstone.Turn,
	opts Options, hold *repo.Hold, change func(*plan.Request), obs turn.Observer) (
	*turnstone.TurnReport, error) {
	rec, err := cs.Record(ctx, old)
	if err != nil {
		return nil, err
	}
	req, err := replayed(ctx, cs, old, rec, opts)
	if err != nil {
		return nil, err
	}
	change(req)
	return r.Repeat(ctx, *req, &turn.Repeat{Inputs: rec.Inputs, Parents: old.Parents,
		Session: old.Session, Of: old.ID, Hold: hold}, obs)
}

// Compare adds the differences between the record of a turn and the turn of rep to rep.
func Compare(ctx context.Context, cs *repo.ContextStore, rec *turnstone.TurnRecord,
	rep *turnstone.ReplayReport) error {
	return compare(ctx, cs, rec, rep, true)
}

// pinned makes req run with d, which the document did not choose; nil: not deterministic.
func pinned(req *plan.Request, d *turnstone.Determinism) {
	on := d != nil
	if req.Deterministic = &on; on {
		req.Tier, req.Seed, req.Clock = d.Tier, &d.Seed, d.Clock
	}
}

// compare adds the differences between rec and the turn of rep to rep: of the results, and of the
// states if states is set.
func compare(ctx context.Context, cs *repo.ContextStore, rec *turnstone.TurnRecord,
	rep *turnstone.ReplayReport, states bool) error {
	now, err := cs.ReadRecord(ctx, rep.Turn.Record)
	if err != nil {
		return err
	}
	if rec.Template != "" && now.Template != "" && rec.Template != now.Template {
		rep.Template = fmt.Sprintf("%s before, %s now", rec.Template, now.Template)
	}
	if rec.Result != now.Result {
		rep.Steps = append(rep.Steps, turnstone.StepDifference{Name: "turn",
			What: []string{fmt.Sprintf("result: %s before, %s now", rec.Result, now.Result)}})
	}
	rep.Count = len(rec.Steps)
	for i, a := range rec.Steps {
		if i >= len(now.Steps) {
			break
		}
		b := now.Steps[i]
		what := differences(a, b)
		if len(what) == 0 {
			continue
		}
		d := turnstone.StepDifference{Name: a.Name, Index: i + 1, What: what}
		if d.Stdout, err = results.Output(ctx, cs, a.Stdout, b.Stdout); err != nil {
			return err
		}
		if d.Stderr, err = results.Output(ctx, cs, a.Stderr, b.Stderr); err != nil {
			return err
		}
		rep.Steps = append(rep.Steps, d)
	}
	if was := rec.HomeUse; rec.Home != "" {
		is := now.HomeUse
		rep.HomeMissing = is == nil
		rep.HomeDiffers = is != nil && was != nil && (was.Ended == nil) != (is.Ended == nil) ||
			is != nil && is.Ended != nil && was != nil && was.Ended != nil &&
				was.Ended.Hash != is.Ended.Hash
	}
	if !states {
		rep.Same = len(rep.Steps) == 0
		return nil
	}
	if rec.State == "" || now.State == "" {
		rep.Same = len(rep.Steps) == 0 && rec.State == now.State
		return nil
	}
	before, err := cs.State(ctx, rec.State)
	if err != nil {
		return err
	}
	after, err := cs.State(ctx, now.State)
	if err != nil {
		return err
	}
	rep.FSHash = before.Tree.Hash
	if err := compareStates(ctx, cs, before, after, rep); err != nil {
		return err
	}
	rep.Same = len(rep.Steps)+len(rep.Changes)+len(rep.Env) == 0 && !rep.Cwd && !rep.HomeDiffers
	return nil
}

func compareStates(ctx context.Context, cs *repo.ContextStore, before, after *turnstone.TurnState,
	rep *turnstone.ReplayReport) error {
	rep.Cwd = before.Cwd != after.Cwd
	rep.Env = append(rep.Env, envDifferences(before.Env, after.Env)...)
	if before.Tree.Hash == after.Tree.Hash {
		return nil // timestamps may differ
	}
	for c, err := range tree.Diff(ctx, cs.Store, before.Tree, after.Tree) {
		if err != nil {
			return err
		}
		d := turnstone.FileDifference{Path: c.Path, What: "differs"}
		switch {
		case c.Old == nil:
			d.What = "only now"
		case c.New == nil:
			d.What = "only before"
		case sameButTime(c.Old, c.New) && slices.Equal(c.OldLinks, c.NewLinks):
			continue // only the timestamp differs
		}
		if len(rep.Changes) == maxDifferences {
			rep.More++
			continue
		}
		rep.Changes = append(rep.Changes, d)
	}
	return nil
}

// sameButTime compares two entries like the FS hash, without their children.
func sameButTime(a, b *tree.Entry) bool {
	return a.Type == b.Type && a.Mode == b.Mode && a.UID == b.UID && a.GID == b.GID &&
		a.Content.Digest == b.Content.Digest &&
		a.Target == b.Target && a.Major == b.Major && a.Minor == b.Minor &&
		slices.EqualFunc(a.Xattrs, b.Xattrs,
			func(x, y tree.Xattr) bool { return x.Name == y.Name && bytes.Equal(x.Value, y.Value) })
}

func differences(a, b turnstone.RecordStep) []string {
	var what []string
	if a.Status != b.Status {
		what = append(what, fmt.Sprintf("%s before, %s now", a.Status, b.Status))
	}
	if was, is := exitCode(a.ExitCode), exitCode(b.ExitCode); was != is {
		what = append(what, fmt.Sprintf("exit code %s before, %s now", was, is))
	}
	digest := func(c *turnstone.Content) turnstone.Digest {
		if c == nil {
			return ""
		}
		return c.Digest
	}
	if digest(a.Stdout) != digest(b.Stdout) {
		what = append(what, "standard output")
	}
	if digest(a.Stderr) != digest(b.Stderr) {
		what = append(what, "standard error")
	}
	return what
}

func exitCode(c *int) string {
	if c == nil {
		return "none"
	}
	return fmt.Sprint(*c)
}

// envDifferences returns the names of the variables that differ.
func envDifferences(a, b []string) []string {
	values := func(env []string) map[string]string {
		m := map[string]string{}
		for _, kv := range env {
			m[envName(kv)] = kv
		}
		return m
	}
	before, after := values(a), values(b)
	var names []string
	for name, kv := range before {
		if after[name] != kv {
			names = append(names, name)
		}
	}
	for name := range after {
		if _, ok := before[name]; !ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func envName(kv string) string {
	for i := range len(kv) {
		if kv[i] == '=' {
			return kv[:i]
		}
	}
	return kv
}
