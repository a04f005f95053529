package replay

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"znkr.io/diff/textdiff"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/proof"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/turn"
)

// A FrozenRequest is a receipt to run again.
type FrozenRequest struct {
	Name   string // for messages
	Source []byte
	// Request has the caller's settings. Its Document is that of the receipt.
	Request plan.Request
}

// Frozen runs the document of a receipt again, on the state that the receipt names, and compares
// the new receipt with the old one. The new turn is in no session. Without a report nothing was
// started; an error of kind Invalid or NotFound then means that the receipt or the request is wrong.
func Frozen(ctx context.Context, r *turn.Runner, cs *repo.ContextStore, f FrozenRequest,
	obs turn.Observer) (*turnstone.FrozenReport, error) {
	// A receipt needs no signature, but nobody may have changed a signed one.
	if _, err := proof.OpenReceipt(ctx, f.Name, f.Source); err != nil &&
		turnstone.KindOf(err) != turnstone.KindNotFound {
		return nil, turnstone.NewError("executor.frozen", turnstone.KindInvalid, f.Name,
			repo.CauseOf(err)).WithHint(turnstone.HintOf(err) +
			"; or remove the evidence to run the text as it is")
	}
	doc, was, err := document.ReadReceipt(f.Name, f.Source)
	if err != nil {
		return nil, err
	}
	of, err := f.start(ctx, cs, doc, &was.Info)
	if err != nil {
		return nil, err
	}
	now, err := r.Repeat(ctx, f.Request, of, obs)
	if now == nil {
		return nil, err
	}
	rep := &turnstone.FrozenReport{Of: was.Info.ID, Turn: now, Home: was.Info.Home,
		Differences: []turnstone.FrozenDifference{}}
	if err != nil {
		return rep, err
	}
	_, is, err := document.ReadReceipt(f.Name, []byte(now.Receipt))
	if err != nil {
		return rep, turnstone.NewError("executor.frozen", turnstone.KindInternal, f.Name, err)
	}
	compareClaims(doc, was, is, rep)
	return rep, nil
}

// start completes the request: the receipt says on which image and state its turn ran. The receipt
// is a document, which asks: only the caller grants the state of a session.
func (f *FrozenRequest) start(ctx context.Context, cs *repo.ContextStore, doc *document.Document,
	info *document.TurnInfo) (*turn.Repeat, error) {
	fail := func(kind turnstone.Kind, hint, format string, args ...any) error {
		return turnstone.Errorf("executor.frozen", kind, f.Name, format, args...).WithHint(hint)
	}
	front := &doc.Front
	front.Session, front.Branch, front.Home = "", "", ""
	front.Lifetime, front.Snapshot, front.Checkpoint = "", "", ""
	front.Image = cmp.Or(info.Image, front.Image)
	// The receipt names the session and the image, and the manifest's are of other turns.
	def := f.Request.Defaults
	def.Front.Session, def.Front.Branch, def.Branches = "", "", nil
	doc = doc.With(def, "")
	f.Request.Document, f.Request.Defaults, front = doc, def, &doc.Front
	f.pin(info.Determinism)
	for _, name := range info.Secrets {
		if !slices.ContainsFunc(f.Request.Secrets,
			func(kv string) bool { return envName(kv) == name }) {
			return nil, fail(turnstone.KindInvalid, "give it again with --secret "+name,
				"its turn was given the secret %.100q", name)
		}
	}
	of := &turn.Repeat{Fresh: true}
	if len(info.Parents) == 0 {
		f.Request.Session = ""
		return of, nil
	}
	if len(info.Parents) > 1 {
		return nil, fail(turnstone.KindInvalid, "", "it is the receipt of a merge, which ran nothing")
	}
	parent, err := cs.DB.Turn(ctx, info.Parents[0])
	if turnstone.KindOf(err) == turnstone.KindNotFound {
		return nil, fail(turnstone.KindNotFound,
			"import the session with turn session import, or write a receipt with turn run "+
				"without --session, which every host can run again",
			"its turn started from turn %.40q of the session %.100q, which is not here",
			info.Parents[0], info.Session)
	}
	if err != nil {
		return nil, err
	}
	g, err := cs.DB.Graph(ctx, parent.Session)
	if err != nil {
		return nil, err
	}
	label := g.Session.Label()
	if s := f.Request.Session; s != "" && s != label && s != string(g.Session.ID) {
		return nil, fail(turnstone.KindInvalid, "use --session "+label,
			"its turn started from turn %d of the session %s, not of %.100q", parent.Number, label, s)
	}
	front.Session = label
	of.Parents, of.Session = info.Parents, parent.Session
	return of, nil
}

// pin makes the request run with d, which the receipt says, as far as the caller's flags do not say
// otherwise; nil: the turn was not deterministic.
func (f *FrozenRequest) pin(d *turnstone.Determinism) {
	req := &f.Request
	if req.Deterministic != nil || d == nil && (req.Tier != "" || req.Seed != nil ||
		!req.Clock.IsZero()) {
		return
	}
	was := *req
	pinned(req, d)
	req.Tier, req.Seed = cmp.Or(was.Tier, req.Tier), cmp.Or(was.Seed, req.Seed)
	if !was.Clock.IsZero() {
		req.Clock = was.Clock
	}
}

// compareClaims adds the differences of two receipts of doc to rep.
func compareClaims(doc *document.Document, was, is *document.Claims, rep *turnstone.FrozenReport) {
	var step *document.Step
	add := func(what, old, now string) {
		if old == now {
			return
		}
		d := turnstone.FrozenDifference{What: what, Diff: textdiff.Unified(lines(old), lines(now))}
		if step != nil {
			d.Step, d.Line = step.Name, step.Line
		}
		rep.Differences = append(rep.Differences, d)
	}
	if was.Info.Template != "" && was.Info.Template != is.Info.Template {
		rep.Template = fmt.Sprintf("%s before, %s now", was.Info.Template, is.Info.Template)
	}
	add("result", string(was.Info.Result), string(is.Info.Result))
	add("fs", string(was.Info.FSHash), string(is.Info.FSHash))
	for i := range doc.Steps {
		step = doc.Steps[i]
		a, b := was.Steps[i], is.Steps[i]
		if a.Source != b.Source {
			add("script", "the receipt has "+cmp.Or(a.Source.Short(), "no result"),
				"the step is "+b.Source.Short())
		}
		add("status", string(a.Status), string(b.Status))
		add("exit code", exitCode(a.ExitCode), exitCode(b.ExitCode))
		for _, o := range []struct {
			what string
			a, b document.OutputClaim
		}{{"stdout", a.Stdout, b.Stdout}, {"stderr", a.Stderr, b.Stderr}} {
			if !o.a.Same(o.b) {
				add(o.what, shown(o.a), shown(o.b))
			}
		}
	}
	rep.Same = len(rep.Differences) == 0
}

// shown returns an output as a text that differs if the outputs differ.
func shown(o document.OutputClaim) string {
	if o.Size == "" {
		return o.Text
	}
	return o.Text + "\n[" + o.Size + ", " + string(o.Digest) + "]"
}

// lines ends a text with a line feed.
func lines(s string) string {
	if s == "" {
		return ""
	}
	return strings.TrimSuffix(s, "\n") + "\n"
}
