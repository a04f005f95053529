package atnode

import (
	"bytes"
	"context"
	"io"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/tarfiles"
	"turnstone.dev/turnstone/internal/turnlog"
	"turnstone.dev/turnstone/wire"
)

// telling is an observer of progress that is only text; f may be nil.
func telling(f func(string)) turnlog.Observer {
	if f == nil {
		return nil
	}
	return teller(f)
}

type teller func(string)

func (t teller) Preparing(what string)                             { t(what) }
func (teller) StepStarted(*document.Step)                          {}
func (teller) StepOutput(*document.Step, turnstone.Stream, []byte) {}
func (teller) StepFinished(*document.Step, turnstone.StepReport)   {}
func observer(o executor.Observer) turnlog.Observer {
	if o == nil {
		return nil
	}
	return o
}

func options(o executor.ReplayOptions) *wire.SessionReplayOptions {
	return &wire.SessionReplayOptions{Secrets: o.Secrets, Substrate: o.Substrate,
		Tier: wire.SessionReplayOptionsTier(o.Tier), Grant: o.Grant}
}

// Replay is executor.Executor.Replay.
func (x *Executor) Replay(ctx context.Context, ref string, o executor.ReplayOptions,
	obs executor.Observer) (*turnstone.ReplayReport, error) {
	return run[turnstone.ReplayReport](ctx, x, job{obs: observer(obs),
		start: func(c *wire.Client, journal, hold wire.StreamID) error {
			return c.SessionReplay(context.WithoutCancel(ctx), &wire.SessionReplayParams{Ref: ref,
				Options: options(o), Journal: journal, Hold: hold})
		}})
}

// ReplayRange is executor.Executor.ReplayRange.
func (x *Executor) ReplayRange(ctx context.Context, req executor.RangeRequest,
	obs executor.Observer) (*turnstone.RangeReport, error) {
	j := job{obs: observer(obs), start: func(c *wire.Client, journal, hold wire.StreamID) error {
		return c.SessionReplayRange(context.WithoutCancel(ctx), &wire.SessionReplayRangeParams{
			Ref: req.Ref, Options: options(req.Options), OnHead: req.OnHead, Branch: req.Branch,
			Journal: journal, Hold: hold})
	}}
	if req.Each != nil {
		j.item = func(decode func(any) error) error {
			r := new(turnstone.ReplayReport)
			if err := decode(r); err != nil {
				return err
			}
			req.Each(r)
			return nil
		}
	}
	return run[turnstone.RangeReport](ctx, x, j)
}

// Bisect is executor.Executor.Bisect. Of the command, its words, its variables and its time limit
// are sent.
func (x *Executor) Bisect(ctx context.Context, req executor.BisectRequest,
	obs executor.Observer) (*turnstone.BisectReport, error) {
	o := req.Options
	if o.Substrate == "" {
		o.Substrate = req.Command.Substrate
	}
	j := job{obs: observer(obs), start: func(c *wire.Client, journal, hold wire.StreamID) error {
		return c.SessionBisect(context.WithoutCancel(ctx), &wire.SessionBisectParams{Ref: req.Ref,
			Options: options(o), Argv: req.Command.Argv, Env: req.Command.Env,
			Timeout: int64(req.Command.Timeout), Journal: journal, Hold: hold})
	}}
	if req.Tell != nil {
		j.item = func(decode func(any) error) error {
			var line string
			if err := decode(&line); err != nil {
				return err
			}
			req.Tell(line)
			return nil
		}
	}
	return run[turnstone.BisectReport](ctx, x, j)
}

// Frozen is executor.Executor.Frozen. The files that the receipt's document names, and those of
// req.Add, are of this machine.
func (x *Executor) Frozen(ctx context.Context, name string, receipt []byte, req executor.Request,
	obs executor.Observer) (*turnstone.FrozenReport, error) {
	settings, items, err := frozenSettings(name, receipt, req)
	if err != nil {
		return nil, err
	}
	return run[turnstone.FrozenReport](ctx, x, job{obs: observer(obs),
		start: func(c *wire.Client, journal, hold wire.StreamID) error {
			p := &wire.SessionFrozenParams{Name: name, Settings: settings, Journal: journal,
				Hold: hold}
			return c.Feed(bytes.NewReader(receipt), func(id wire.StreamID) error {
				if p.Receipt = id; len(items) == 0 {
					return c.SessionFrozen(context.WithoutCancel(ctx), p)
				}
				return pack(ctx, c, items, func(id wire.StreamID) error {
					p.Files = id
					return c.SessionFrozen(context.WithoutCancel(ctx), p)
				})
			})
		}})
}

