// Package runner runs turns at a server, with the requests of package executor.
package runner

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/remote"
	"turnstone.dev/turnstone/wire"
)

// cancelTime bounds the call that ends a turn whose channel is gone.
const cancelTime = 5 * time.Second

// A Runner runs turns at a server, with the requests of executor.Executor. It is safe for concurrent
// use.
type Runner struct {
	Server *remote.Server
	// Copy copies files of a turn's state to this machine, for --get: see Executor.CopyOut.
	Copy func(ctx context.Context, ref, name, dest string, skipped func(name, why string)) error
	// Hint changes the hint of a turn's report, which may be for the node's operator; nil: it stays.
	Hint func(hint string) string
}

// Run is executor.Executor.Run at the server. The files of the document and of req.Add are of this
// machine, and those of req.Get are copied to it. When ctx ends, the turn is canceled.
func (r *Runner) Run(ctx context.Context, req executor.Request, obs executor.Observer) (
	*turnstone.TurnReport, error) {
	return r.run(ctx, req, 0, obs)
}

// Times is executor.Executor.Times at the server.
func (r *Runner) Times(ctx context.Context, req executor.Request, n int, obs executor.Observer) (
	*turnstone.TurnReport, error) {
	return r.run(ctx, req, n, obs)
}

func (r *Runner) run(ctx context.Context, req executor.Request, times int, obs executor.Observer) (
	*turnstone.TurnReport, error) {
	req.Document = req.Document.With(req.Defaults, req.Session)
	settings, err := turnSettings(&req)
	if err != nil {
		return nil, err
	}
	settings.Times = int64(times)
	add, err := localFiles(req)
	if err != nil {
		return nil, err
	}
	front := req.Document.Front
	started, err := r.Server.StartTurn(ctx, remote.TurnStart{Session: req.Session,
		Template: either(req.Image, front.Image), Timeout: req.Timeout,
		CPUs:   cmp.Or(req.CPUs, front.CPUs),
		Memory: cmp.Or(req.Memory, front.Memory), Disk: cmp.Or(req.Disk, front.Disk)})
	if err != nil {
		return nil, err
	}
	report, err := r.follow(ctx, started, remote.TurnRequest{Ticket: started.Ticket,
		Document: req.Document, Settings: settings, Add: add}, obs)
	if report != nil && len(req.Get) > 0 && ctx.Err() == nil {
		r.get(ctx, report, req.Get, obs)
	}
	return report, err
}

// ResumeTurn is executor.Executor.ResumeTurn at the server, for the turn that info describes and
// whose document is doc.
func (r *Runner) ResumeTurn(ctx context.Context, req executor.ResumeTurnRequest,
	info *turnstone.TurnInfo, doc *document.Document, obs executor.Observer) (
	*turnstone.TurnReport, error) {
	for flag, set := range map[string]bool{"--grant": len(req.Grant) > 0,
		"--network and its rules": req.Network != nil || req.NetworkRules != nil} {
		if set {
			return nil, refuse(flag, "the turn requests what it requested at its beginning",
				"leave out "+flag)
		}
	}
	session := info.Session.Label()
	start := remote.TurnStart{Session: session}
	if c := info.Checkpoint; c != nil {
		start.Timeout, start.CPUs = time.Duration(c.Timeout), c.Machine.CPUs
		start.Memory, start.Disk = c.Machine.Memory, c.Machine.Disk
	}
	started, err := r.Server.StartTurn(ctx, start)
	if err != nil {
		return nil, err
	}
	return r.follow(ctx, started, remote.TurnRequest{Ticket: started.Ticket, Document: doc,
		Settings: wire.TurnSettings{Session: session, Resume: string(info.Turn.ID),
			Secrets: req.Secrets, SecretHeaders: req.SecretHeaders, Commands: req.Commands}}, obs)
}

// follow runs the started turn, and cancels it if its channel is gone when ctx ends.
func (r *Runner) follow(ctx context.Context, started *remote.StartedTurn, q remote.TurnRequest,
	obs executor.Observer) (*turnstone.TurnReport, error) {
	turns := &remote.Turns{Dial: started.Dial, Greet: r.Server.Unlock, Node: started.At}
	if obs != nil {
		turns.Tell = obs.Preparing
	}
	report, err := turns.Run(ctx, q, obs)
	if report != nil && r.Hint != nil {
		report.Hint = r.Hint(report.Hint)
	}
	if report == nil && ctx.Err() != nil { // the channel is gone, the turn may run
		end, stop := context.WithTimeout(context.WithoutCancel(ctx), cancelTime)
		defer stop()
		_ = started.Cancel(end)
	}
	return report, err
}

