package runner

import (
	"context"
	"errors"
	"slices"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/remote"
	"turnstone.dev/turnstone/internal/remote/atnode"
	"turnstone.dev/turnstone/wire"
)

// A Host has the operations of executor.Executor at a server: its turns run there, and its sessions
// are there. It is safe for concurrent use.
type Host struct {
	*atnode.Executor
	turns     Runner
	substrate string
	witness   Witness
}

// A Witness says whom this client trusts for the turns of a host: see hosts.Witness.
type Witness interface {
	Keys() []string
	Explain(r *turnstone.VerifyReport)
}

// Options are what a Host needs of this machine.
type Options struct {
	Dir  string // the state directory, whose keys verify receipts
	Last string // path of a file that notes the session that was used last
	// Substrate is the default of requests on this machine: a request with this value selects none
	// at the server.
	Substrate string
	// Witness is for verifications that name no keys; nil: the node's own lists count then.
	Witness Witness
}

// Open returns the executor of a server, which it owns.
func Open(s *remote.Server, o Options) *Host {
	nodes := nodesOf{s}
	x := &atnode.Executor{Dir: o.Dir, Last: o.Last, Nodes: nodes,
		Dial: func(ctx context.Context) (*wire.Client, error) { return nodes.Dial(ctx, "") }}
	if !s.Operator() {
		x.Hint = remote.ForOperator
	}
	return &Host{x, Runner{Server: s, Copy: x.CopyOut, Hint: x.Hint}, o.Substrate, o.Witness}
}

// Close closes the connections.
func (h *Host) Close() error { return errors.Join(h.Executor.Close(), h.turns.Server.Close()) }

// there returns a request without what concerns this machine.
func (h *Host) there(req executor.Request) executor.Request {
	if req.Substrate == h.substrate || req.Substrate == "auto" {
		req.Substrate = ""
	}
	return req
}

// Run is Runner.Run.
func (h *Host) Run(ctx context.Context, req executor.Request, obs executor.Observer) (
	*turnstone.TurnReport, error) {
	return h.turns.Run(ctx, h.there(req), obs)
}

// Times is Runner.Times.
func (h *Host) Times(ctx context.Context, req executor.Request, n int, obs executor.Observer) (
	*turnstone.TurnReport, error) {
	return h.turns.Times(ctx, h.there(req), n, obs)
}

// ResumeTurn is Runner.ResumeTurn for the turn that req names.
func (h *Host) ResumeTurn(ctx context.Context, req executor.ResumeTurnRequest,
	obs executor.Observer) (*turnstone.TurnReport, error) {
	info, err := h.Show(ctx, req.Ref)
	if err != nil {
		return nil, err
	}
	if info.Checkpoint == nil { // the server's error says what the turn is
		return h.turns.ResumeTurn(ctx, req, info, &document.Document{Name: req.Ref}, obs)
	}
	receipt, err := h.Receipt(ctx, string(info.Turn.ID))
	if err != nil {
		return nil, err
	}
	doc, err := document.Parse(req.Ref, receipt)
	if err != nil {
		return nil, err
	}
	return h.turns.ResumeTurn(ctx, req, info, doc, obs)
}

// Verify is executor.Executor.Verify at the node, with the keys that this client trusts.
func (h *Host) Verify(ctx context.Context, req turnstone.VerifyRequest) (*turnstone.VerifyReport,
	error) {
	if len(req.Trust) > 0 || h.witness == nil {
		return h.Executor.Verify(ctx, req)
	}
	req.Trust = h.witness.Keys()
	report, err := h.Executor.Verify(ctx, req)
	// the channel may have shown a certificate of a key that was not known before
	if now := h.witness.Keys(); err == nil && !slices.Equal(now, req.Trust) {
		req.Trust = now
		report, err = h.Executor.Verify(ctx, req)
	}
	if report != nil {
		h.witness.Explain(report)
	}
	return report, err
}

// Frozen is executor.Executor.Frozen. A grant of the session names the receipt's.
func (h *Host) Frozen(ctx context.Context, name string, receipt []byte, req executor.Request,
	obs executor.Observer) (*turnstone.FrozenReport, error) {
	req = h.there(req)
	if slices.Contains(req.Grant, "session") {
		if _, claims, err := document.ReadReceipt(name, receipt); err == nil {
			req.Session = either(req.Session, string(claims.Info.Session))
		}
		req.Grant = slices.DeleteFunc(slices.Clone(req.Grant),
			func(key string) bool { return key == "session" })
	}
	return h.Executor.Frozen(ctx, name, receipt, req, obs)
}
