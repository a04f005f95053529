package cli

import (
	"context"
	"errors"
	"io"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/remote/hosts"
	"turnstone.dev/turnstone/internal/remote/runner"
	"turnstone.dev/turnstone/internal/terminal"
)

// The parts of an Executor. Methods are those of executor.Executor with the same name.
type (
	// A Runner runs turns.
	Runner interface {
		Run(ctx context.Context, req executor.Request, obs executor.Observer) (
			*turnstone.TurnReport, error)
		Times(ctx context.Context, req executor.Request, n int, obs executor.Observer) (
			*turnstone.TurnReport, error)
		ResumeTurn(ctx context.Context, req executor.ResumeTurnRequest, obs executor.Observer) (
			*turnstone.TurnReport, error)
	}
	// A Rerunner runs stored turns again.
	Rerunner interface {
		Replay(ctx context.Context, ref string, opts executor.ReplayOptions,
			obs executor.Observer) (*turnstone.ReplayReport, error)
		ReplayRange(ctx context.Context, req executor.RangeRequest, obs executor.Observer) (
			*turnstone.RangeReport, error)
		Frozen(ctx context.Context, name string, receipt []byte, req executor.Request,
			obs executor.Observer) (*turnstone.FrozenReport, error)
		Bisect(ctx context.Context, req executor.BisectRequest, obs executor.Observer) (
			*turnstone.BisectReport, error)
	}
	// A Names resolves short names of sessions and turns.
	Names interface {
		Expand(ctx context.Context, ref, named string) (string, error)
		CurrentSession(ctx context.Context, named string) (turnstone.Session, error)
		NoteUse(ctx context.Context, ref string)
	}
	// A Reader reads stored turns.
	Reader interface {
		Sessions(ctx context.Context) ([]turnstone.SessionInfo, error)
		Session(ctx context.Context, nameOrID string) (*turnstone.Graph, error)
		Log(ctx context.Context, ref string, limit int) (*turnstone.Graph, error)
		Heads(ctx context.Context, nameOrID string) ([]turnstone.LoggedHead, error)
		Show(ctx context.Context, ref string) (*turnstone.TurnInfo, error)
		Receipt(ctx context.Context, ref string) ([]byte, error)
		Trace(ctx context.Context, ref string, each func(turnstone.TraceLine) error) error
		Diff(ctx context.Context, req turnstone.DiffRequest) (*turnstone.StateDiff, error)
		Compare(ctx context.Context, refs []string) (*turnstone.CompareReport, error)
	}
	// A FileReader reads files of the states of turns.
	FileReader interface {
		ListFiles(ctx context.Context, ref, name string, recursive bool,
			each func(turnstone.FileInfo) error) error
		OpenFile(ctx context.Context, ref, name string) (io.ReadCloser, error)
		CopyOut(ctx context.Context, ref, name, dest string, skipped func(name, why string)) error
	}
	// A Prover verifies and signs turns.
	Prover interface {
		Verify(ctx context.Context, req turnstone.VerifyRequest) (*turnstone.VerifyReport, error)
		VerifyReceipt(ctx context.Context, name string, file []byte, trust []string) (
			*turnstone.VerifyReport, error)
		SignTurn(ctx context.Context, ref string) (*turnstone.VerifiedTurn, error)
	}
	// A Changer changes sessions.
	Changer interface {
		Fork(ctx context.Context, ref, name string) (turnstone.Branch, error)
		ForkLive(ctx context.Context, ref, name string) (turnstone.Branch, error)
		Tag(ctx context.Context, ref, name string) (turnstone.Tag, error)
		Untag(ctx context.Context, nameOrID, tag string) error
		Rename(ctx context.Context, nameOrID, name string) (turnstone.Session, error)
		RemoveSession(ctx context.Context, nameOrID string) (turnstone.Session, error)
		RemoveBranch(ctx context.Context, nameOrID, branch string) error
		Merge(ctx context.Context, req executor.MergeRequest) (*turnstone.MergeReport, error)
		Export(ctx context.Context, req executor.ExportRequest, w io.Writer) (
			*turnstone.ExportReport, error)
		Import(ctx context.Context, req executor.ImportRequest, r io.Reader) (
			*turnstone.ImportReport, error)
	}
	// A Sealer seals sessions, and destroys the keys of sealed ones.
	Sealer interface {
		SealSessions(ctx context.Context, namesOrIDs []string) (*turnstone.SealReport, error)
		ShredSession(ctx context.Context, nameOrID string) (turnstone.Session, error)
	}
	// A Keeper maintains the store, homes and templates.
	Keeper interface {
		GC(ctx context.Context, req turnstone.GCRequest) (*turnstone.GCReport, error)
		Fsck(ctx context.Context) (*turnstone.FsckReport, error)
		Usage(ctx context.Context) (*turnstone.Usage, error)
		Homes(ctx context.Context) ([]turnstone.HomeInfo, error)
		HasHome(ctx context.Context, name string) error
		RemoveHome(ctx context.Context, name string) error
		BuildTemplate(ctx context.Context, nameOrPath string, req executor.TemplateBuild) (
			*turnstone.Template, error)
		RemoveTemplate(ctx context.Context, req executor.TemplateRemoval) (
			[]turnstone.Session, error)
		PruneTemplates(ctx context.Context, req executor.TemplatePrune) (
			*turnstone.TemplatePruned, error)
	}
)

