// Package resume starts the kept machines of turns.
package resume

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/diskspace"
	"turnstone.dev/turnstone/internal/fsimage/lowerdir"
	"turnstone.dev/turnstone/internal/host"
	"turnstone.dev/turnstone/internal/netplan"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/provision"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/repo/rootimage"
	"turnstone.dev/turnstone/internal/turn/netrecord"
	"turnstone.dev/turnstone/internal/turn/snapshot"
	"turnstone.dev/turnstone/sandboxes"
)

// A Request is one kept machine to start. Its network settings are the caller's.
type Request struct {
	Ref  string
	Name string        // name of the sandbox; may be empty
	TTL  time.Duration // lifetime of the sandbox; 0: unlimited
	// Grant, Network and NetworkRules are as in plan.Request; only the rules Allow, Deny and
	// NoHostCA have an effect.
	Grant        []string
	Network      *bool
	NetworkRules *document.NetworkRules
}

// Resume starts the machine that a turn kept (snapshot: vm), with its processes, in a sandbox that
// outlives this process. progress may be nil.
func Resume(ctx context.Context, h *host.Host, req Request, progress func(string)) (
	sandboxes.Info, error) {
	facts, err := h.Facts()
	if err != nil {
		return sandboxes.Info{}, err
	}
	return Into(ctx, h, facts, req, sandboxes.Spec{Name: req.Name, TTL: req.TTL},
		provision.Quietly(progress))
}

// resumedNetwork returns the network that a resumed machine requests. The record and the document
// of the turn, src, may be imported. Their requests are judged like the requests of the document in
// a turn today, with req for its flags.
func resumedNetwork(facts plan.Host, rec *turnstone.TurnRecord, src []byte,
	req Request) (*turnstone.NetworkSpec, error) {
	doc, err := document.Parse("turn.md", src)
	if err != nil { // a document of another version requests nothing
		doc = &document.Document{}
	}
	doc.Name = req.Ref
	if r := doc.Front.NetworkRules; r != nil {
		r.Record = false // a sandbox has no recording
	}
	a := &plan.Authority{Host: facts,
		Request: plan.Request{Document: doc, Grant: req.Grant, Network: req.Network,
			NetworkRules: req.NetworkRules}}
	if err := a.Check("network"); err != nil {
		return nil, err
	}
	given := document.NetworkRules{}
	if req.NetworkRules != nil {
		given = *req.NetworkRules
	}
	s := netrecord.Spec(rec.Network)
	asked := &turnstone.NetworkSpec{Allow: s.Allow, Deny: append(slices.Clone(s.Deny),
		given.Deny...), Only: s.Only, NoHostCA: s.NoHostCA || given.NoHostCA}
	// A grant covers the document, which the user can read. The record may request more.
	asked.Asked = !a.Granted("network") || !within(s.Allow, doc.Front.NetworkRules)
	if given.HasAllow {
		asked.Allow, asked.Only, asked.Asked = given.Allow, true, false
	}
	if !a.ResumesNetwork() {
		// the machine has a network card, which needs a network that reaches nothing
		asked.Allow, asked.Only = nil, true
	}
	return asked, nil
}

// within reports whether a document's rules contain all rules of allow.
func within(allow []string, rules *document.NetworkRules) bool {
	return !slices.ContainsFunc(allow,
		func(r string) bool { return rules == nil || !slices.Contains(rules.Allow, r) })
}

