// Package replay runs a turn again, and compares the results.
package replay

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/turn"
	"turnstone.dev/turnstone/internal/turn/netrecord"
)

// maxDifferences bounds the files that a replay lists.
const maxDifferences = 1000

// Options are the options of a replay. All other settings come from the stored turn.
type Options struct {
	Secrets   []string // NAME=VALUE: secrets are not stored and must be given again
	Substrate string   // a name of driver.Names(); empty: the substrate of the first run
	Grant     []string // as in Request: a record may be imported, so it grants nothing itself
}

// Run runs the turn that ref names again, with the runner r, in a clean sandbox on the state of its
// parent, with the same document, files and environment. The new turn is in no session.
func Run(ctx context.Context, r *turn.Runner, cs *repo.ContextStore, ref string, opts Options,
	obs turn.Observer) (*turnstone.ReplayReport, error) {
	old, err := cs.DB.Resolve(ctx, ref)
	if err != nil {
		return nil, err
	}
	rec, err := cs.Record(ctx, old)
	if err != nil {
		return nil, err
	}
	req, err := again(ctx, cs, old, rec, opts.Secrets)
	if err != nil {
		return nil, err
	}
	req.Grant = opts.Grant
	if opts.Substrate != "" {
		req.Substrate = opts.Substrate
	}
	of := &turn.Repeat{Inputs: rec.Inputs, Parents: old.Parents, Session: old.Session}
	now, err := r.Repeat(ctx, *req, of, obs)
	if now == nil {
		return nil, err
	}
	rep := &turnstone.ReplayReport{Of: rec.ID, Number: rec.Number, Home: rec.Home, Turn: now,
		Steps: []turnstone.StepDifference{}, Changes: []turnstone.FileDifference{}, Env: []string{}}
	if err != nil {
		return rep, err
	}
	return rep, compare(ctx, cs, rec, rep)
}

// again returns the request of the turn old, whose record is rec. The parent comes from the
// database, because a record may be imported.
func again(ctx context.Context, cs *repo.ContextStore, old turnstone.Turn,
	rec *turnstone.TurnRecord,
	secrets []string) (*plan.Request, error) {
	fail := func(kind turnstone.Kind, hint, format string, args ...any) error {
		return turnstone.Errorf("executor.replay", kind, fmt.Sprintf("turn %d", rec.Number),
			format, args...).WithHint(hint)
	}
	if rec.Kind != turnstone.TurnKindRun {
		return nil, fail(turnstone.KindInvalid, "", "it is a %s, and ran nothing", rec.Kind)
	}
	src, err := cs.Read(ctx, rec.Document, document.MaxFile)
	if err != nil {
		return nil, err
	}
	doc, err := document.Parse(fmt.Sprintf("turn-%d.md", rec.Number), src)
	if err != nil {
		return nil, err
	}
	// The values that the record has are requested again as the document's, because the caller did
	// not choose them.
	front := &doc.Front
	front.Files, front.Session, front.Branch, front.Home = nil, "", "", ""
	front.Lifetime, front.Snapshot = "", ""
	front.Image, front.Timeout = rec.Image, rec.Timeout
	front.NetworkRules = netrecord.Rules(rec.Network, rec)
	front.CPUs, front.Memory, front.Disk = rec.Shape.CPUs, rec.Shape.Memory, rec.Shape.Disk
	front.Network = &rec.Shape.Network
	req := &plan.Request{Document: doc, Env: rec.Env, Secrets: secrets, Substrate: rec.Substrate}
	if s := netrecord.Spec(rec.Network); len(s.Headers) > 0 && rec.Network.Index == nil {
		return nil, fail(turnstone.KindInvalid,
			"with network: record a turn can be replayed without them",
			"it was given the secret header %s, which was not kept", s.Headers[0].Label())
	}
	for _, in := range rec.Inputs {
		if in.Tar.Digest == "" {
			return nil, fail(turnstone.KindInvalid, "",
				"what was put to %s was not kept: it was too large, or held a secret", in.Dest)
		}
	}
	var given []string
	for _, kv := range secrets {
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

// compare returns the differences between rec and the turn of rep.
func compare(ctx context.Context, cs *repo.ContextStore, rec *turnstone.TurnRecord,
	rep *turnstone.ReplayReport) error {
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
	for i, a := range rec.Steps {
		if i >= len(now.Steps) {
			break
		}
		if what := differences(a, now.Steps[i]); len(what) > 0 {
			rep.Steps = append(rep.Steps, turnstone.StepDifference{Name: a.Name, What: what})
		}
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
	rep.Same = len(rep.Steps)+len(rep.Changes)+len(rep.Env) == 0 && !rep.Cwd
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
	if code := func(c *int) string {
		if c == nil {
			return "none"
		}
		return fmt.Sprint(*c)
	}; code(a.ExitCode) != code(b.ExitCode) {
		what = append(what, fmt.Sprintf("exit code %s before, %s now", code(a.ExitCode),
			code(b.ExitCode)))
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
