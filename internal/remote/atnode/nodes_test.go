package atnode

import (
	"context"
	"net"
	"slices"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/wire"
)

// A keeper is a node with one session, which it used at a time. Methods that it does not have panic.
type keeper struct {
	wire.SessionServer
	session string
	used    time.Time
}

func (k keeper) List(_ context.Context, c *wire.Conn, p *wire.SessionListParams) error {
	text := `[{"name":"` + k.session + `","used":"` + k.used.Format(time.RFC3339) + `"}]`
	return liar{text: text}.answer(c, p.Report)
}

func (k keeper) Rename(_ context.Context, _ *wire.Conn, p *wire.SessionRenameParams) (
	*wire.SessionRenameResult, error) {
	if p.Session != k.session {
		return nil, turnstone.Errorf("session.find", turnstone.KindNotFound, p.Session, "no session")
	}
	if p.Name == "taken" {
		return nil, turnstone.Errorf("session.rename", turnstone.KindNotFound, p.Name, "is odd")
	}
	return &wire.SessionRenameResult{Session: []byte(`{"name":"` + p.Name + `"}`)}, nil
}

// keepers are the nodes of a server.
type keepers struct {
	t      *testing.T
	nodes  map[string]keeper
	denied error
}

func (k keepers) List(context.Context) ([]string, error) {
	if k.denied != nil {
		return nil, k.denied
	}
	var names []string
	for name := range k.nodes {
		names = append(names, name)
	}
	slices.Sort(names)
	return names, nil
}

func (k keepers) Dial(_ context.Context, node string) (*wire.Client, error) {
	d := wire.NewDispatcher()
	wire.RegisterSession(d, k.nodes[node])
	near, far := net.Pipe()
	server := wire.NewConn(far, wire.Options{Dispatcher: d})
	k.t.Cleanup(func() { _ = server.Close(); server.Wait() })
	return wire.NewClient(near), nil
}

func (k keepers) executor() *Executor {
	x := &Executor{Nodes: k, Dial: func(ctx context.Context) (*wire.Client, error) {
		return k.Dial(ctx, "a")
	}}
	k.t.Cleanup(func() { _ = x.Close() })
	return x
}

// TestSeveralNodes: lists are of all nodes, and an operation is done where its session is.
func TestSeveralNodes(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	k := keepers{t: t, nodes: map[string]keeper{"a": {session: "first", used: now},
		"b": {session: "second", used: now.Add(time.Hour)}}}
	x := k.executor()
	all, err := x.Sessions(t.Context())
	if err != nil || len(all) != 2 || all[0].Name != "second" || all[1].Name != "first" {
		t.Errorf("%+v, %v", all, err)
	}
	for _, name := range []string{"first", "second", "second"} {
		if s, err := x.Rename(t.Context(), name, "new"); err != nil || s.Name != "new" {
			t.Errorf("%s: %+v, %v", name, s, err)
		}
	}
	// the error of the node that has the session says more
	for name, want := range map[string]turnstone.Op{"none": "session.find",
		"second": "session.rename", "first": "session.rename"} {
		_, err := x.Rename(t.Context(), name, "taken")
		if e, is := err.(*turnstone.Error); !is || e.Op != want { //nolint:errorlint // as it is
			t.Errorf("%s: %v", name, err)
		}
	}

	// A token that may not list nodes works on the node that the server selects.
	k.denied = turnstone.Errorf("nodes.list", turnstone.KindDenied, "", "not granted")
	x = k.executor()
	if all, err = x.Sessions(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("%+v, %v", all, err)
	}
	if _, err := x.Rename(t.Context(), "second", "new"); turnstone.KindOf(err) != turnstone.KindNotFound {
		t.Error(err)
	}
	k.denied = turnstone.Errorf("nodes.list", turnstone.KindUnavailable, "", "not there")
	if _, err = k.executor().Sessions(t.Context()); turnstone.KindOf(err) != turnstone.KindUnavailable {
		t.Error(err)
	}
}
