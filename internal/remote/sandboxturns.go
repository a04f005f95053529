package remote

import (
	"context"
	"encoding/json"
	"io"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/sandboxes"
	"turnstone.dev/turnstone/wire"
)

// maxTurnReport bounds the report of a turn in bytes.
const maxTurnReport = 64 << 20

// Commit is sandboxes.Store.Commit. It goes through the node's channel: what was done in a sandbox is
// no control call's business.
func (b *Sandboxes) Commit(ctx context.Context, id turnstone.SandboxID) (
	rep *turnstone.TurnReport, err error) {
	err = b.atNode(ctx, id, func(c *wire.Client) error {
		stream := c.NewStream()
		r, err := c.Receiver(stream)
		if err != nil {
			return err
		}
		defer r.Close()
		text := make(chan []byte, 1)
		go func() {
			b, err := io.ReadAll(io.LimitReader(r, maxTurnReport))
			if err != nil {
				b = nil
			}
			text <- b
		}()
		err = c.SessionCommitSandbox(ctx, &wire.SessionCommitSandboxParams{Sandbox: string(id),
			Report: stream})
		if err != nil {
			return err
		}
		if err := json.Unmarshal(<-text, &rep); err != nil {
			return turnstone.NewError("sandbox.commit", turnstone.KindIntegrity,
				"the node's answer", err).WithHint("list the session's turns with turn log")
		}
		return nil
	})
	return rep, err
}

// Discard is sandboxes.Store.Discard.
func (b *Sandboxes) Discard(ctx context.Context, id turnstone.SandboxID) error {
	return b.atNode(ctx, id, func(c *wire.Client) error {
		return c.SessionDiscardSandbox(ctx, &wire.SessionDiscardSandboxParams{Sandbox: string(id)})
	})
}

// atNode calls f with a connection to the node of a sandbox.
func (b *Sandboxes) atNode(ctx context.Context, id turnstone.SandboxID,
	f func(*wire.Client) error) error {
	a, err := b.calls.GetSandbox(ctx, connect.NewRequest(&v1.GetSandboxRequest{
		SandboxId: string(id)}))
	if err != nil {
		return err
	}
	conn, err := b.node(ctx, a.Msg.Sandbox.GetNode())
	if err != nil {
		return err
	}
	c := wire.NewClient(conn)
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	return f(c)
}

// addSecrets gives a new sandbox its secrets, through its channel. Without them it is of no use.
func (b *Sandboxes) addSecrets(ctx context.Context, id turnstone.SandboxID, all []string) error {
	c, err := b.Client(ctx, id)
	if err == nil {
		stop := context.AfterFunc(ctx, func() { _ = c.Close() })
		err = c.SandboxAddSecrets(ctx, &wire.SandboxAddSecretsParams{Secrets: all})
		stop()
		_ = c.Close()
	}
	if err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), getTime)
		defer cancel()
		_ = b.Remove(ctx, id)
	}
	return err
}

// checkSecrets reports a secret of a wrong form, or one that could not be masked in the turns of a
// session's sandbox.
func checkSecrets(session string, all []string) error {
	return sandboxes.Spec{Session: session, Secrets: all, Shape: turnstone.DefaultShape()}.Check()
}
