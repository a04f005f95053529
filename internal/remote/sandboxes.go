package remote

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	connectv1 "turnstone.dev/turnstone/internal/api/turnstone/v1/turnstonev1connect"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/sandboxes"
	"turnstone.dev/turnstone/sandboxes/access"
)

// lingerTime is how long a command in a sandbox and its client wait for each other after a lost
// connection.
const lingerTime = 10 * time.Minute

// Bounds of lists.
const (
	pageSize = 100
	maxPages = 100
)

// Sandboxes are the sandboxes of a server, with the methods of a sandboxes.Store. Their life is in
// control calls; commands, files and their environment go through the sandbox's channel, which the
// server cannot read. The methods are safe for concurrent use.
type Sandboxes struct {
	*access.Access
	calls  connectv1.SandboxServiceClient
	client func() *v1.ChannelClient
	open   func(ctx context.Context, id turnstone.SandboxID) (io.ReadWriteCloser, error)
	node   func(ctx context.Context, name string) (io.ReadWriteCloser, error)
	forget func(id turnstone.SandboxID) // what is kept of a sandbox that ends
	// made keeps the statement that came with a new sandbox, so that its first command asks for none
	made func(id turnstone.SandboxID, c *v1.Channel, nonce []byte)

	mu    sync.Mutex
	found sandboxes.Info // of the last Find; zero: there is none
	at    time.Time      // of found
}

// foundTime is how long a command believes what Find has just answered, and does not ask again.
const foundTime = 10 * time.Second

// AllSandboxes returns the sandboxes of the server.
func (s *Server) AllSandboxes() *Sandboxes {
	b := &Sandboxes{calls: s.Sandboxes, node: s.NodeChannel, client: func() *v1.ChannelClient {
		c, _ := s.asker()
		return c
	}, forget: func(id turnstone.SandboxID) {
		if s.o.Statements != nil {
			s.o.Statements.Drop(id)
		}
	}, made: func(id turnstone.SandboxID, c *v1.Channel, nonce []byte) {
		o := offer{channel: c, about: string(id)}
		if copy(o.nonce[:], nonce); c != nil {
			s.keep(o)
		}
	}, open: func(ctx context.Context, id turnstone.SandboxID) (io.ReadWriteCloser, error) {
		c, err := s.SandboxChannel(ctx, id)
		var e *turnstone.Error
		if errors.As(err, &e) && e.Kind == turnstone.KindNotFound && e.Op != channel.OpHandshake {
			err = notFound(string(id)) // an unknown statement is no unknown sandbox
		}
		return c, err
	}}
	b.Access = &access.Access{Open: b.open, Linger: lingerTime,
		Info: func(ctx context.Context, id turnstone.SandboxID) (access.Sandbox, error) {
			if i := b.takeFound(); i.ID == id {
				return accessOf(i), nil
			}
			i, err := b.get(ctx, id)
			return accessOf(i), err
		}}
	return b
}

// takeFound returns what Find has just answered, once.
func (b *Sandboxes) takeFound() sandboxes.Info {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := b.found
	b.found = sandboxes.Info{}
	if time.Since(b.at) > foundTime {
		return sandboxes.Info{}
	}
	return i
}

func accessOf(i sandboxes.Info) access.Sandbox {
	// its agent knows the directory and the user of commands that name none
	a := access.Sandbox{Title: i.Title(), Capacity: i.Shape.Disk + i.TemplateSize}
	if i.State.Final() {
		a.Ended = string(i.State) + ": " + i.Reason
	}
	return a
}

// List returns the sandboxes that were not removed, oldest first. After some days the server forgets
// those that have ended.
func (b *Sandboxes) List(ctx context.Context) ([]sandboxes.Info, error) {
	all, err := b.list(ctx, &v1.SandboxFilter{})
	infos := []sandboxes.Info{}
	for n := len(all) - 1; n >= 0; n-- {
		if !all[n].Removed {
			infos = append(infos, infoOf(all[n]))
		}
	}
	return infos, err
}

// list returns what a filter selects, newest first.
func (b *Sandboxes) list(ctx context.Context, f *v1.SandboxFilter) (all []*v1.Sandbox, err error) {
	token := ""
	for range maxPages {
		a, err := b.calls.ListSandboxes(ctx, connect.NewRequest(&v1.ListSandboxesRequest{Filter: f,
			Page: &v1.Page{Size: pageSize, Token: token}}))
		if err != nil {
			return nil, err
		}
		all = append(all, a.Msg.Sandboxes...)
		if token = a.Msg.NextPageToken; token == "" {
			return all, nil
		}
	}
	return all, turnstone.Errorf("sandbox.list", turnstone.KindExhausted, "the server",
		"has more than %d sandboxes", maxPages*pageSize)
}

// getTime bounds Get.
const getTime = 30 * time.Second

// Get returns the sandbox with this ID.
func (b *Sandboxes) Get(id turnstone.SandboxID) (sandboxes.Info, error) {
	ctx, cancel := context.WithTimeout(context.Background(), getTime)
	defer cancel()
	return b.get(ctx, id)
}

