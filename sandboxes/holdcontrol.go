package sandboxes

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/wire"
)

// connect gives a client of the relay its stream. It waits while a snapshot is taken.
func (h *holder) connect() (wire.LinkStream, error) {
	h.still.RLock()
	defer h.still.RUnlock()
	if h.status().Paused {
		return nil, pausedError(string(h.id))
	}
	return h.machine.Connect()
}

// setTTL sets the time from now to the sandbox's stop.
func (h *holder) setTTL(ttl time.Duration) error {
	if ttl < 0 {
		return turnstone.Errorf("sandbox.control", turnstone.KindInvalid, "sandbox "+string(h.id),
			"%s is not a valid TTL", ttl)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	defer h.watched.tell()
	if h.info.State.Final() {
		return turnstone.Errorf("sandbox.control", turnstone.KindDead, "sandbox "+string(h.id),
			"it is %s", h.info.State)
	}
	next := h.info
	next.Expires = until(ttl)
	if err := writeInfo(h.dir, next); err != nil {
		return turnstone.NewError("sandbox.control", turnstone.KindUnavailable,
			"sandbox "+string(h.id), err)
	}
	h.info, h.ttl = next, ttl
	if ttl == 0 {
		h.due.Stop()
	} else {
		h.due.Reset(ttl)
	}
	return nil
}

// until returns the time after ttl from now, and nil for 0.
func until(ttl time.Duration) *time.Time {
	if ttl == 0 {
		return nil
	}
	t := time.Now().UTC().Add(ttl)
	return &t
}

func pausedError(title string) error {
	return turnstone.Errorf("sandbox.dial", turnstone.KindUnavailable, "sandbox "+title,
		"it is paused").WithHint("wait until the pause ends")
}

func (h *holder) status() Status {
	h.mu.Lock()
	defer h.mu.Unlock()
	return Status{Paused: h.info.Paused, Upper: h.upper, Used: h.info.Used}
}

// control executes a request. The answer in a has a status and may have a descriptor. Calls are
// sequential.
func (h *holder) control(ctx context.Context, q controlRequest,
	a *controlAnswer) (*os.File, error) {
	switch q.Op {
	case opNetwork:
		return nil, h.facts(ctx, a)
	case opDial:
		return h.dialGuest(ctx, q.Port)
	case opTTL:
		return nil, h.setTTL(q.TTL)
	case opCommit, opClose, opDiscard:
		return nil, h.end(ctx, q.Op, a)
	}
	m, ok := h.machine.(Controlled)
	if !ok {
		return nil, turnstone.Errorf("sandbox.control", turnstone.KindUnavailable,
			"sandbox "+string(h.id), "its machine does not support pausing or snapshots")
	}
	switch q.Op {
	case opStatus:
		return nil, nil
	case opDisk:
		return m.Disk()
	case opPause, opResume:
		return nil, h.pause(ctx, m, q.Op == opPause)
	case opSnapshot:
		return nil, h.snapshot(ctx, q, func() error { return m.Snapshot(ctx, q.Dir) })
	case opKeep:
		return nil, h.snapshot(ctx, q, func() error {
			p, err := m.Keep(ctx, q.Dir)
			a.Kept = &p
			return err
		})
	}
	return nil, turnstone.Errorf("sandbox.control", turnstone.KindInvalid,
		fmt.Sprintf("%.40q", q.Op), "unknown request")
}

// pause pauses or resumes the machine and records that.
func (h *holder) pause(ctx context.Context, m Controlled, on bool) error {
	if h.status().Paused == on {
		return nil
	}
	h.still.Lock()
	defer h.still.Unlock()
	var upper string
	var err error
	if on {
		upper, err = m.Pause(ctx)
	} else {
		err = m.Resume(ctx)
	}
	if on == (err != nil) { // the machine runs
		h.followAgain(ctx)
	}
	if err != nil {
		return err
	}
	h.measure()
	h.mu.Lock()
	defer h.mu.Unlock()
	defer h.watched.tell()
	h.info.Paused, h.upper = on, upper
	h.log.Info("pause", "paused", on)
	return writeInfo(h.dir, h.info)
}

// snapshot saves the running machine.
func (h *holder) snapshot(ctx context.Context, q controlRequest, write func() error) error {
	fail := func(kind turnstone.Kind, err error, hint string) error {
		return turnstone.NewError("sandbox.snapshot", kind, "sandbox "+string(h.id), err).
			WithHint(hint)
	}
	if !filepath.IsAbs(q.Dir) {
		return fail(turnstone.KindInvalid, fmt.Errorf("%.200q is not an absolute path", q.Dir), "")
	}
	h.mu.Lock()
	secrets := len(h.info.Secrets)
	h.mu.Unlock()
	if secrets > 0 && !q.Secrets {
		held := fmt.Sprintf("%d secrets", secrets)
		if secrets == 1 {
			held = "a secret"
		}
		return fail(turnstone.KindInvalid, fmt.Errorf("it holds %s, and a copy of it would too",
			held), "copy secrets explicitly with --with-secrets")
	}
	h.still.Lock()
	defer h.still.Unlock()
	err := write()
	if err == nil && h.recorder != nil { // before another connection records
		err = h.recorder.CopyTo(q.Dir + commandsSuffix)
	}
	h.log.Info("snapshot", "err", err)
	if !h.status().Paused {
		h.followAgain(ctx)
	}
	return err
}
