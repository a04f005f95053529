package sandboxes

import (
	"context"
	"errors"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/wire"
)

// followTime bounds the time in which an agent answers.
const followTime = time.Minute

// deathTime is the time in which a machine whose connections have ended is seen to have ended.
const deathTime = time.Second

// follow makes the agent report how many commands run, until its connections end. Only the agent
// knows: channels to it are encrypted.
func (h *holder) follow(ctx context.Context) error {
	s, err := h.machine.Connect()
	if err != nil {
		return err
	}
	told := false // of a change, which is newer than the answer
	set := func(running int64, answer bool) {
		h.mu.Lock()
		defer h.mu.Unlock()
		if told && answer {
			return
		}
		told = true
		h.count(running)
		h.watched.tell()
	}
	c := wire.NewConn(s, wire.Options{OnEvent: func(e wire.Event) {
		v, err := wire.DecodeEvent(e)
		if err != nil {
			return
		}
		switch v := v.(type) {
		case *wire.SandboxActivityChangedEvent:
			set(v.Running, false)
		case *wire.SandboxSecretsAddedEvent:
			h.hold(v.Names)
		}
	}})
	ctx, cancel := context.WithTimeout(ctx, followTime)
	defer cancel()
	res, err := c.SandboxActivity(ctx)
	if err != nil {
		_ = c.Close()
		return err
	}
	set(res.Running, true)
	h.hold(res.Secrets)
	h.mu.Lock()
	h.followed++
	number := h.followed
	h.mu.Unlock()
	go func() {
		select {
		case <-c.Done():
		case <-h.machine.Done():
		}
		_ = c.Close()
		h.unfollowed(number, c.Err())
	}()
	return nil
}

// unfollowed is called when a connection that follows has ended. The end is expected if the machine
// has ended or was relinked; otherwise the guest has ended it.
func (h *holder) unfollowed(number int, err error) {
	select {
	case <-h.machine.Done():
		return
	case <-time.After(deathTime):
	}
	h.still.RLock() // after a snapshot, another connection follows
	defer h.still.RUnlock()
	h.mu.Lock()
	expected := number != h.followed || h.info.Paused
	h.mu.Unlock()
	if !expected {
		h.unknown(errors.Join(errors.New("the agent has closed the connection"), err))
	}
}

// followFirst is follow at the start. An agent of a machine that an older version has kept cannot
// report: its sandbox counts as running.
func (h *holder) followFirst(ctx context.Context, d Details) error {
	err := h.setDefaults(ctx, d)
	if err == nil {
		err = h.follow(ctx)
	}
	if turnstone.KindOf(err) == turnstone.KindInvalid {
		h.unknown(err)
		return nil
	}
	return err
}

// setDefaults tells the agent what commands get that name no directory and no user, and what the image
// starts: clients of encrypted channels do not know them. An agent of a machine that an older version has
// kept does not know of images' commands.
func (h *holder) setDefaults(ctx context.Context, d Details) error {
	return h.withAgent(ctx, func(ctx context.Context, c *wire.Conn) error {
		p := &wire.SandboxSetDefaultsParams{Cwd: d.Workdir, User: d.User, Entrypoint: d.Command.Entrypoint,
			Cmd: d.Command.Cmd, ImageDirectory: d.Command.Workdir}
		err := c.SandboxSetDefaults(ctx, p)
		if turnstone.KindOf(err) == turnstone.KindInvalid && !d.Command.None() {
			return c.SandboxSetDefaults(ctx, &wire.SandboxSetDefaultsParams{Cwd: d.Workdir, User: d.User})
		}
		return err
	})
}

// withAgent calls f with a connection to the agent, which has to answer in followTime.
func (h *holder) withAgent(ctx context.Context, f func(context.Context, *wire.Conn) error) error {
	s, err := h.machine.Connect()
	if err != nil {
		return err
	}
	c := wire.NewConn(s, wire.Options{})
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, followTime)
	defer cancel()
	return f(ctx, c)
}

// followAgain continues after a machine's connections have ended. If that fails, the sandbox counts
// as running: nothing should take it for idle.
func (h *holder) followAgain(ctx context.Context) {
	if h.recorder != nil {
		if err := h.recorder.Follow(context.WithoutCancel(ctx), h.machine); err != nil {
			h.recorder.Fail(err.Error())
		}
	}
	if err := h.follow(context.WithoutCancel(ctx)); err != nil {
		h.unknown(err)
	}
}

func (h *holder) unknown(err error) {
	h.log.Warn("the sandbox's commands are not followed", "err", err)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.count(1)
	h.watched.tell()
}

// present returns the sandbox with its present state.
func (h *holder) present() Info {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.info
}