// manifestOf adds what the request's defaults say to s, where the receipt's document is silent.
func manifestOf(doc *document.Document, req executor.Request, s *wire.TurnSettings) error {
	def := req.Defaults
	def.Front.Session, def.Front.Branch, def.Front.Image = "", "", "" // the receipt says them
	doc = doc.With(def, "")
	if doc.Inherits("network") {
		return turnstone.Errorf("executor.frozen", turnstone.KindInvalid, "network ("+def.Place+")",
			"a node does not let its clients grant a network to a receipt").
			WithHint("--manifest none runs the receipt without the manifest")
	}
	front := doc.Front
	set := func(to *int64, key string, value int64) {
		if *to == 0 && doc.Inherits(key) {
			*to = value
		}
	}
	set(&s.Timeout, "timeout", int64(front.Timeout))
	set(&s.CPUs, "cpus", int64(front.CPUs))
	set(&s.Memory, "memory", int64(front.Memory))
	set(&s.Disk, "disk", int64(front.Disk))
	if s.Guest = def.Guest; doc.Inherits("isolation") {
		s.Isolation = wire.TurnSettingsIsolation(front.Isolation)
	}
	return nil
}

// pack runs a command with a stream that carries files.
func pack(ctx context.Context, c *wire.Client, items []tarfiles.Item,
	command func(wire.StreamID) error) error {
	r, w := io.Pipe()
	go func() { _ = w.CloseWithError(tarfiles.PackAll(ctx, w, items)) }()
	defer func() { _ = r.Close() }() // ends the packing
	return c.Feed(r, command)
}

// frozenSettings returns the settings of a receipt's run, and the files to send.
func frozenSettings(name string, receipt []byte, req executor.Request) (*wire.TurnSettings,
	[]tarfiles.Item, error) {
	if len(req.Grant) > 0 || req.Image != "" || req.Network != nil || req.NetworkRules != nil ||
		req.Lifetime != "" || req.Home != "" || req.Snapshot != "" || req.Substrate != "" ||
		len(req.Get) > 0 {
		return nil, nil, turnstone.Errorf("executor.frozen", turnstone.KindInvalid, name,
			"a flag grants what a node does not let its clients grant").
			WithHint("leave out flags for the image, the network, the substrate and the machine")
	}
	s := &wire.TurnSettings{Env: req.Env, Timeout: int64(req.Timeout), CPUs: int64(req.CPUs),
		Memory: int64(req.Memory), Disk: int64(req.Disk), SecretHeaders: req.SecretHeaders,
		Secrets: req.Secrets, Commands: req.Commands, Session: req.Session, FilesSent: true,
		Deterministic: req.Deterministic, Tier: wire.TurnSettingsTier(req.Tier)}
	if req.Seed != nil {
		s.Seed = strconv.FormatUint(*req.Seed, 10)
	}
	if !req.Clock.IsZero() {
		s.Clock = req.Clock.UTC().Format(time.RFC3339)
	}
	var items []tarfiles.Item
	for i, t := range req.Add {
		name := strconv.Itoa(i) + "/" + filepath.Base(t.Path)
		items = append(items, tarfiles.Item{HostPath: t.Path, Name: name})
		s.Add = append(s.Add, wire.TurnTransfer{Name: name, Dest: t.Dest})
	}
	doc, _, err := document.ReadReceipt(name, receipt)
	if err != nil {
		return s, items, nil // the node says what is wrong with it
	}
	if err := manifestOf(doc, req, s); err != nil {
		return nil, nil, err
	}
	for _, f := range doc.Front.Files {
		from, _, _ := strings.Cut(f, ":")
		local := path.Clean(from)
		if !filepath.IsLocal(filepath.FromSlash(local)) {
			continue // the node rejects it
		}
		items = append(items, tarfiles.Item{
			HostPath: filepath.Join(req.Dir, filepath.FromSlash(local)),
			Name:     path.Join("document", local)})
	}
	return s, items, nil
}
