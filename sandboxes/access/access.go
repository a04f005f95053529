// Package access runs commands and copies files in sandboxes, over connections that may be lost.
package access

import (
	"context"
	"errors"
	"io"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/wire"
)

// A Sandbox is what an Access has to know of a sandbox.
type Sandbox struct {
	Title    string          // for messages
	Workdir  string          // working directory of commands; empty: the agent's
	User     string          // user of commands; empty: root
	Capacity turnstone.Bytes // bounds what is copied out of it; 0: unknown
	Ended    string          // how it has ended, such as "stopped: its time was up"; empty: it has not
}

// An Access runs commands and copies files in sandboxes. Its methods are safe for concurrent use.
type Access struct {
	// Open opens a connection of the wire to a sandbox's agent. The caller closes it.
	Open func(ctx context.Context, id turnstone.SandboxID) (io.ReadWriteCloser, error)
	// Info returns a sandbox. Commands do not ask for it if Linger is set: the agent of a sandbox far
	// away knows its directory and its user.
	Info func(ctx context.Context, id turnstone.SandboxID) (Sandbox, error)
	// Linger is how long a command of Exec and its caller wait for each other after a lost
	// connection. 0: a command ends with its connection.
	Linger time.Duration
	// Kept is the connection that commands to one sandbox share; nil: each has one of its own.
	Kept *Kept
}

// Client opens a connection for a single task.
func (a *Access) Client(ctx context.Context, id turnstone.SandboxID) (*wire.Client, error) {
	conn, err := a.Open(ctx, id)
	if err == nil {
		return wire.NewClient(conn), nil
	}
	// a server that refuses an ended sandbox does not say why the sandbox has ended
	if a.Linger > 0 && turnstone.KindOf(err) == turnstone.KindInvalid {
		switch i, getErr := a.Info(ctx, id); {
		case turnstone.KindOf(getErr) == turnstone.KindNotFound:
			return nil, getErr // it was removed
		case getErr == nil && i.Ended != "":
			return nil, ended(i)
		}
	}
	return nil, err
}

// ended is the error about a sandbox that has ended.
func ended(i Sandbox) error {
	return turnstone.Errorf("sandbox.use", turnstone.KindDead, "sandbox "+i.Title,
		"it is %s", i.Ended).WithHint("create a new sandbox with turn sandbox create")
}

// gone reports whether a sandbox that does not answer has ended.
func (a *Access) gone(ctx context.Context, id turnstone.SandboxID) bool {
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	i, err := a.Info(ctx, id)
	switch {
	case err == nil:
		return i.Ended != ""
	case a.Linger == 0:
		return true
	}
	return turnstone.KindOf(err) == turnstone.KindNotFound
}

const (
	// connectTime bounds the answer of a sandbox that answered before: the way to it may lose all
	// that is sent, and a new connection may find another way.
	connectTime = 30 * time.Second
	// endReasonTime bounds the time in which a holder records why its machine ended.
	endReasonTime = 2 * time.Second
	// The times between two questions, near and far.
	nearPause = 20 * time.Millisecond
	farPause  = 500 * time.Millisecond
)

// EndReason prefers the recorded cause of a sandbox's end over the resulting connection error.
func (a *Access) EndReason(ctx context.Context, id turnstone.SandboxID, err error) error {
	if turnstone.KindOf(err) != turnstone.KindDead {
		return err
	}
	pause := nearPause
	if a.Linger > 0 {
		pause = farPause
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endReasonTime)
	defer cancel()
	for until := time.Now().Add(endReasonTime); time.Now().Before(until); time.Sleep(pause) {
		i, getErr := a.Info(ctx, id)
		if turnstone.KindOf(getErr) == turnstone.KindNotFound {
			return turnstone.Errorf("sandbox.use", turnstone.KindDead, "sandbox "+string(id),
				"it was removed")
		}
		if getErr == nil && i.Ended != "" {
			return ended(i)
		}
	}
	return err
}

// closeAfter closes c if ctx has ended and the sandbox does not react soon after.
func closeAfter(ctx context.Context, c *wire.Client) (stop func() bool) {
	return context.AfterFunc(ctx, func() {
		select {
		case <-c.Done():
		case <-time.After(killTime):
			_ = c.Close()
		}
	})
}

func orCanceled(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return canceled(ctx, "sandbox.attach")
	}
	return err
}

func canceled(ctx context.Context, op turnstone.Op) error {
	kind := turnstone.KindCanceled
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		kind = turnstone.KindTimeout
	}
	return turnstone.NewError(op, kind, "", context.Cause(ctx))
}