func (b *Sandboxes) get(ctx context.Context, id turnstone.SandboxID) (sandboxes.Info, error) {
	a, err := b.calls.GetSandbox(ctx, connect.NewRequest(&v1.GetSandboxRequest{
		SandboxId: string(id)}))
	if err != nil {
		return sandboxes.Info{}, err
	}
	if a.Msg.Sandbox.GetRemoved() {
		return sandboxes.Info{}, notFound(string(id))
	}
	return infoOf(a.Msg.Sandbox), nil
}

// live are the states of sandboxes that have not ended.
var live = []v1.SandboxState{v1.SandboxState_SANDBOX_STATE_CREATING,
	v1.SandboxState_SANDBOX_STATE_READY, v1.SandboxState_SANDBOX_STATE_RUNNING}

// Find returns the sandbox that ref names: an ID, a unique prefix of the ID of a sandbox that has
// not ended, or a name. The errors are those of sandboxes.Store.Find.
func (b *Sandboxes) Find(ctx context.Context, ref string) (sandboxes.Info, error) {
	i, err := b.find(ctx, ref)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.found, b.at = i, time.Now()
	return i, err
}

// Resolve returns the ID of the sandbox that ref names, as Find does. It does not ask about an ID:
// what uses the sandbox says whether it is there.
func (b *Sandboxes) Resolve(ctx context.Context, ref string) (turnstone.SandboxID, error) {
	if sandboxes.IsID(ref) {
		return turnstone.SandboxID(ref), nil
	}
	i, err := b.find(ctx, ref)
	return i.ID, err
}

func (b *Sandboxes) find(ctx context.Context, ref string) (sandboxes.Info, error) {
	if sandboxes.IsID(ref) {
		i, err := b.get(ctx, turnstone.SandboxID(ref))
		if turnstone.KindOf(err) == turnstone.KindNotFound {
			err = notFound(ref)
		}
		return i, err
	}
	if !strings.HasPrefix(ref, "sb_") {
		return b.named(ctx, ref)
	}
	all, err := b.list(ctx, &v1.SandboxFilter{States: live})
	if err != nil {
		return sandboxes.Info{}, err
	}
	var begun []*v1.Sandbox
	for _, s := range all {
		if len(ref) > len("sb_") && strings.HasPrefix(s.SandboxId, ref) {
			begun = append(begun, s)
		}
	}
	switch len(begun) {
	case 0:
		return sandboxes.Info{}, notFound(ref)
	case 1:
		return infoOf(begun[0]), nil
	}
	return sandboxes.Info{}, turnstone.Errorf("sandbox.find", turnstone.KindInvalid, "sandbox "+ref,
		"%d sandboxes have this prefix", len(begun)).
		WithHint("write more of the ID, as turn sandbox ls lists it")
}

// named returns the sandbox with a name: that which has not ended, or else the newest.
func (b *Sandboxes) named(ctx context.Context, name string) (sandboxes.Info, error) {
	if sandboxes.CheckName(name) != nil {
		return sandboxes.Info{}, notFound(name) // no sandbox has such a name
	}
	all, err := b.list(ctx, &v1.SandboxFilter{Name: name})
	if err != nil {
		return sandboxes.Info{}, err
	}
	for _, s := range all {
		if i := infoOf(s); !i.State.Final() {
			return i, nil
		}
	}
	for _, s := range all {
		if !s.Removed {
			return infoOf(s), nil
		}
	}
	return sandboxes.Info{}, notFound(name)
}

func notFound(ref string) error {
	return turnstone.Errorf("sandbox.find", turnstone.KindNotFound,
		fmt.Sprintf("sandbox %.80s", ref),
		"no such sandbox").WithHint("list the sandboxes with turn sandbox ls")
}

// Stop ends a sandbox, which List still lists.
func (b *Sandboxes) Stop(ctx context.Context, id turnstone.SandboxID) error {
	return b.end(ctx, id, true)
}

// Remove ends a sandbox and removes it.
func (b *Sandboxes) Remove(ctx context.Context, id turnstone.SandboxID) error {
	return b.end(ctx, id, false)
}

func (b *Sandboxes) end(ctx context.Context, id turnstone.SandboxID, keep bool) error {
	b.forget(id)
	_, err := b.calls.DeleteSandbox(ctx, connect.NewRequest(&v1.DeleteSandboxRequest{
		SandboxId: string(id), Keep: keep}))
	return err
}

// idempotencyKey returns a key that makes repetitions of one call one call.
func idempotencyKey() string { return rand.Text() }

// Pause pauses the machine of a sandbox, whose connections end.
func (b *Sandboxes) Pause(ctx context.Context, id turnstone.SandboxID) error {
	_, err := b.calls.PauseSandbox(ctx, connect.NewRequest(&v1.PauseSandboxRequest{
		SandboxId: string(id)}))
	return err
}

// Extend sets the time from now to the end of a sandbox.
func (b *Sandboxes) Extend(ctx context.Context, id turnstone.SandboxID, life time.Duration) error {
	_, err := b.calls.SetSandboxTimeout(ctx, connect.NewRequest(&v1.SetSandboxTimeoutRequest{
		SandboxId: string(id), Timeout: durationpb.New(life)}))
	return err
}

// Resume lets the machine of a paused sandbox continue.
func (b *Sandboxes) Resume(ctx context.Context, id turnstone.SandboxID) error {
	_, err := b.calls.ResumeSandbox(ctx, connect.NewRequest(&v1.ResumeSandboxRequest{
		SandboxId: string(id)}))
	return err
}
