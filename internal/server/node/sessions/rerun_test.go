package sessions

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/executor"
)

// A player is an executor that tells of runs, in place of machines. All else is the executor's.
type player struct{ *executor.Executor }

func (p player) play(ctx context.Context, obs executor.Observer, secrets []string) *turnstone.TurnReport {
	doc, err := document.Parse("a.md", []byte("# A\n\n```bash name=one\necho a\n```\n\n```bash\nexit 1\n```\n"))
	if err != nil {
		panic(err)
	}
	if obs != nil {
		obs.Preparing("starting")
		for _, st := range doc.Steps {
			obs.StepStarted(st)
			obs.StepOutput(st, turnstone.Stdout, []byte{0xff, 0, 'a'})
			obs.StepFinished(st, turnstone.StepReport{Status: turnstone.StepFailed})
		}
	}
	r := &turnstone.TurnReport{ID: "t_1", Result: turnstone.ResultFailed, Kind: turnstone.KindTimeout,
		Millis: 1234, Duration: 1234 * time.Millisecond, Receipt: "text"}
	for _, s := range secrets {
		r.Steps = append(r.Steps, turnstone.StepReport{Name: s})
	}
	return r
}

func (p player) Replay(ctx context.Context, ref string, o executor.ReplayOptions,
	obs executor.Observer) (*turnstone.ReplayReport, error) {
	if from, _, is := turnstone.CutRange(ref); is {
		ref = from
	}
	t, err := p.Show(ctx, ref)
	if err != nil {
		return nil, err
	}
	r := &turnstone.ReplayReport{Of: t.Turn.ID, Number: t.Turn.Number, Turn: p.play(ctx, obs, o.Secrets)}
	if o.Tier != "" { // waits for its end
		<-ctx.Done()
		return r, turnstone.NewError("executor.replay", turnstone.KindCanceled, "the turn",
			context.Cause(ctx))
	}
	return r, nil
}

func (p player) Prepare(ctx context.Context, ref string) error { // builds no template
	_, err := p.Show(ctx, ref)
	return err
}

func (p player) ReplayRange(ctx context.Context, req executor.RangeRequest,
	obs executor.Observer) (*turnstone.RangeReport, error) {
	one, err := p.Replay(ctx, req.Ref, req.Options, obs)
	if err != nil {
		return nil, err
	}
	if req.Each != nil {
		req.Each(one)
		req.Each(one)
	}
	return &turnstone.RangeReport{Turns: []*turnstone.ReplayReport{one, one}, Branch: req.Branch},
		turnstone.Errorf("executor.replay", turnstone.KindExhausted, "the disk", "is full").WithHint("make room")
}

func (p player) Frozen(ctx context.Context, name string, receipt []byte, req executor.Request,
	obs executor.Observer) (*turnstone.FrozenReport, error) {
	doc, _, err := document.ReadReceipt(name, receipt)
	if err != nil {
		return nil, err
	}
	r := &turnstone.FrozenReport{Turn: p.play(ctx, obs, append(req.Env, req.Secrets...))}
	for _, f := range doc.Front.Files {
		b, err := os.ReadFile(filepath.Join(req.Dir, f))
		if err != nil {
			return nil, err
		}
		r.Differences = append(r.Differences, turnstone.FrozenDifference{What: string(b)})
	}
	for _, a := range req.Add {
		b, err := os.ReadFile(a.Path)
		if err != nil {
			return nil, err
		}
		r.Differences = append(r.Differences, turnstone.FrozenDifference{What: string(b), Diff: a.Dest})
	}
	return r, nil
}

func (p player) Bisect(ctx context.Context, req executor.BisectRequest,
	obs executor.Observer) (*turnstone.BisectReport, error) {
	one, err := p.Replay(ctx, req.Ref, req.Options, obs)
	if err != nil {
		return nil, err
	}
	if req.Tell != nil {
		req.Tell("turn 1 is good")
	}
	return &turnstone.BisectReport{Found: true, Replay: one,
		Note: req.Command.Timeout.String() + " " + req.Command.Argv[0]}, nil
}