func either(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// get copies files of the turn's state. What fails is in the report, as it is for a turn here.
func (r *Runner) get(ctx context.Context, report *turnstone.TurnReport, all []document.Transfer,
	obs executor.Observer) {
	if report.State == "" {
		return // the turn has no state, and its report says why
	}
	for _, t := range all {
		err := r.Copy(ctx, string(report.ID), t.Path, either(t.Dest, "."), func(name, why string) {
			if obs != nil {
				obs.Preparing(fmt.Sprintf("%s was left out: %s", name, why))
			}
		})
		if err != nil && report.Result == turnstone.ResultPassed {
			report.Result, report.Kind = turnstone.ResultError, turnstone.KindOf(err)
			report.Error, report.Hint = "--get "+t.Path+": "+err.Error(), turnstone.HintOf(err)
		}
	}
}

// refuse returns the error of a flag that has no effect on another machine.
func refuse(flag, why, hint string) error {
	return turnstone.Errorf("run", turnstone.KindInvalid, flag, "has no effect on a host: %s", why).
		WithHint(hint)
}

// turnSettings returns what a turn's request says beside the document. It resolves what a caller
// grants to the document: the session in req, which the ticket names.
func turnSettings(req *executor.Request) (s wire.TurnSettings, err error) {
	front := req.Document.Front
	if d := req.Document.Defaults; req.Substrate == "" && d.Substrate != "" && d.Substrate != "auto" {
		return s, refuse("substrate: "+d.Substrate+" ("+d.Place+")", "the host selects",
			"override it with --substrate auto; isolation in the manifest counts on hosts too")
	}
	if req.Substrate != "" && req.Substrate != "auto" {
		return s, refuse("--substrate", "the host selects", "leave out --substrate")
	}
	granted := func(key string) bool { return slices.Contains(req.Grant, key) }
	for _, key := range req.Grant {
		if key != "session" && key != "files" && key != "home" {
			return s, refuse("--grant "+key, "its own configuration grants", "name the value with "+
				"its flag, or let the host's operator grant it in config.toml")
		}
	}
	if req.Session == "" && front.Session != "" && granted("session") {
		req.Session = front.Session
	}
	if req.Home == "" && granted("home") {
		req.Home = front.Home
	}
	if req.Branch == "" && req.Session == front.Session {
		req.Branch = front.Branch
	}
	s = wire.TurnSettings{Image: req.Image, Env: req.Env, Timeout: int64(req.Timeout),
		CPUs: int64(req.CPUs), Memory: int64(req.Memory), Disk: int64(req.Disk),
		Network: req.Network, Rules: rules(front.NetworkRules, req),
		SecretHeaders: req.SecretHeaders, Secrets: req.Secrets, Commands: req.Commands,
		Session: req.Session, Branch: req.Branch,
		Lifetime: wire.TurnSettingsLifetime(req.Lifetime), Home: req.Home,
		Checkpoint: wire.TurnSettingsCheckpoint(req.Checkpoint),
		Snapshot:   wire.TurnSettingsSnapshot(req.Snapshot), Deterministic: req.Deterministic,
		Tier: wire.TurnSettingsTier(req.Tier)}
	if err := inherited(&s, req); err != nil {
		return s, err
	}
	if req.Seed != nil {
		s.Seed = strconv.FormatUint(*req.Seed, 10)
	}
	if !req.Clock.IsZero() {
		s.Clock = req.Clock.UTC().Format(time.RFC3339)
	}
	return s, nil
}

// inherited adds what a manifest says where the document and the caller are silent. The node parses
// the document's source, which does not have it.
func inherited(s *wire.TurnSettings, req *executor.Request) error {
	doc := req.Document
	def, front := doc.Defaults, doc.Front
	if doc.Inherits("session") && req.Session == "" {
		return turnstone.Errorf("run", turnstone.KindInvalid, def.Place,
			"the manifest asks for what only its caller can grant: session: %s", front.Session).
			WithHint("add --session " + front.Session + "; or --grant session, which grants the " +
				"manifest's requests unchanged")
	}
	if s.Session != "" {
		if err := def.CheckBranch(cmp.Or(s.Branch, front.Branch, "main")); err != nil {
			return err
		}
	}
	s.Guest = def.Guest
	for _, key := range doc.Inherited {
		switch key {
		case "image":
			s.Image = cmp.Or(s.Image, front.Image)
		case "timeout":
			s.Timeout = cmp.Or(s.Timeout, int64(front.Timeout))
		case "cpus":
			s.CPUs = cmp.Or(s.CPUs, int64(front.CPUs))
		case "memory":
			s.Memory = cmp.Or(s.Memory, int64(front.Memory))
		case "disk":
			s.Disk = cmp.Or(s.Disk, int64(front.Disk))
		case "isolation":
			s.Isolation = wire.TurnSettingsIsolation(front.Isolation)
		case "deterministic":
			if s.Deterministic == nil {
				s.Deterministic = &front.Deterministic
			}
		case "network":
			if s.Network == nil {
				s.Network = front.Network
			}
			if s.Rules == nil && front.NetworkRules != nil {
				s.Rules = rules(front.NetworkRules, &executor.Request{
					NetworkRules: &document.NetworkRules{}, Network: req.Network})
			}
		}
	}
	return nil
}

// rules returns the rules of the caller with the document's, as a local run has them: what the caller
// allows replaces what the document allows, and what both deny is denied. The caller's modes count
// if the caller says whether there is a network.
func rules(doc *document.NetworkRules, req *executor.Request) *wire.TurnNetworkRules {
	if req.NetworkRules == nil {
		return nil
	}
	own, both := req.NetworkRules, document.NetworkRules{}
	if doc != nil {
		both = *doc
	}
	if req.Network != nil || doc == nil {
		both.Record, both.Replay, both.ReplayOf = own.Record, own.Replay, own.ReplayOf
	}
	if own.HasAllow || len(own.Allow) > 0 {
		both.Allow = own.Allow
	}
	both.Deny = append(slices.Clone(both.Deny), own.Deny...)
	w := &wire.TurnNetworkRules{Allow: both.Allow, Deny: both.Deny, Record: both.Record,
		Replay: both.Replay, ReplayOf: both.ReplayOf, Intercept: both.Intercept || own.Intercept,
		NoHostCA: both.NoHostCA || own.NoHostCA}
	return w
}

// localFiles returns the files to send: those of the document, which cannot leave its folder, and
// those of --add.
func localFiles(req executor.Request) ([]document.Transfer, error) {
	var all []document.Transfer
	files := req.Document.Front.Files
	if len(files) > 0 && req.Piped && !slices.Contains(req.Grant, "files") {
		return nil, turnstone.Errorf("run", turnstone.KindInvalid, "files: "+files[0],
			"is a file of the current folder, and the document came through a pipe").
			WithHint("grant it with --grant files")
	}
	for _, file := range files {
		t, err := documentFile(req.Dir, file)
		if err != nil {
			return nil, turnstone.NewError("run", turnstone.KindInvalid, "files: "+file, err).
				WithHint("name files in the document's own folder; take others out of files: and " +
					"give them with --add")
		}
		all = append(all, t)
	}
	for _, t := range req.Add {
		path, err := filepath.Abs(t.Path)
		if err == nil {
			_, err = os.Stat(path)
		}
		if err != nil {
			return nil, turnstone.NewError("run", turnstone.KindInvalid, "--add", err)
		}
		all = append(all, document.Transfer{Path: path, Dest: t.Dest})
	}
	return all, nil
}

// documentFile resolves an entry of the document's files:, also through symbolic links.
func documentFile(dir, file string) (document.Transfer, error) {
	t, err := document.ParseTransfer(file)
	if err != nil {
		return t, err
	}
	if !filepath.IsLocal(t.Path) {
		return t, fmt.Errorf("leaves the document's folder")
	}
	root, err := os.OpenRoot(either(dir, "."))
	if err != nil {
		return t, err
	}
	defer func() { _ = root.Close() }()
	if _, err := root.Stat(t.Path); err != nil {
		return t, err
	}
	t.Path = filepath.Join(either(dir, "."), t.Path)
	return t, nil
}