// An Executor is where a command works: a state directory of this machine (executor.Executor), or a
// host.
type Executor interface {
	Runner
	Rerunner
	Names
	Reader
	FileReader
	Prover
	Changer
	Sealer
	Keeper
	io.Closer
}

// Open returns the executor that commands use: of this machine, or of the host that App.Server
// selects.
func (a *App) Open(ctx context.Context) (Executor, error) {
	s, err := a.Server(ctx)
	if err != nil {
		return nil, err
	}
	if s != nil {
		o := runner.Options{Substrate: a.Env.Substrate}
		var failed [3]error
		o.Last, failed[0] = a.hosts().LastSession(s.Address())
		o.Dir, failed[1] = a.Locate()
		var w *hosts.Witness
		if w, failed[2] = a.hosts().Witness(s.Address().String()); w != nil {
			o.Witness = w
		}
		if err := errors.Join(failed[:]...); err != nil {
			return nil, errors.Join(err, s.Close())
		}
		return runner.Open(s, o), nil
	}
	return a.OpenLocal(ctx)
}

// OpenLocal returns an executor of this machine, whose holder is this program, by a path that an
// update of its file does not change.
func (a *App) OpenLocal(ctx context.Context) (*executor.Executor, error) {
	o := a.Env.Options
	o.Holder, o.Passphrase = holder, a.Passphrase
	return executor.Open(ctx, o)
}

// OnlyHere rejects a host that the user selected, for an operation that works on this machine alone.
// The server of this machine (auto) is no such host: the operation then works beside it.
func (a *App) OnlyHere(op turnstone.Op) error {
	host, err := a.CurrentHost()
	if err != nil || host == hosts.Local || host == hosts.Auto {
		return err
	}
	return turnstone.Errorf(op, turnstone.KindUnavailable, "host "+host,
		"does not have this command: it works on this machine alone").
		WithHint("select this machine with TURN_HOST=local, or turn host use local")
}

// WithLocal is Do with an executor of this machine, for commands that no host has: see OnlyHere.
func (a *App) WithLocal(op turnstone.Op, f func(ctx context.Context, x *executor.Executor) error) error {
	return a.Do(func(ctx context.Context) error {
		if err := a.OnlyHere(op); err != nil {
			return err
		}
		x, err := a.OpenLocal(ctx)
		if err != nil {
			return Exit(ExitAborted, err)
		}
		return errors.Join(f(ctx, x), x.Close())
	})
}

// SayUnseen tells the operator of a server which sessions and homes a list leaves out, and where they
// are listed.
func (a *App) SayUnseen(ctx context.Context, x Executor) {
	h, is := x.(*runner.Host)
	if !is {
		return
	}
	if what, hint := h.Unseen(ctx); what != "" {
		a.Say(what)
		terminal.Println(a.Stderr, "hint: "+hint)
	}
}