func (p player) BuildTemplate(_ context.Context, nameOrPath string, req executor.TemplateBuild) (
	*turnstone.Template, error) {
	t := &turnstone.Template{Name: nameOrPath}
	if req.Progress != nil {
		req.Progress("building")
	}
	if req.Events != nil {
		req.Events(turnstone.BuildEvent{Template: nameOrPath, Phase: "downloading", Done: 3})
	}
	if filepath.IsAbs(nameOrPath) { // a spec: what it has
		t.Name = "mine"
		t.Env = map[string]string{}
		for _, n := range []string{"template.toml", "sub/file", "other"} {
			if b, err := os.ReadFile(filepath.Join(nameOrPath, "..", n)); err == nil {
				t.Env[n] = string(b)
			}
		}
		if req.Lock {
			return t, os.WriteFile(filepath.Join(nameOrPath, "..", "template.lock"), []byte("lock"), 0o600)
		}
	}
	return t, nil
}

// reruns are the uses of methods that run machines.
func reruns(t *testing.T) []call1 {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	doc, err := document.Parse("r.md", []byte("---\nfiles: [data/in]\n---\n# A\n"))
	if err != nil {
		t.Fatal(err)
	}
	receipt := doc.Receipt(document.TurnInfo{ID: turnstone.NewTurnID(), Started: time.Now(),
		Result: turnstone.ResultPassed, Template: turnstone.DigestBytes(nil), Image: "base"}, nil)
	write("data/in", "from the document's folder")
	added := write("added", "added")
	spec := write("mine/template.toml", "name = \"mine\"\nbase = \"base\"\n"+
		"[[files]]\npath = \"/x\"\nsource = \"sub/file\"\n")
	write("mine/sub/file", "named by the spec")
	write("mine/other", "not named")
	return []call1{
		{"Replay", func(ctx context.Context, x both, w *teller) (any, error) {
			r, err := x.Replay(ctx, "again@2", executor.ReplayOptions{Secrets: []string{"A=b"},
				Grant: []string{"network"}, Substrate: "auto"}, w)
			if r != nil && (r.Turn.Duration != 1234*time.Millisecond || r.Turn.Kind != turnstone.KindTimeout) {
				t.Errorf("%+v", r.Turn)
			}
			return r, err
		}},
		{"Replay", func(ctx context.Context, x both, _ *teller) (any, error) {
			return x.Replay(ctx, "none@2", executor.ReplayOptions{}, nil)
		}},
		{"Replay", func(ctx context.Context, x both, _ *teller) (any, error) {
			ctx, cancel := context.WithCancel(ctx)
			return x.Replay(ctx, "again@2", executor.ReplayOptions{Tier: "seeded"}, &ender{end: cancel})
		}},
		{"ReplayRange", func(ctx context.Context, x both, w *teller) (any, error) {
			return x.ReplayRange(ctx, executor.RangeRequest{Ref: "again@2", OnHead: true, Branch: "b",
				Each: func(r *turnstone.ReplayReport) { w.note("%s %s", r.Turn.Kind, r.Turn.Duration) }}, w)
		}},
		{"Frozen", func(ctx context.Context, x both, w *teller) (any, error) {
			return x.Frozen(ctx, "r.md", receipt, executor.Request{Dir: dir, Env: []string{"A=b"},
				Secrets: []string{"C=d"}, Add: []document.Transfer{{Path: added, Dest: "there"}}}, w)
		}},
		{"Frozen", func(ctx context.Context, x both, w *teller) (any, error) {
			return x.Frozen(ctx, "r.md", []byte("# no receipt"), executor.Request{}, w)
		}},
		{"Bisect", func(ctx context.Context, x both, w *teller) (any, error) {
			return x.Bisect(ctx, executor.BisectRequest{Ref: "again@2", Tell: func(s string) { w.note("%s", s) },
				Command: executor.CommandRequest{Argv: []string{"test"}, Timeout: time.Second}}, w)
		}},
		{"BuildTemplate", func(ctx context.Context, x both, w *teller) (any, error) {
			return x.BuildTemplate(ctx, "base", executor.TemplateBuild{Progress: w.Preparing,
				Events: func(e turnstone.BuildEvent) { w.note("%+v", e) }})
		}},
		{"BuildTemplate", func(ctx context.Context, x both, w *teller) (any, error) {
			b, err := x.BuildTemplate(ctx, spec, executor.TemplateBuild{Lock: true})
			if b != nil {
				delete(b.Env, "other") // it is not sent
			}
			if lock, err := os.ReadFile(filepath.Join(filepath.Dir(spec), "template.lock")); err != nil ||
				string(lock) != "lock" {
				t.Errorf("the lock: %q %v", lock, err)
			}
			_ = os.Remove(filepath.Join(filepath.Dir(spec), "template.lock"))
			return b, err
		}},
	}
}

// An ender ends its turn at the first step.
type ender struct {
	teller
	end context.CancelFunc
}

func (e *ender) StepStarted(*document.Step) { e.end() }
