package replay

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/network"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/turn"
	"turnstone.dev/turnstone/internal/turn/netrecord"
)

// A ResumeRequest is one interrupted turn to resume. Its other settings are those of the turn.
type ResumeRequest struct {
	Ref           string
	Session       string   // name or ID of the session that the turn must be of; empty: any
	Secrets       []string // NAME=VALUE: secrets are not stored and must be given again
	SecretHeaders []string // "HOST=Name: value": the same
	Grant         []string // as in Options
	Commands      bool     // list all commands of the steps that run now in the receipt
	// Network and NetworkRules are as in plan.Request. Without them, the turn's document asks for
	// the network of its first start again.
	Network      *bool
	NetworkRules *document.NetworkRules
	Remote       bool // as in plan.Request
	// Most bounds the turn's machine, and MostTime its time limit: what the caller may use now. A
	// zero field bounds nothing.
	Most     turnstone.Machine
	MostTime time.Duration
}

// Resume continues the interrupted turn that req names after its last finished step, with the runner
// r, and ends it. What the record of its checkpoint requests is judged as it is for a replay.
func Resume(ctx context.Context, r *turn.Runner, cs *repo.ContextStore, req ResumeRequest,
	obs turn.Observer) (*turnstone.TurnReport, error) {
	cs, t, err := cs.Resolve(ctx, req.Ref)
	if err != nil {
		return nil, err
	}
	fail := func(kind turnstone.Kind, hint, format string, args ...any) error {
		return turnstone.Errorf("executor.resume", kind, fmt.Sprintf("turn %d", t.Number),
			format, args...).WithHint(hint)
	}
	if req.Session != "" {
		of, err := cs.DB.Find(ctx, req.Session)
		if err != nil {
			return nil, err
		}
		if of.ID != t.Session {
			return nil, fail(turnstone.KindInvalid, "name the turn's own session",
				"is not of the session %s", of.Label())
		}
	}
	switch {
	case t.Status == turnstone.TurnRunning:
		return nil, fail(turnstone.KindInvalid, "wait for it", "is still running")
	case t.Record != "":
		return nil, fail(turnstone.KindInvalid, "run it again with turn replay", "has ended: %s",
			t.Result)
	}
	c, err := cs.DB.Checkpoint(ctx, t.ID)
	if err != nil {
		return nil, err
	}
	if c == nil {
		return nil, fail(turnstone.KindNotFound,
			"run its document again; with checkpoint: step a turn keeps its finished steps",
			"was interrupted, and none of its steps is kept")
	}
	rec, err := cs.Record(ctx, c.As(t))
	if err != nil {
		return nil, err
	}
	if err := within(rec, &req); err != nil {
		return nil, fail(turnstone.KindInvalid, "start it for what the turn had: turn show has its machine",
			"%w", err)
	}
	own, err := again(ctx, cs, t, rec, Options{Secrets: req.Secrets, Grant: req.Grant})
	if err != nil {
		return nil, err
	}
	if err := sameHeaders(rec, req.SecretHeaders); err != nil {
		return nil, fail(turnstone.KindInvalid, "give the headers that the turn began with", "%w", err)
	}
	own.Session, own.Branch = string(t.Session), t.Branch
	own.Checkpoint, own.SecretHeaders = rec.Checkpoint, req.SecretHeaders
	if c.Step > 0 {
		own.Checkpoint = turnstone.CheckpointStep
	}
	own.Commands, own.Remote = req.Commands, req.Remote
	own.Network, own.NetworkRules = req.Network, req.NetworkRules
	return r.Resume(ctx, *own, t.ID, obs)
}

// within rejects a turn whose machine or time limit is more than what the caller of a resume may use:
// that may be less than when the turn began.
func within(rec *turnstone.TurnRecord, req *ResumeRequest) error {
	switch m := req.Most; {
	case m.CPUs > 0 && rec.Shape.CPUs > m.CPUs:
		return fmt.Errorf("its %d CPUs are more than %d, the most here", rec.Shape.CPUs, m.CPUs)
	case m.Memory > 0 && rec.Shape.Memory > m.Memory:
		return fmt.Errorf("its memory of %s is more than %s, the most here", rec.Shape.Memory, m.Memory)
	case m.Disk > 0 && rec.Shape.Disk > m.Disk:
		return fmt.Errorf("its disk of %s is more than %s, the most here", rec.Shape.Disk, m.Disk)
	case req.MostTime > 0 && rec.Timeout > req.MostTime:
		return fmt.Errorf("its timeout of %s is more than %s, the most here", rec.Timeout, req.MostTime)
	}
	return nil
}

// sameHeaders rejects secret headers other than those that the turn of rec began with.
func sameHeaders(rec *turnstone.TurnRecord, given []string) error {
	var began, now []string
	for _, h := range netrecord.Spec(rec.Network).Headers {
		began = append(began, h.Label())
	}
	for _, text := range given {
		h, err := network.ParseSecretHeader(text)
		if err != nil {
			return err
		}
		now = append(now, h.Label())
	}
	slices.Sort(began)
	slices.Sort(now)
	if !slices.Equal(began, now) {
		return fmt.Errorf("its secret headers were %q, and are %q now", strings.Join(began, ", "),
			strings.Join(now, ", "))
	}
	return nil
}
