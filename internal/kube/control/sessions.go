package control

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/channel/attest"
	"turnstone.dev/turnstone/internal/kube/v1alpha1"
	"turnstone.dev/turnstone/internal/turnlog"
	"turnstone.dev/turnstone/wire"
)

// Make implements turns.Server.
func (c *Client) Make(ctx context.Context, namespace, name, key string) (string, error) {
	t, err := c.of(ctx, namespace)
	if err != nil {
		return "", err
	}
	has, err := t.session(ctx, name)
	if err == nil {
		if err = t.host.Owns(ctx, has.SessionId); err == nil || !foreign(err) {
			return has.SessionId, err
		}
		// Or it is one that an earlier call has planned, and that its node has not made yet: the same call does.
	} else if turnstone.KindOf(err) != turnstone.KindNotFound {
		return "", err
	}
	own, nonce := t.server.Key(), attest.Nonce{}
	_, _ = rand.Read(nonce[:]) // documented never to fail
	client := &v1.ChannelClient{ClientPublicKey: own[:], Nonce: nonce[:]}
	made, err := t.server.Sessions.CreateSession(ctx, connect.NewRequest(&v1.CreateSessionRequest{
		IdempotencyKey: c.once("session", key), Name: name, Client: client}))
	if has != nil && foreign(err) {
		return "", turnstone.Errorf("kube.session", turnstone.KindDenied, "session "+name,
			"exists and belongs to another client key").
			WithHint("give the object another name, or fork that session with spec.parent")
	}
	if err != nil {
		return "", err
	}
	// By its ID: if it was removed, the answer is the same, and somebody else's session may have the name.
	has, err = t.session(ctx, made.Msg.GetSession().GetSessionId())
	if turnstone.KindOf(err) == turnstone.KindNotFound {
		return "", turnstone.Errorf("kube.session", turnstone.KindNotFound, "session "+name,
			"was removed at the server").WithHint("delete the object and create it again for a new session")
	}
	return has.GetSessionId(), err
}

// foreign reports an error about what another client has made. Every client of the tenant can make a session
// of any name, and admit this client's key to it: it would read what the turns of an object do.
func foreign(err error) bool {
	switch turnstone.KindOf(err) {
	case turnstone.KindDenied, turnstone.KindNotFound, turnstone.KindInvalid: // refused, hidden, or only shared
		return true
	}
	return false
}

// session returns a session by its name or ID.
func (t *tenant) session(ctx context.Context, name string) (*v1.Session, error) {
	a, err := t.server.Sessions.GetSession(ctx, connect.NewRequest(&v1.GetSessionRequest{Session: name}))
	if err != nil {
		return nil, err
	}
	return a.Msg.Session, nil
}

// Fork implements turns.Server.
func (c *Client) Fork(ctx context.Context, namespace string, from v1alpha1.TurnRef, branch string) (id, name string,
	err error) {
	t, err := c.of(ctx, namespace)
	if err != nil {
		return "", "", err
	}
	s, err := t.session(ctx, from.Session)
	if err != nil {
		return "", "", err
	}
	if name = s.Name; name == "" {
		name = s.SessionId
	}
	from.Session = s.SessionId // from now on: its name may become another one's
	_, err = t.host.Log(ctx, s.SessionId+"@"+branch, 1)
	if turnstone.KindOf(err) != turnstone.KindNotFound {
		return s.SessionId, name, err
	}
	ref, err := t.reference(ctx, from)
	if err == nil {
		_, err = t.host.Fork(ctx, ref, branch)
	}
	return s.SessionId, name, err
}

// Head implements turns.Server.
func (c *Client) Head(ctx context.Context, namespace, session, branch string) (*v1alpha1.Head, int64, error) {
	t, err := c.of(ctx, namespace)
	if err != nil {
		return nil, 0, err
	}
	s, err := t.session(ctx, session)
	if err != nil {
		return nil, 0, err
	}
	if s.Turns == 0 {
		return nil, 0, nil
	}
	g, err := t.host.Log(ctx, session+"@"+branch, 1)
	if err != nil || len(g.Turns) == 0 {
		return nil, int64(s.Turns), err
	}
	head := g.Turns[0]
	return &v1alpha1.Head{Turn: string(head.ID), Number: int64(head.Number)}, int64(s.Turns), nil
}

// Remove implements turns.Server.
func (c *Client) Remove(ctx context.Context, namespace, session, branch string) error {
	t, err := c.of(ctx, namespace)
	if err != nil {
		return err
	}
	if branch != "" {
		err = t.host.RemoveBranch(ctx, session, branch)
	} else {
		_, err = t.host.RemoveSession(ctx, session)
	}
	if turnstone.KindOf(err) == turnstone.KindNotFound {
		return nil
	}
	return err
}

// Build implements turns.Server. The name is never a path of this machine.
func (c *Client) Build(ctx context.Context, namespace, image string) (turnstone.Digest, error) {
	t, err := c.of(ctx, namespace)
	if err != nil {
		return "", err
	}
	stream, err := t.server.NodeChannel(ctx, "")
	if err != nil {
		return "", err
	}
	w := wire.NewClient(stream)
	defer func() { _ = w.Close(); w.Wait() }()
	hold, journal := w.NewStream(), w.NewStream()
	held, err := w.Sender(hold)
	if err != nil {
		return "", err
	}
	defer held.Abort(nil)
	defer context.AfterFunc(ctx, func() { held.Abort(context.Cause(ctx)) })()
	in, err := w.Receiver(journal)
	if err != nil {
		return "", err
	}
	defer func() { _ = in.Close() }()
	answer := make(chan error, 1)
	go func() {
		_, err := w.TemplateBuild(context.WithoutCancel(ctx), &wire.TemplateBuildParams{Name: image,
			Journal: journal, Hold: hold})
		if err != nil {
			_ = in.Close() // a rejected command has no stream
		}
		answer <- err
	}()
	r := turnlog.NewJobReader(nil)
	if err := r.Read(in); err != nil {
		if failed := <-answer; failed != nil {
			return "", failed
		}
		return "", err
	}
	built := turnstone.Template{}
	has, err := r.Result(&built)
	if err == nil && !has {
		err = fmt.Errorf("template %s: %w", image, io.ErrUnexpectedEOF)
	}
	return built.Digest, err
}