// Into is Resume into the sandbox that spec names, with spec's network, if any.
func Into(ctx context.Context, h *host.Host, facts plan.Host, req Request, spec sandboxes.Spec,
	progress func(string)) (sandboxes.Info, error) {
	var none sandboxes.Info
	cs, err := h.Context(ctx)
	if err != nil {
		return none, err
	}
	cs, t, err := cs.Resolve(ctx, req.Ref)
	if err != nil {
		return none, err
	}
	rec, err := cs.Record(ctx, t)
	if err != nil {
		return none, err
	}
	if rec.VM == nil {
		return none, turnstone.Errorf("executor.resume", turnstone.KindNotFound,
			fmt.Sprintf("turn %d", rec.Number),
			"has ended, and its machine was not kept").
			WithHint("run its document with snapshot: vm to keep the machine, or begin a turn on its files")
	}
	if !rec.Shape.Network && req.Network != nil && *req.Network {
		return none, turnstone.Errorf("executor.resume", turnstone.KindInvalid, "network: on",
			"the machine was kept without a network card").WithHint("begin a turn on its files")
	}
	if spec.Network == nil && rec.Shape.Network {
		src, err := cs.Read(ctx, rec.Document, document.MaxFile)
		if err != nil {
			return none, err
		}
		if spec.Network, err = resumedNetwork(facts, rec, src, req); err != nil {
			return none, err
		}
	}
	below, err := history(ctx, h, cs, t, rec)
	if err != nil {
		return none, err
	}
	paths, release, err := cs.Images.Remake(ctx, rec.VM.Layers, below)
	if err != nil {
		return none, err
	}
	defer release()
	dir, remove, err := unpack(ctx, h, facts, cs, rec, paths, progress)
	if err != nil {
		return none, err
	}
	defer remove()
	spec.Image, spec.Shape, spec.From, spec.Sealed = rec.Image, rec.Shape, dir, cs.Sealed()
	spec.Substrate = cmp.Or(rec.Substrate, "auto")
	if rec.VM.Image != nil {
		spec.Root = rec.VM.Image.Digest
	}
	store := sandboxes.NewStore(h.Dir.Root)
	if store.Holder, err = h.Holder(ctx); err != nil {
		return none, err
	}
	return store.Create(ctx, spec, progress)
}

// history returns the images below the disk of the machine of turn t, whose record is rec: the
// turn's initial state.
func history(ctx context.Context, h *host.Host, cs *repo.ContextStore, t turnstone.Turn,
	rec *turnstone.TurnRecord) (lowerdir.History, error) {
	layers := layersBelow(ctx, h, rec)
	if p := t.Parent(); p != "" {
		parent, err := cs.DB.Turn(ctx, p)
		return cs.History(ctx, &parent, layers), err
	}
	if layers != nil {
		return cs.History(ctx, nil, layers), nil
	}
	return func(func(lowerdir.Item, error) bool) {}, nil
}

// layersBelow returns the template's layers, below the first turn of rec's session.
func layersBelow(ctx context.Context, h *host.Host,
	rec *turnstone.TurnRecord) (layers []turnstone.TemplateLayer) {
	if rec.VM.Image == nil { // a record of an older version
		if tmpl, err := h.Repo.BuiltTemplate(ctx, rec.Image); err == nil {
			return tmpl.Layers
		}
	}
	for _, ref := range rec.VM.Below {
		layers = append(layers, turnstone.TemplateLayer{Tree: ref})
	}
	return layers
}

// unpack creates a folder from which a machine can be restored.
func unpack(ctx context.Context, h *host.Host, facts plan.Host, cs *repo.ContextStore,
	rec *turnstone.TurnRecord, layers []string, progress func(string)) (dir string, remove func(),
	err error) {
	if err := rec.Shape.Validate(); err != nil { // the record may be imported
		return "", nil, turnstone.NewError("executor.resume", turnstone.KindIntegrity,
			fmt.Sprintf("turn %d", rec.Number),
			err).WithHint("begin a turn on its files")
	}
	ctx, stop := h.Space.Watch(ctx, facts.Limits.FreeSpace)
	defer stop()
	anonymous := facts.StrangersImage(rec.Image, h.Templates)
	p, err := plan.ForSandbox(plan.Sandbox{Image: rec.Image, Anonymous: anonymous, Shape: rec.Shape,
		Fixed:     true,
		Substrate: rec.Substrate, Kept: true, Rules: &netplan.Rules{}}, facts)
	if err != nil {
		return "", nil, err
	}
	tmpl, err := rootimage.Kept(ctx, h.Repo, h.TemplatesFor(anonymous), rec, progress)
	if err != nil {
		return "", nil, err
	}
	req, err := provision.Request(ctx, h, provision.Setup{Plan: p.Reviving(true, tmpl)}, progress,
		provision.NewStopwatch())
	if err != nil {
		return "", nil, err
	}
	src, err := h.Launcher.Find(ctx, req)
	if err != nil {
		return "", nil, err
	}
	src.Machine.Layers = layers
	dir, remove, err = provision.Unpack(ctx, src, snapshot.Stored(ctx, cs.Store, rec.VM),
		func() (string, func(), error) { return snapshot.Folder(h.Dir, cs) })
	if low := diskspace.Low(ctx); err != nil && low != nil {
		err = low
	}
	return dir, remove, err
}
